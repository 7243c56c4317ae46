"""Memory: what forward and backward of each provider hold at most."""

import pandas as pd

from paper import style
from paper.captions import counts, shape
from paper.measurements import Machine, Measurements
from paper.typeset import Float, decimals, escape, table

LAYOUTS = {-1: "time last", -2: "channels last"}
GRADIENTS = ("dense", "expanded")


def make(measurements: Measurements) -> list[Float]:
    """A table for each machine that memory was measured on."""
    machines = [*measurements.having("memory", ("paper", "here")), *measurements.having("memory", cpu=True)]
    floats = [_table(machine, rows_of(measurements, machine)) for machine in machines]
    return [each for each in floats if each is not None]


def rows_of(measurements: Measurements, machine: Machine) -> pd.DataFrame:
    """Every provider whose memory was measured, with `dense` and `expanded` as columns."""
    rows = measurements.rows[(measurements.rows["machine"] == machine) & (measurements.rows["stem"] == "memory")]
    peaks = [row["results"][row["recorded_as"]].get("peak_tensors") or {} for _, row in rows.iterrows()]
    rows = rows.copy()
    for kind in GRADIENTS:
        rows[kind] = pd.Series([peak.get(kind) for peak in peaks], index=rows.index, dtype=float)
    return rows[rows["dense"].notna()]


def _table(machine: Machine, rows: pd.DataFrame) -> Float | None:
    groups = [
        (dtype, dim)
        for dtype in style.DTYPES
        for dim in LAYOUTS
        if len(rows[(rows["dtype"] == dtype) & (rows["dim"] == dim)])
    ]
    if not groups:
        return None
    head = [
        " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{dtype}, {LAYOUTS[dim]}}}" for dtype, dim in groups)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + 2 * i}-{3 + 2 * i}}}" for i in range(len(groups))),
        " & ".join(["", *(GRADIENTS * len(groups))]) + r" \\",
    ]
    body = []
    for name in style.in_order(rows["recorded_as"]):
        line = [escape(style.look(name).label)]
        for dtype, dim in groups:
            found = rows[(rows["recorded_as"] == name) & (rows["dtype"] == dtype) & (rows["dim"] == dim)]
            for kind in GRADIENTS:
                value = None if found.empty else float(found.iloc[0][kind])
                mark = r"$^\dagger$" if len(found) and found.iloc[0]["status"] == "wrong" else ""
                line.append(decimals(value) + (mark if value is not None else ""))
        body.append(line)
    caption = (
        f"What forward and backward hold at most on {escape(machine.title)}, {shape(rows)}, $T={counts(rows['T'])}$, "
        r"in tensors of the size of the tokens: gates, tokens, states, both gradients, and the incoming one, which is "
        r"\emph{dense}, or one number \emph{expanded} to the shape, as a sum sends it. Five and six are all that a "
        "scan can do with."
        + (r" $^\dagger$: the result is outside its error budget." if (rows["status"] == "wrong").any() else "")
    )
    return table(f"tab:memory:{machine.slug}", "l" + "rr" * len(groups), head, body, caption)
