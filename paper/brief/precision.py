"""Precision: errors of the states as multiples of rounding once, both draws of gates in two types."""

from pathlib import Path

from paper import style
from paper.captions import counts
from paper.figures.precision import OFF_SCALE, quantity
from paper.measurements import Measurements
from paper.typeset import Float, escape, figure

DTYPES = ("float32", "bfloat16")
REFERENCES = ("ref", "jax_associative_scan", "sequential", "hillis_steele", "blelloch")
"""Compositions of operators, which the supplement has."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("precision")
    if machine is None:
        return []
    rows = measurements.of(machine, "precision")
    rows = rows[rows["states_factor"].notna() & rows["dtype"].isin(DTYPES) & ~rows["provider"].isin(REFERENCES)]
    kinds = [
        (gates, dtype)
        for gates in style.GATES
        for dtype in DTYPES
        if ((rows["gates"] == gates) & (rows["dtype"] == dtype)).any()
    ]
    if not kinds:
        return []
    figure_, axes = style.grid(1, len(kinds), 2.25)
    for panel, (gates, dtype) in zip(axes[0], kinds, strict=True):
        points = rows[(rows["gates"] == gates) & (rows["dtype"] == dtype)]
        quantity(panel, points, "states")
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_title(f"{style.GATES[gates]}, {dtype}")
        panel.set_xlabel("sequence length T")
    shown = rows.loc[~rows["states_failed"] & (rows["states_factor"] <= OFF_SCALE), "states_factor"].max()
    axes[0][0].set_ylim(0.8, max(4, 1.3 * shown))
    axes[0][0].set_ylabel("RMSE / rounding error")
    style.plain_log_axis(axes[0][0])
    style.legend_above(figure_, axes)
    pdf = "brief/precision.pdf"
    style.save(figure_, folder / pdf)
    hollow = " Hollow: outside the error budget." if rows["states_wrong"].any() else ""
    caption = (
        f"Errors of the states on {escape(machine.title)}, $C={counts(rows['C'])}$, against a sequential float64 scan, "
        f"over the error of rounding its result once. Means of {counts(rows['draws'])} draws; bars span 95\\,\\% of "
        f"them. A cross at the upper edge: diverged, overflowed, or over {OFF_SCALE} times.{hollow}"
    )
    return [figure("fig:brief:precision", pdf, caption)]
