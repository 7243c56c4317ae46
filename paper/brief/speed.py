"""Speed: kernels by length, each provider as a fraction of the roofline, in two types."""

from pathlib import Path

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

KINDS = tuple((mode, dtype) for dtype in ("float32", "bfloat16") for mode in ("forward", "backward"))


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("speed")
    if machine is None:
        return []
    rows = measurements.of(machine, "speed", level="kernel")
    rows = rows[rows["fraction"].notna()]
    kinds = [kind for kind in KINDS if ((rows["mode"] == kind[0]) & (rows["dtype"] == kind[1])).any()]
    rows = rows[[kind in kinds for kind in zip(rows["mode"], rows["dtype"], strict=True)]]
    if rows.empty:
        return []
    figure_, panels = lines.row_of_fractions(rows, kinds, 2.15, style.TEXT_WIDTH_IN)
    for panel in panels:
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, [panels])
    pdf = "brief/speed.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}: time of a kernel that only moves the same bytes over time "
        f"taken, so that 1 is the limit. Medians of {counts(rows['samples'])} interleaved "
        f"measurements{conditions(rows)}; bars are 95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return [figure("fig:brief:speed", pdf, caption.strip())]
