"""What a cell of a table of times shows: a time, a ratio with its interval, what others printed."""

import math

import pandas as pd

from paper.intervals import Interval
from paper.measurements import Measurements
from paper.typeset import decimals, escape, significant

PUBLISHED = "associative_scan_triton"


def one(rows: pd.DataFrame, provider: str, **equal: object) -> pd.Series | None:
    """The first row of a provider whose columns have the given values."""
    chosen = rows["provider"] == provider
    for column, value in equal.items():
        chosen &= rows[column] == value
    found = rows[chosen]
    return found.iloc[0] if len(found) else None


def get(row: pd.Series | None, column: str) -> float | None:
    """A number of a row, if there is one."""
    return None if row is None or pd.isna(row[column]) else float(row[column])


def ms(row: pd.Series | None) -> str:
    """A time, marked where the result was wrong; the status where there is no time."""
    value = get(row, "median_ms")
    if row is None or (value is None and row["status"] == "unsupported"):
        return decimals(None)
    if value is None:
        return escape(row["status"])
    return significant(value) + (r"$^\dagger$" if row["status"] == "wrong" else "")


def ratio(interval: Interval) -> str:
    """A ratio and the ends of its interval."""
    point, low, high = interval
    if math.isnan(point):
        return decimals(None)
    return decimals(point) if math.isnan(low) else f"{decimals(point)} ({decimals(low)}--{decimals(high)})"


def unmarked(rows: pd.DataFrame) -> str:
    """What the dagger means, where there is one."""
    return r" $^\dagger$: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""


def printed(measurements: Measurements, level: str) -> dict[tuple[str, str], dict[tuple[str, int], float]]:
    """(mode, GPU) -> (dtype, T) -> the printed speed-up over warp."""
    found: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for machine in measurements.having("speed", ("published",)):
        rows = measurements.of(machine, "speed", level=level, provider=PUBLISHED)
        for mode, dtype, T, value in zip(rows["mode"], rows["dtype"], rows["T"], rows["printed_speedup"], strict=True):
            found.setdefault((mode, machine.name), {})[(dtype, T)] = value
    return found


def short(name: str) -> str:
    """A GPU's name without its memory, for a narrow column."""
    words = [word for word in name.split() if not word.endswith("GB")]
    return escape(" ".join(words).removeprefix("RTX "))


def beside_words(names: list[str]) -> str:
    """What the columns of printed ratios are."""
    if not names:
        return ""
    return (
        f"; \\emph{{{', '.join(map(short, names))}}}: the same ratio as printed for "
        rf"\texttt{{{escape(PUBLISHED)}}} on that GPU, where it was"
    )
