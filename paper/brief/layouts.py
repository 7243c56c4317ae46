"""Layouts: float32 kernels of channels last in one column, over the lengths that most B and C have."""

from pathlib import Path

from paper import lines, style
from paper.captions import above_roofline, hollow, shape
from paper.figures.layouts import of_one_shape
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

KINDS = (("forward", "float32"), ("backward", "float32"))


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("layouts")
    if machine is None:
        return []
    rows = of_one_shape(measurements, machine)
    rows = rows[rows["dtype"] == "float32"]
    if rows.empty:
        return []
    figure_, panels = lines.row_of_fractions(rows, KINDS, 1.95, style.COLUMN_WIDTH_IN)
    for panel in panels:
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_xlabel("sequence length T")
        style.halves(panel)
    style.legend_above(figure_, [panels])
    pdf = "brief/layouts.pdf"
    style.save(figure_, folder / pdf)
    transposed = style.look("transposed").label
    caption = (
        f"Channels last on {escape(machine.title)}, float32, {shape(rows)}. \\emph{{{transposed}}}: the kernel for the "
        f"other layout between copies, which are timed. {hollow(rows)} {above_roofline(rows)}"
    )
    return [figure("fig:brief:layouts", pdf, caption.strip(), wide=False)]
