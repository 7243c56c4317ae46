"""Training: the loss of every step with each scan at the longest sequences, in one column."""

from pathlib import Path

from paper import style
from paper.captions import counts
from paper.figures.training import losses
from paper.measurements import Measurements
from paper.trainings import trainings
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("training")
    if machine is None:
        return []
    rows = trainings(measurements, machine)
    if rows.empty:
        return []
    rows = rows[rows["T"] == rows["T"].max()]
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(1, len(dtypes), 1.95, width_in=style.COLUMN_WIDTH_IN)
    for panel, dtype in zip(axes[0], dtypes, strict=True):
        losses(panel, rows[rows["dtype"] == dtype])
        panel.set_title(dtype)
        panel.set_xlabel("step")
    axes[0][0].set_ylabel("loss")
    style.legend_above(figure_, axes)
    pdf = "brief/training.pdf"
    style.save(figure_, folder / pdf)
    wrong = " Hollow: the curve is not the exact one." if (rows["status"] == "wrong").any() else ""
    caption = (
        f"A small gated network trained on selective copying on {escape(machine.title)}, $T={counts(rows['T'])}$, with "
        f"each scan from the same weights on the same batches. A cross: a loss that is not finite.{wrong}"
    )
    return [figure("fig:brief:training", pdf, caption, wide=False)]
