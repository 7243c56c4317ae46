"""Speed: each measured GPU as a fraction of its roofline, and every GPU against accelerated-scan's warp kernel."""

from itertools import chain
from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.measurements import Machine, Measurements
from paper.style import Look
from paper.typeset import Float, escape, figure, listed

LOOKS = {
    ("kernel", "forward"): Look("kernels, forward", "", "#D55E00", "o", "-"),
    ("kernel", "backward"): Look("kernels, backward", "", "#0072B2", "s", "--"),
    ("kernel", "forward_backward"): Look("kernels, forward + backward", "", "#009E73", "^", "-."),
    ("api", "forward"): Look("Python API, forward", "", "#E69F00", "P", ":"),
    ("api", "backward"): Look("Python API, backward", "", "#56B4E9", "X", ":"),
    ("api", "forward_backward"): Look("Python API, forward + backward", "", "#000000", "D", ":"),
}


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figures that the stored speed records allow."""
    floats = [
        _roofline(measurements, machine, folder)
        for machine in measurements.having("speed", ("paper", "here"))
        if measurements.of(machine, "speed", level="kernel")["fraction"].notna().any()
    ]
    return floats + _over_warp(measurements, folder)


def _roofline(measurements: Measurements, machine: Machine, folder: Path) -> Float:
    rows = measurements.of(machine, "speed", level="kernel")
    rows = rows[rows["fraction"].notna()]
    figure_, axes = lines.fractions(rows, 0.75)
    for panel in chain.from_iterable(axes):
        style.time_axis(panel, sorted(set(rows["T"])))
    for panel in axes[-1]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = f"figures/speed-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}: time of a kernel that only moves the same bytes over time "
        f"taken, so that 1 is the limit. Medians of {counts(rows['samples'])} interleaved measurements"
        f"{conditions(rows)}, bars are 95\\,\\% intervals of the median. {hollow(rows)} {above_roofline(rows)}"
    )
    if rows.loc[rows["provider"] == "hgrn", "median_ms"].notna().any():
        caption += (
            f" {style.look('hgrn').label} tunes itself once per width and type, at the first length of the sweep."
        )
    return figure(f"fig:speed:{machine.slug}", pdf, caption.strip())


def _over_warp(measurements: Measurements, folder: Path) -> list[Float]:
    shown = [
        (machine, provider)
        for machine in measurements.having("speed")
        for provider in ("ours", "associative_scan_triton")
        if _float32(measurements, machine, provider)["over_warp"].notna().any()
    ]
    if not shown:
        return []
    across = 2 if len(shown) == 4 else min(len(shown), 3)
    down = -(-len(shown) // across)
    figure_, axes = style.grid(down, across, 0.75 + 1.85 * down)
    panels = [panel for row in axes for panel in row]
    lengths = sorted({T for machine, provider in shown for T in _float32(measurements, machine, provider)["T"]})
    for panel, (machine, provider) in zip(panels, shown, strict=False):
        rows = _float32(measurements, machine, provider)
        style.limit(panel, "accelerated-scan warp")
        for (level, mode), look in LOOKS.items():
            points = rows[(rows["level"] == level) & (rows["mode"] == mode) & rows["over_warp"].notna()]
            if len(points):
                lines.draw(panel, points, "over_warp", look.label, look)
        style.time_axis(panel, lengths)
        panel.set_title(f"{style.look(provider).label} on\n{machine.title}", linespacing=1.05)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    for row in axes:
        row[0].set_ylabel("speed relative to warp")
    for panel in panels[max(0, len(shown) - across) : len(shown)]:
        panel.set_xlabel("sequence length T")
        panel.tick_params(labelbottom=True)  # also above a place that is left empty
    style.legend_above(figure_, axes)
    pdf = "figures/speed-over-warp.pdf"
    style.save(figure_, folder / pdf)
    rows = pd.concat([_float32(measurements, machine, provider) for machine, provider in shown])
    published = [machine.name for machine in measurements.having("speed", ("published",))]
    source = f" The panels of {escape(listed(published))} show printed medians, without a spread" if published else ""
    source += f" (source: {escape(rows['source'].dropna().iloc[0])})." if published else ""
    caption = (
        f"Time of accelerated-scan's warp kernel over time taken, float32, {shape(rows)}: above 1 is faster than warp. "
        f"Each GPU is compared with itself only; bars are 95\\,\\% intervals of the median.{source}"
    )
    return [figure("fig:speed:over-warp", pdf, caption)]


def _float32(measurements: Measurements, machine: Machine, provider: str) -> pd.DataFrame:
    return measurements.of(machine, "speed", dtype="float32", provider=provider)
