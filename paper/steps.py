"""The ways in which a compiled layer was run, as figures and tables show them, and the facts beside their times."""

from typing import Any

import pandas as pd

from paper.measurements import Machine, Measurements
from paper.style import Look, look

WAYS = {
    "ours": Look("ours, compiled", "ours", "#D55E00", "o", "-"),
    "ours_reduce_overhead": Look("ours, reduce-overhead", "ours, r.-o.", "#E69F00", "P", ":"),
    "ours_eager": Look("ours, eager", "ours, eager", "#8C2D04", "p", "-."),
    "warp": Look("warp, compiled", "warp", "#0072B2", "s", "--"),
    "warp_reduce_overhead": Look("warp, reduce-overhead", "warp, r.-o.", "#56B4E9", "^", ":"),
    "warp_eager": Look("warp, eager", "warp, eager", "#000000", "v", "-."),
    "torch_associative_scan": Look("torch associative_scan, compiled", "torch", "#CC79A7", "X", "--"),
    "hillis_steele": Look("Hillis-Steele, compiled", "H.-St.", "#666666", "<", "--"),
    "hillis_steele_eager": Look("Hillis-Steele, eager", "H.-St., eager", "#999999", ">", ":"),
}
"""By the names of the records, in the order of tables; a way that is not listed is not shown."""


def steps(measurements: Measurements, machine: Machine) -> pd.DataFrame:
    """Every measured way on a machine, with `graph_breaks` and `peak_tensors` as columns."""
    rows = measurements.rows
    rows = rows[(rows["machine"] == machine) & (rows["stem"] == "compile") & rows["recorded_as"].isin(list(WAYS))]
    facts = [_detail(row) for _, row in rows.iterrows()]
    rows = rows.assign(median_ms_low=rows["low_ms"], median_ms_high=rows["high_ms"])
    for name in ("graph_breaks", "peak_tensors"):
        rows[name] = pd.Series([fact.get(name) for fact in facts], index=rows.index, dtype=float)
    return rows


def short(stem: str, name: str) -> str:
    """A provider, or a way to run a layer with it, in a narrow column."""
    looks = WAYS if stem == "compile" else {}
    return (looks.get(name) or look(name)).short


def _detail(row: pd.Series) -> dict[str, Any]:
    return row["results"][row["recorded_as"]].get("detail") or {}
