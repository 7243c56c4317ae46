"""Which launch configurations `experiment=tuning` tries: a modest set, said in full here.

A row of T steps is ceil(T / width) groups of 16 bytes each. Tried are, for time contiguous:

- groups: powers of two from 16 to 512, no more than hold a row, and not below 64 where a row takes several tiles;
- num_warps: 1, 2, 4, 8, such that a thread holds 1, 2 or 4 groups;
- rows: 1, and where one tile holds whole rows of at most 1024 steps together also 2, 4 and 8;
- stages: 1 where one tile holds a row, else 1 and 3.

And whatever scan/tuning.py chooses now, with which each of the others is compared.
"""

from __future__ import annotations

from itertools import product

from scan import tuning
from scan.tuning import Tile

GROUPS = (16, 32, 64, 128, 256, 512)
_LEAST_GROUPS_OF_A_PART = 64
_MOST_STEPS_OF_ROWS = 1024
_GROUPS_OF_A_THREAD = (1, 2, 4)


def present(T: int, itemsize: int, *, backward: bool, packed: bool) -> Tile:
    """What scan/tuning.py chooses."""
    return tuning.time_contiguous(T, itemsize, backward=backward, packed=packed)


def candidates(T: int, itemsize: int, *, backward: bool, packed: bool) -> list[Tile]:
    """The tiles to be tried, without the present one."""
    width = max(1, 16 // itemsize)
    chosen = present(T, itemsize, backward=backward, packed=packed)
    found = []
    for groups, rows, num_warps in product(GROUPS, (1, 2, 4, 8), (1, 2, 4, 8)):
        whole = groups * width >= T
        if (groups * width >= 2 * T) or (not whole and groups < _LEAST_GROUPS_OF_A_PART):
            continue
        if rows > 1 and not (whole and rows * groups * width <= _MOST_STEPS_OF_ROWS):
            continue
        if rows * groups not in [32 * num_warps * each for each in _GROUPS_OF_A_THREAD]:
            continue
        for stages in (1,) if whole else (1, 3):
            found.append(Tile(rows, groups, width, num_warps, stages))
    return [tile for tile in found if tile != chosen and tile.groups * tile.width <= tuning.LARGEST_TILE]


def words(tile: Tile) -> str:
    """A name that reads: `2x32x4 steps, 1 warps, 1 stages`."""
    name = f"{tile.rows}x{tile.groups}x{tile.width} steps, {tile.num_warps} warps, {tile.stages} stages"
    return name if tile.registers is None else f"{name}, {tile.registers} registers"
