"""The forms of a scan in both directions, as figures, tables and numbers name them."""

import pandas as pd

from paper.intervals import UNKNOWN, Interval
from paper.measurements import fraction_of

FORMS = {"branched": "two branches", "shared": "shared", "shared_sum": "shared, added"}
"""By the names of the records."""
PEERS = ("two_launches", "warp_flips")


def forms(rows: pd.DataFrame) -> list[str]:
    """Those that were measured, in order."""
    return [form for form in FORMS if form in set(rows["directions"])]


def over(row: pd.Series | None, peer: str) -> Interval:
    """The time of a peer whose result is right over that of ours, in the case of a row."""
    if row is None or (row["results"].get(peer) or {}).get("status") != "ok":
        return UNKNOWN
    return fraction_of(row, "ours", of=peer)
