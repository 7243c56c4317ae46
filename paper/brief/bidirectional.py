"""Both directions: float32 kernels of each form in one column, over T."""

from itertools import chain
from pathlib import Path

from paper import lines, style
from paper.captions import above_roofline, hollow, shape
from paper.forms import FORMS, forms
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

MODES = ("forward", "backward")


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("bidirectional")
    if machine is None:
        return []
    rows = measurements.every(machine, "bidirectional", level="kernel", dtype="float32")
    rows = rows[rows["fraction"].notna()]
    if rows.empty:
        return []
    found = forms(rows)
    figure_, axes = style.grid(len(MODES), len(found), 2.45, width_in=style.COLUMN_WIDTH_IN)
    for i, mode in enumerate(MODES):
        for j, form in enumerate(found):
            points = rows[(rows["directions"] == form) & (rows["mode"] == mode)]
            lines.fraction(axes[i][j], points, rows, "" if i else FORMS[form])
        axes[i][0].set_ylabel(style.MODES[mode])
    lengths = sorted(set(rows["T"]))
    for panel in chain.from_iterable(axes):
        style.time_axis(panel, lengths)
        shown = [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
        style.halves(panel)
        panel.set_xticks(shown, [style.steps(T) for T in shown])
    figure_.supxlabel("sequence length T", fontsize=8)
    style.legend_above(figure_, axes)
    pdf = "brief/bidirectional.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Both directions on {escape(machine.title)}, float32, {shape(rows)}: each form as a fraction of its own "
        f"roofline. {hollow(rows)} {above_roofline(rows)}"
    )
    return [figure("fig:brief:bidirectional", pdf, caption.strip(), wide=False)]
