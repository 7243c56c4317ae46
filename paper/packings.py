"""What the lengths of a packed case stand for, as far as tables and figures say it."""

import re
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Packing:
    """Sequences packed one behind another."""

    lengths: str
    """As in the record: count x length, or count x shortest..longest, joined by +."""
    tokens: int

    @property
    def _parts(self) -> list[tuple[int, int]]:
        """Count and longest length of each part."""
        found = [re.fullmatch(r"(\d+)x(\d+)(?:\.\.(\d+))?", part) for part in self.lengths.split("+")]
        return [(int(each[1]), int(each[3] or each[2])) for each in found if each]

    @property
    def number(self) -> int:
        """How many sequences."""
        return sum(count for count, _ in self._parts)

    @property
    def longest(self) -> int:
        """The longest of them."""
        return max(length for _, length in self._parts)

    @property
    def shown(self) -> str:
        """In LaTeX, with signs for x and two dots."""
        return self.lengths.replace("x", r"$\times$").replace("+", " + ")


def packings(rows: pd.DataFrame) -> list[Packing]:
    """The packings of some rows, fewest sequences first."""
    found = {Packing(str(lengths), int(T)) for lengths, T in zip(rows["lengths"], rows["T"], strict=True) if lengths}
    return sorted(found, key=lambda packing: (packing.number, packing.lengths))
