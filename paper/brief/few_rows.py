"""Few rows: float32 kernels in one column, from one row to rows enough to fill a GPU."""

from pathlib import Path

from paper import lines, style
from paper.captions import above_roofline, hollow
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

MODES = ("forward", "backward")


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("few_rows")
    if machine is None:
        return []
    rows = measurements.every(machine, "few_rows", level="kernel", dtype="float32")
    rows = rows[rows["fraction"].notna()]
    if rows.empty:
        return []
    rows = rows.assign(rows=rows["B"] * rows["C"])
    places = {shape: place for place, shape in enumerate(sorted(set(zip(rows["rows"], rows["T"], strict=True))))}
    located = rows.assign(T=[places[shape] for shape in zip(rows["rows"], rows["T"], strict=True)])
    figure_, axes = style.grid(2, 1, 2.45, width_in=style.COLUMN_WIDTH_IN)
    for (panel,), mode in zip(axes, MODES, strict=True):
        lines.fraction(panel, located[located["mode"] == mode], located, style.MODES[mode], joined=False)
        panel.set_xticks(list(places.values()), [f"{number} ×\n{style.steps(T)}" for number, T in places])
        panel.set_xlim(-0.5, len(places) - 0.5)
        style.halves(panel)
    axes[-1][0].set_xlabel("rows × sequence length")
    figure_.supylabel("fraction of roofline", fontsize=8)
    style.legend_above(figure_, axes)
    pdf = "brief/few_rows.pdf"
    style.save(figure_, folder / pdf)
    caption = f"Few rows on {escape(machine.title)}, float32, time contiguous. {hollow(rows)} {above_roofline(rows)}"
    return [figure("fig:brief:few-rows", pdf, caption.strip(), wide=False)]
