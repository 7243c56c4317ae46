"""Which launch configurations `experiment=tuning` tries: a modest set, said in full here.

A row of T steps is ceil(T / width) groups of 16 bytes each. Tried are, for time contiguous:

- groups: powers of two; where one tile holds a row, the one that just does; else 128 to 1024, and where rows are packed
  or end within a tile 64 to 512, because there a smaller tile wastes less;
- num_warps: 1 to 16, such that a thread holds 1, 2 or 4 groups;
- rows: 1, and where one tile holds whole rows of at most 2048 steps together also 2, 4 and 8;
- stages: 1 where one tile holds a row, 1 and 3 where up to four do, else 3; where rows are packed 3, and where they end
  within a tile also 4 for one warp.

And whatever scan/tuning.py chooses now, with which each of the others is compared.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from experiments.config import Case
from scan import tuning
from scan.tuning import Tile

GROUPS = (16, 32, 64, 128, 256, 512, 1024)
WARPS = (1, 2, 4, 8, 16)
_GROUPS_OF_A_PART, _GROUPS_OF_A_CUT_PART = (128, 1024), (64, 512)
_MOST_STEPS_OF_ROWS = 2048
_GROUPS_OF_A_THREAD = (1, 2, 4)
_FEW_TILES = 4


def launch_shape(case: Case) -> dict[str, Any]:
    """What decides the launch of a case beside its T and the size of its elements."""
    n_sequences = len(case.sequence_lengths)
    return {"backward": case.mode == "backward", "packed": bool(case.lengths), "n_sequences": n_sequences}


def present(T: int, itemsize: int, *, backward: bool, packed: bool, n_sequences: int = 1) -> Tile:
    """What scan/tuning.py chooses."""
    return tuning.time_contiguous(T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences)


def candidates(T: int, itemsize: int, *, backward: bool, packed: bool, n_sequences: int = 1) -> list[Tile]:
    """The tiles to be tried, without the present one."""
    width = max(1, 16 // itemsize)
    chosen = present(T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences)
    found = []
    for groups, rows, num_warps in product(GROUPS, (1, 2, 4, 8), WARPS):
        tile = groups * width
        if tile > tuning.LARGEST_TILE or rows * groups not in [32 * num_warps * each for each in _GROUPS_OF_A_THREAD]:
            continue
        if tile >= T:
            if tile < 2 * T and (rows == 1 or rows * tile <= _MOST_STEPS_OF_ROWS):
                found.append(Tile(rows, groups, width, num_warps))
            continue
        cut = packed or T % tile != 0
        least, most = _GROUPS_OF_A_CUT_PART if cut else _GROUPS_OF_A_PART
        if rows > 1 or not least <= groups <= most:
            continue
        if cut:
            stages = (3, 4) if num_warps == 1 and not packed else (3,)
        else:
            stages = (1, 3) if T <= _FEW_TILES * tile else (3,)
        found += [Tile(rows, groups, width, num_warps, each) for each in stages]
    return [tile for tile in found if tile != chosen]


def words(tile: Tile) -> str:
    """A name that reads: `2x32x4 steps, 1 warps, 1 stages`."""
    name = f"{tile.rows}x{tile.groups}x{tile.width} steps, {tile.num_warps} warps, {tile.stages} stages"
    return name if tile.registers is None else f"{name}, {tile.registers} registers"
