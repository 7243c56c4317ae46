"""Speed: kernels by length, each provider as a fraction of the roofline, in two types."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.measurements import Machine, Measurements
from paper.typeset import Float, escape, figure

KINDS = tuple((mode, dtype) for dtype in ("float32", "bfloat16") for mode in ("forward", "backward"))


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    found = shown(measurements)
    if found is None:
        return []
    machine, rows, kinds = found
    figure_, panels = draw(rows, kinds, 2.15)
    for panel in panels:
        panel.set_xlabel("sequence length T")
    pdf = "brief/speed.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}: time of a kernel that only moves the same bytes over time "
        f"taken, so that 1 is the limit. Medians of {counts(rows['samples'])} interleaved "
        f"measurements{conditions(rows)}; bars are 95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return [figure("fig:brief:speed", pdf, caption.strip())]


def shown(measurements: Measurements) -> tuple[Machine, pd.DataFrame, list[tuple[str, str]]] | None:
    """The GPU, its rows that are drawn, and their panels; None where there are none."""
    machine = measurements.main("speed")
    if machine is None:
        return None
    rows = measurements.of(machine, "speed", level="kernel")
    rows = rows[rows["fraction"].notna()]
    kinds = [kind for kind in KINDS if ((rows["mode"] == kind[0]) & (rows["dtype"] == kind[1])).any()]
    rows = rows[[kind in kinds for kind in zip(rows["mode"], rows["dtype"], strict=True)]]
    return None if rows.empty else (machine, rows, kinds)


def draw(rows: pd.DataFrame, kinds: Sequence[tuple[str, str]], height_in: float) -> tuple[Figure, list[Axes]]:
    """A panel for each mode and dtype, side by side, lengths below them still without a word."""
    drawn, panels = lines.row_of_fractions(rows, kinds, height_in, style.TEXT_WIDTH_IN)
    for panel in panels:
        style.time_axis(panel, sorted(set(rows["T"])))
    style.legend_above(drawn, [panels])
    return drawn, panels
