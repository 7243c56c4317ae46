"""Trainings of a small network with each scan, as figures and tables show them, and the facts beside their times."""

import math

import pandas as pd

from paper.measurements import Machine, Measurements, end


def trainings(measurements: Measurements, machine: Machine) -> pd.DataFrame:
    """Every scan that a network was trained with on a machine.

    Added are `losses`; `first` and `last`, the first loss and the mean of the last tenth; `of_rounding`; `held_bytes`;
    and `tokens_per_s` with the ends of its interval, from the time of a step.
    """
    rows = measurements.rows[(measurements.rows["machine"] == machine) & (measurements.rows["stem"] == "training")]
    results = [row["results"][row["recorded_as"]] for _, row in rows.iterrows()]
    curves = [[math.nan if loss is None else loss for loss in result.get("losses") or []] for result in results]
    rows = rows.assign(losses=pd.Series(curves, index=rows.index, dtype=object))
    for name, values in {
        "first": [losses[0] if losses else None for losses in curves],
        "last": [end(losses) for losses in curves],
        "of_rounding": [(result.get("errors") or {}).get("of_rounding") for result in results],
        "held_bytes": [(result.get("detail") or {}).get("held_bytes") for result in results],
    }.items():
        rows[name] = pd.Series(values, index=rows.index, dtype=float)
    tokens = 1e3 * rows["B"] * rows["T"]
    rows = rows.assign(
        tokens_per_s=tokens / rows["median_ms"],
        tokens_per_s_low=tokens / rows["high_ms"],
        tokens_per_s_high=tokens / rows["low_ms"],
    )
    return rows[[bool(losses) for losses in curves]]
