"""Compile: a training step of a gated recurrent layer with each scan, over that with ours, and what it holds."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from paper import lines, style
from paper.captions import counts
from paper.measurements import Machine, Measurements, fraction_of
from paper.steps import WAYS, steps
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that steps were measured on."""
    floats = []
    for machine in measurements.having("compile", ("paper", "here")):
        rows = timed(measurements, machine)
        if len(rows):
            floats.append(_steps(machine, rows, folder))
    return floats


def timed(measurements: Measurements, machine: Machine) -> pd.DataFrame:
    """The training steps that have a time, with `ratio`: that time over that of ours compiled, turn by turn."""
    rows = steps(measurements, machine)
    rows = rows[(rows["mode"] == "forward_backward") & rows["median_ms"].notna()]
    found = [fraction_of(row, "ours", of=row["recorded_as"]) for _, row in rows.iterrows()]
    return (
        rows.assign(**dict(zip(("ratio", "ratio_low", "ratio_high"), zip(*found, strict=True), strict=True)))
        if found
        else rows
    )


def ratios(panels: Sequence[Axes], rows: pd.DataFrame, dtypes: Sequence[str]) -> None:
    """A panel for each dtype: every way over ours compiled, which is the line at 1."""
    for panel, dtype in zip(panels, dtypes, strict=True):
        points = rows[rows["dtype"] == dtype]
        for name, look in WAYS.items():
            lines.draw(panel, points[points["recorded_as"] == name], "ratio", look.label, look, front=name == "ours")
        panel.set_yscale("log")
        style.plain_log_axis(panel)
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_title(dtype)
    panels[0].set_ylabel("step, over ours")


def _steps(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(2, len(dtypes), 3.95, share_y="row")
    ratios(axes[0], rows, dtypes)
    for panel, dtype in zip(axes[1], dtypes, strict=True):
        points = rows[rows["dtype"] == dtype]
        for name, look in WAYS.items():
            own = points[points["recorded_as"] == name]
            lines.draw(panel, own, "peak_tensors", look.label, look, front=name == "ours")
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_xlabel("sequence length T")
    axes[1][0].set_ylabel("held at most, tensors")
    axes[1][0].set_ylim(0, 1.1 * rows["peak_tensors"].max() if rows["peak_tensors"].notna().any() else 1)
    style.legend_above(figure_, axes)
    pdf = f"figures/compile-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    wrong = " Hollow: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""
    caption = (
        "A training step of a gated recurrent layer (projection, gates, scan, projection) of width "
        f"{counts(rows['C'])} on {escape(machine.title)}, $B={counts(rows['B'])}$: time of a step in a row of steps "
        f"over that of ours compiled in the same turns, medians of {counts(rows['samples'])} with 95\\,\\% intervals "
        "(above 1 is slower), and what a step holds at most beyond weights and inputs, in tensors of the size of the "
        f"input. With CUDA graphs (reduce-overhead) memory is kept aside, and is not shown.{wrong}"
    )
    return figure(f"fig:compile:{machine.slug}", pdf, caption)
