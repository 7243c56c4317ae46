"""Words that captions take from records: shapes, counts, how it was timed, what is not right."""

import pandas as pd

from paper import style
from paper.typeset import escape, listed, significant


def shape(rows: pd.DataFrame) -> str:
    """B and C, where all rows share them."""
    return ", ".join(f"${name}={counts(rows[name])}$" for name in ("B", "C"))


def counts(values: pd.Series) -> str:
    """One number, or the least and the greatest."""
    least, greatest = int(values.min()), int(values.max())
    return str(least) if least == greatest else rf"{least}\text{{--}}{greatest}"


def conditions(rows: pd.DataFrame) -> str:
    """How the records say that they were timed."""
    ways = {"graph_replay": "device time by graph replay", "events": "device events", "host_clock": "wall time"}
    said = [ways[way] for way in sorted(set(rows["timing"].dropna()))]
    said += [f"{way} L2 cache" for way in sorted(set(rows["l2"].dropna()))]
    return f" ({escape(', '.join(said))})" if said else ""


def hollow(rows: pd.DataFrame) -> str:
    """Whose results are wrong and therefore drawn hollow."""
    wrong = rows[rows["status"] == "wrong"]
    names = [style.look(provider).label for provider in style.in_order(wrong["provider"])]
    if not names:
        return ""
    return (
        f"Hollow: the result is outside its error budget ({escape(listed(names))}, {len(wrong)} of {len(rows)} points)."
    )


def above_roofline(rows: pd.DataFrame) -> str:
    """In how many cases a provider beats the roofline, which is then not the limit that it should be."""
    cases = rows[rows["roofline_exceeded_by"].notna()]
    if cases.empty:
        return ""
    most = cases["roofline_exceeded_by"].max()
    return (
        f"In {cases['case_id'].nunique()} of {rows['case_id'].nunique()} cases a provider is above the roofline by "
        f"more than 2\\,\\% (at most {100 * (most - 1):.0f}\\,\\%): the limit itself was measured too slow there."
    )


def widest(rows: pd.DataFrame, median: str = "median_ms", low: str = "low_ms", high: str = "high_ms") -> str:
    """How far the widest 95 % interval of a median reaches, relative to the median."""
    reach = pd.concat([rows[high] / rows[median] - 1, 1 - rows[low] / rows[median]]).max()
    if pd.isna(reach):
        return ""
    return f"The widest 95\\,\\% interval of a median reaches {significant(100 * reach, 2)}\\,\\% from it."
