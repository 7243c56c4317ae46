"""Tables of kernels by shape: for each mode the time of ours, its part of the limit, and the times of its peers."""

from collections.abc import Sequence

import pandas as pd

from paper import style
from paper.cells import ms, one, ratio
from paper.measurements import Machine, Measurements, fraction_of
from paper.typeset import decimals, escape, heading

MODES = ("forward", "backward")


def measured(measurements: Measurements, stem: str) -> list[tuple[Machine, pd.DataFrame]]:
    """Each GPU or CPU with the rows of its kernels, or of its calls where it has no kernels."""
    machines = [*measurements.having(stem, ("paper", "here")), *measurements.having(stem, cpu=True)]
    found = []
    for machine in machines:
        rows = measurements.every(machine, stem)
        rows = rows[rows["mode"].isin(MODES)]
        level = "kernel" if "kernel" in set(rows["level"]) else "api"
        found.append((machine, rows[rows["level"] == level]))
    return [(machine, rows) for machine, rows in found if rows["median_ms"].notna().any()]


def peers(rows: pd.DataFrame) -> list[str]:
    """Whoever else was timed."""
    timed = style.in_order(rows.loc[rows["median_ms"].notna(), "provider"])
    return [name for name in timed if name not in ("ours", "roofline")]


def head(labels: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """The columns of such a table and its head: what tells shapes apart, then the same for each mode."""
    each, first = 2 + len(names), len(labels)
    ends = [(first + 1 + each * i, first + each * (i + 1)) for i in range(len(MODES))]
    lines = [
        " & ".join([*[""] * first, *(rf"\multicolumn{{{each}}}{{c}}{{{style.MODES[mode]}}}" for mode in MODES)])
        + r" \\",
        " ".join(rf"\cmidrule(lr){{{start}-{end}}}" for start, end in ends),
        " & ".join([*labels, *["ours", "limit", *(escape(style.look(name).short) for name in names)] * len(MODES)])
        + r" \\",
    ]
    return "r" * (first + each * len(MODES)), lines


def body(rows: pd.DataFrame, columns: Sequence[str], names: Sequence[str], width: int) -> list[str | list[str]]:
    """A line for each value of `columns`, below a heading for each dtype."""
    lines: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        of_dtype = rows[rows["dtype"] == dtype]
        lines.append(heading(dtype, width, first=not lines))
        for values in sorted(set(of_dtype[list(columns)].itertuples(index=False, name=None))):
            at = of_dtype
            for column, value in zip(columns, values, strict=True):
                at = at[at[column] == value]
            line = [str(value) for value in values]
            for mode in MODES:
                line += cells(at[at["mode"] == mode], names)
            lines.append(line)
    return lines


def cells(at: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Ours, its fraction of the roofline with the interval, and its peers in one case."""
    ours = one(at, "ours")
    limit = decimals(None) if ours is None else ratio(fraction_of(ours, "ours"))
    return [ms(ours), limit, *(ms(one(at, name)) for name in names)]
