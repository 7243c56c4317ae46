"""How every figure looks: one colour, marker and line a provider, type as large as the caption's, no time stamps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullLocator

TEXT_WIDTH_IN = 7.0
COLUMN_WIDTH_IN = 3.375
DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64")
MODES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}
QUANTITIES = {"states": "states", "d_gates": "gradient of gates", "d_tokens": "gradient of tokens"}
GATES = {"uniform_0_1": "gates in [0, 1)", "uniform_099_1": "gates in [0.99, 1)"}


@dataclass(frozen=True)
class Look:
    """A provider in figures and tables."""

    label: str
    short: str
    """For the narrow columns of tables."""
    colour: str
    marker: str
    line: str


# Colours: Okabe and Ito, "Color Universal Design" (2008), without the yellow that print loses, and greys.
LOOKS = {
    "ours": Look("ours", "ours", "#D55E00", "o", "-"),
    "ours_channels_last": Look("ours, channels last", "ours, cl", "#8C2D04", "p", ":"),
    "transposed": Look("transposed around ours", "transposed", "#CC79A7", "d", "--"),
    "two_launches": Look("ours, two launches", "two launches", "#E69F00", "8", "--"),
    "warp": Look("accelerated-scan warp", "warp", "#0072B2", "s", "--"),
    "warp_flips": Look("warp between flips", "warp, flips", "#0072B2", "H", "-."),
    "scalar": Look("accelerated-scan scalar", "scalar", "#56B4E9", "^", "-."),
    "complex": Look("accelerated-scan complex", "complex", "#56B4E9", "2", "--"),
    "ref": Look("accelerated-scan ref", "ref", "#56B4E9", "v", ":"),
    "hgrn": Look("fla hgrn", "hgrn", "#009E73", "D", "--"),
    "torch_associative_scan": Look("torch associative_scan", "torch", "#CC79A7", "P", "-."),
    "jax_associative_scan": Look("jax associative_scan", "jax", "#E69F00", "X", ":"),
    "associative_scan_triton": Look("associative_scan_triton", "asc. triton", "#000000", "*", "--"),
    "linrec": Look("linrec", "linrec", "#7F4F24", "h", "-."),
    "sequential": Look("sequential", "seq.", "#666666", "1", ":"),
    "hillis_steele": Look("Hillis-Steele", "H.-St.", "#666666", "<", "-."),
    "blelloch": Look("Blelloch", "Blelloch", "#999999", ">", "--"),
    "roofline": Look("roofline", "roofline", "#000000", "", "-"),
}
OTHERS = Look("", "", "#D55E00", "p", ":")


def look(provider: str) -> Look:
    """The look of a provider; a name that is not in the list (one strategy of ours, say) shows under its own name."""
    return LOOKS.get(provider) or Look(provider, provider, OTHERS.colour, OTHERS.marker, OTHERS.line)


def in_order(providers: object) -> list[str]:
    """Providers once each, in the order of the list above."""
    known = list(LOOKS)
    return sorted(set(providers), key=lambda name: (known.index(name) if name in known else len(known), name))  # type: ignore[call-overload]


def grid(
    rows: int,
    columns: int,
    height_in: float,
    share_y: bool | Literal["row"] = True,
    share_x: bool = True,
    width_in: float = TEXT_WIDTH_IN,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of small panels, as wide as the text unless told otherwise, with room for a legend above."""
    look_alike()
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(width_in, height_in),
        sharex=share_x,
        sharey=share_y,
        squeeze=False,
        layout="constrained",
    )
    return figure, [list(row) for row in axes]


def blank(height_in: float) -> tuple[Figure, Axes]:
    """A figure as wide as the text to draw on, in inches from its lower left corner."""
    look_alike()
    figure = pyplot.figure(figsize=(TEXT_WIDTH_IN, height_in))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, TEXT_WIDTH_IN), ylim=(0, height_in), xticks=[], yticks=[])
    axes.set_axis_off()
    return figure, axes


def look_alike() -> None:
    """Sets type and lines for all that is drawn from here on."""
    pyplot.rcParams.update(
        {
            "font.family": "STIXGeneral",  # comes with matplotlib and matches the text's Times
            "mathtext.fontset": "stix",
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "legend.fontsize": 8,
            "axes.linewidth": 0.6,
            "lines.linewidth": 1.0,
            "lines.markersize": 3.6,
            "lines.markeredgewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.linewidth": 0.3,
            "grid.color": "#cccccc",
            "pdf.fonttype": 42,
        }
    )


def time_axis(axes: Axes, lengths: list[int]) -> None:
    """A logarithmic axis of sequence lengths, labelled 128, 1k, 64k."""
    axes.set_xscale("log", base=2)
    shown = lengths if len(lengths) <= 6 else lengths[:: (len(lengths) + 4) // 5]
    axes.set_xticks(shown, [steps(T) for T in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def steps(T: int) -> str:
    """A length in few letters: 128, 1k, 64k, 16M."""
    for size, letter in ((2**20, "M"), (2**10, "k")):
        if T >= size and T % size == 0:
            return f"{T // size}{letter}"
    return str(T)


def limit(axes: Axes, label: str) -> None:
    """The line at 1 that everything else is compared with, above the grid."""
    axes.axhline(1.0, color="black", linewidth=1.0, zorder=1.8, label=label)


def halves(axes: Axes) -> None:
    """Labels at 0, 0.5 and 1 where a panel is low."""
    axes.yaxis.set_major_locator(MultipleLocator(0.5))


def plain_log_axis(axes: Axes) -> None:
    """Labels 1, 2, 5, 10 instead of powers on a logarithmic axis, if it spans little; more of them if very little."""
    low, high = axes.get_ylim()
    if high > 1000 * low:
        return
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 5 * low else (1, 1.2, 1.5, 2, 3, 4, 6, 8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def legend_above(figure: Figure, axes: list[list[Axes]]) -> None:
    """One legend for all panels, every label once, row by row in as many columns as fit."""
    handles = {}
    for panel in (panel for row in axes for panel in row):
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for columns in range(min(6, len(handles)), 0, -1):
        labels = [label for first in range(columns) for label in list(handles)[first::columns]]
        legend = figure.legend(
            [handles[label] for label in labels], labels, loc="outside upper center", ncols=columns, frameon=False,
            columnspacing=1.1, handlelength=2.2,
        )  # fmt: skip
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


_SUFFIXES = [".pdf"]


@contextmanager
def also(suffix: str) -> Iterator[None]:
    """Figures that are saved meanwhile are saved with this suffix (`.svg`) as well."""
    _SUFFIXES.append(suffix)
    try:
        yield
    finally:
        _SUFFIXES.remove(suffix)


def save(figure: Figure, path: Path) -> None:
    """A PDF without the date and the version that would make two builds differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.rcParams["svg.hashsalt"] = path.name  # names within an SVG are random otherwise
    for suffix in _SUFFIXES:
        dates = {"CreationDate": None, "Producer": None} if suffix == ".pdf" else {"Date": None}
        figure.savefig(path.with_suffix(suffix), metadata={**dates, "Creator": None})
    pyplot.close(figure)
