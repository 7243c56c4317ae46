"""Compile: the time of a training step with each scan over that of ours compiled, in one column."""

from pathlib import Path

from paper import style
from paper.captions import counts
from paper.figures.compile import ratios, timed
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

REFERENCES = ("hillis_steele", "hillis_steele_eager")
"""Which the supplement has."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("compile")
    if machine is None:
        return []
    rows = timed(measurements, machine)
    rows = rows[~rows["recorded_as"].isin(REFERENCES)]
    if rows.empty:
        return []
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(1, len(dtypes), 2.0, width_in=style.COLUMN_WIDTH_IN)
    ratios(axes[0], rows, dtypes)
    for panel in axes[0]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = "brief/compile.pdf"
    style.save(figure_, folder / pdf)
    wrong = " Hollow: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""
    caption = (
        f"A training step of a gated recurrent layer of width {counts(rows['C'])} on {escape(machine.title)}, "
        f"$B={counts(rows['B'])}$: time over that of ours compiled, in the same turns, with 95\\,\\% intervals; "
        f"above 1 is slower.{wrong}"
    )
    return [figure("fig:brief:compile", pdf, caption, wide=False)]
