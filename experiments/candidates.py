"""Which launch configurations `experiment=tuning` tries: a modest set, said in full here.

A row of T steps is ceil(T / width) groups of 16 bytes each. Tried are, for time contiguous:

- groups: powers of two; where one tile holds a row, the one that just does; else 128 to 1024, and where rows are packed
  or end within a tile 64 to 512, because there a smaller tile wastes less;
- num_warps: 1 to 16, such that a thread holds 1, 2 or 4 groups;
- rows: 1, and where one tile holds whole rows of at most 2048 steps together also 2, 4 and 8;
- stages: 1 where one tile holds a row, 1 and 3 where up to four do, else 3; where rows are packed 3, and where they end
  within a tile also 4 for one warp.

For rows so few and long that programs share them, and that are a whole number of tiles, a tile a program:

- groups and num_warps: 128 to 1024 groups, num_warps 1 to 8, such that a thread holds 4 or 8 groups: fewer hide less of
  what a program waits for;
- registers: as many as the compiler likes; in one warp also at most 96, 128 and 160, because there a cap decides how
  many programs fit; in two at most 128;
- window: 32 and 64 tiles.

Where such rows end within a tile: 128 to 1024 groups, num_warps 1 to 16, such that a thread holds 1 to 8 groups; where
it holds 4 or 8 also with at most 128 registers a thread, and in one warp 168; a window of 128.

For longer rows of 4 bytes that programs share in runs: those of few long rows that have 512 groups at most and one or
two warps, and runs of 16 tiles, or of as many as a window has.

For both directions of the same gates and tokens, a tile a row, whose groups follow from T, and one stage:

- num_warps: 1 to 32, such that a thread holds 1, 2, 4 or 8 groups of at most 32 steps together;
- rows: 1, and where a row has at most 32 groups, a warp's, also 2 and 4 of them in one warp;
- registers: as many as the compiler likes, and where a thread holds 16 steps or more also at most 80, 96, 112 and 128.

For both directions of longer rows, a tile a program: groups and num_warps of few long rows, 512 groups at most;
registers in one warp also at most 80, 96, 112, 128, 144, 160, 168 and 200, in two 128 and 168.

For channels last, tiles of which a thread holds 16 or 32 elements, in groups of 8 or 16 steps:

- rows: 16 to 64 channels, of 64 bytes at least;
- steps: 64, 128 and 256; where there are fewer channels than 8192, 128 and 256;
- num_warps: 4 and 8;
- stages: 1; 2, which loads ahead into registers, where a thread's elements are 64 bytes at most; 3 for fewer channels
  of 4 bytes in tiles of 256 steps.

For those of 2 bytes also tiles that run ahead in shared memory: rows 32, 64 and 128, groups 8, 16 and 32 of 8 steps,
num_warps 4 and 8, stages 3 to 5, such that a thread holds 16 to 64 elements and 8192 to
32768 of a tensor run ahead. For channels so few that programs share
them: rows 8, 16 and 32, groups 8 and 16 of 8 or 16 steps, num_warps 4 and 8.

And whatever scan/tuning.py chooses now, with which each of the others is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import ModuleType
from typing import Any

from experiments.config import DIRECTIONS, Case
from scan import tuning
from scan.tuning import Tile

GROUPS = (16, 32, 64, 128, 256, 512, 1024)
WARPS = (1, 2, 4, 8, 16)
_GROUPS_OF_A_PART, _GROUPS_OF_A_CUT_PART = (128, 1024), (64, 512)
_MOST_STEPS_OF_ROWS = 2048
_GROUPS_OF_A_THREAD = (1, 2, 4)
_FEW_TILES = 4
_STEPS_OF_A_THREAD, _STEPS_THAT_CROWD = 32, 16
_MANY_CHANNELS = 8192
# Elements of one tensor that run ahead in shared memory.
_LEAST_AHEAD, _MOST_AHEAD = 8192, 32768
_MANY_ROWS = 12288
# Of tiles that programs share: at most so many registers a thread, by num_warps; and their windows.
_LIMITS = {1: (None, 96, 128, 160), 2: (None, 128), 4: (None,), 8: (None,)}
_LIMITS_OF_BOTH = {1: (None, 80, 96, 112, 128, 144, 160, 168, 200), 2: (None, 128, 168), 4: (None,)}
_WINDOWS, _WINDOW = (32, 64), 128


def launch_shape(case: Case) -> dict[str, Any]:
    """What decides the launch of a case beside its T and the size of its elements."""
    return {
        "backward": case.mode == "backward",
        "packed": bool(case.lengths),
        "n_sequences": len(case.sequence_lengths),
        "n_rows": case.B * case.C,
        "channels": case.C if case.dim == -2 else None,
        "directions": case.directions,
    }


def present(
    T: int,
    itemsize: int,
    *,
    backward: bool,
    packed: bool,
    n_sequences: int = 1,
    n_rows: int = _MANY_ROWS,
    channels: int | None = None,
    directions: str = DIRECTIONS[0],
    chooser: ModuleType = tuning,
) -> Tile | None:
    """What scan/tuning.py, or another `chooser` like it, chooses; `channels` of a batch entry where those are last.

    Both directions have a choice of their own where they are `shared`; None elsewhere, and where two scans are as fast.
    """
    if directions != DIRECTIONS[0]:
        if directions != "shared" or channels is not None:
            return None
        return chooser.shared(T, itemsize, backward=backward, even=T * itemsize % 16 == 0, n_rows=n_rows)
    if channels is not None:
        return chooser.channels_last(T, channels, itemsize, backward=backward, n_rows=n_rows)
    return chooser.time_contiguous(
        T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences, n_rows=n_rows
    )


def candidates(
    T: int,
    itemsize: int,
    *,
    backward: bool,
    packed: bool,
    n_rows: int = _MANY_ROWS,
    channels: int | None = None,
    directions: str = DIRECTIONS[0],
    **shape: Any,
) -> list[Tile]:
    """The tiles to be tried, without the present one; the arguments are those of `present`."""
    shape |= {"backward": backward, "packed": packed, "n_rows": n_rows, "channels": channels, "directions": directions}
    chosen = present(T, itemsize, **shape)
    if chosen is None:
        return []
    if directions != DIRECTIONS[0]:
        found = _both_shared(T, itemsize, backward, chosen) if chosen.window else _both_directions(chosen)
    elif channels is not None:
        found = _channels_last(itemsize, n_rows < _MANY_CHANNELS, chosen.window)
    elif chosen.run > 1:
        found = _in_runs(T)
    elif chosen.window:
        found = _split(T, itemsize) if T % chosen.steps == 0 else _split_cut(itemsize)
    else:
        found = _time_contiguous(T, itemsize, packed)
    return [tile for tile in found if tile != chosen]


def _time_contiguous(T: int, itemsize: int, packed: bool) -> list[Tile]:
    width = max(1, 16 // itemsize)
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
    return found


def _by_programs(itemsize: int, limits: Mapping[int, Sequence[int | None]]) -> list[Tile]:
    """Tiles for programs that share a row of whole tiles."""
    return [
        Tile(1, 32 * num_warps * each, 16 // itemsize, num_warps, registers=registers, window=_WINDOW)
        for (num_warps, registers_of), each in product(limits.items(), (4, 8))
        for registers in registers_of
        if 32 * num_warps * each <= 1024
    ]


def _split(T: int, itemsize: int) -> list[Tile]:
    whole = [tile for tile in _by_programs(itemsize, _LIMITS) if T % tile.steps == 0]
    return [tile._replace(window=window) for tile in whole for window in _WINDOWS]


def _in_runs(T: int) -> list[Tile]:
    few = [tile for tile in _split(T, 4) if tile.groups <= 512 and tile.num_warps <= 2]
    return [tile._replace(run=run) for tile in few for run in (16, tile.window)]


def _split_cut(itemsize: int) -> list[Tile]:
    found, width = [], 16 // itemsize
    for groups, num_warps in product((128, 256, 512, 1024), WARPS):
        each = groups // (32 * num_warps)
        if each in (1, 2, 4, 8):
            limits = (None,) if each < 4 else (None, 128) if num_warps > 1 else (None, 128, 168)
            found += [Tile(1, groups, width, num_warps, registers=limit, window=_WINDOW) for limit in limits]
    return found


def _both_directions(chosen: Tile) -> list[Tile]:
    """Tiles of as many groups as the chosen one, because those follow from T."""
    found, groups, width = [], chosen.groups, chosen.width
    for rows, num_warps, each in product((1, 2, 4), (*WARPS, 32), (1, 2, 4, 8)):
        if rows * groups != 32 * num_warps * each or each * width > _STEPS_OF_A_THREAD:
            continue
        if rows > 1 and (groups > 32 or num_warps > 1):
            continue
        limits = (None, 80, 96, 112, 128) if each * width >= _STEPS_THAT_CROWD else (None,)
        found += [Tile(rows, groups, width, num_warps, registers=registers) for registers in limits]
    return found


def _both_shared(T: int, itemsize: int, backward: bool, chosen: Tile) -> list[Tile]:
    """Tiles that programs share; the window holds all of the longest row of the entry of the chosen one."""
    table = (tuning._SHARED_BACKWARD if backward else tuning._SHARED_FORWARD)[itemsize]
    most = next(longest for longest, tile in table if longest >= T and tile == chosen)
    tiles = [tile for tile in _by_programs(itemsize, _LIMITS_OF_BOTH) if tile.groups <= 512]
    return [tile._replace(window=max(tile.window, most // tile.steps)) for tile in tiles]


def _channels_last(itemsize: int, fewer: bool, window: int) -> list[Tile]:
    if window:
        tried = product((8, 16, 32), (8, 16), (8, 16), (4, 8))
        return [
            Tile(rows, groups, width, num_warps, window=window)
            for rows, groups, width, num_warps in tried
            if rows * groups * width // (32 * num_warps) in (16, 32)
        ]
    found = []
    rows_tried, steps_tried = ((16, 32), (128, 256)) if fewer else ((16, 32, 64), (64, 128, 256))
    for rows, steps, num_warps, width in product(rows_tried, steps_tried, (4, 8), (8, 16)):
        elements = rows * steps // (32 * num_warps)
        if rows * itemsize < 64 or elements not in (16, 32):
            continue
        ahead = (2,) if elements * itemsize <= 64 else ()
        pipelined = (3,) if fewer and steps == 256 and itemsize > 2 else ()
        found += [Tile(rows, steps // width, width, num_warps, stages) for stages in (1, *ahead, *pipelined)]
    if itemsize == 2:
        for rows, groups, num_warps, stages in product((32, 64, 128), (8, 16, 32), (4, 8), (3, 4, 5)):
            steps = rows * groups * 8
            if steps // (32 * num_warps) in (16, 32, 64) and _LEAST_AHEAD <= steps * (stages - 1) <= _MOST_AHEAD:
                found.append(Tile(rows, groups, 8, num_warps, stages))
    return found


def words(tile: Tile) -> str:
    """A name that reads: `2x32x4 steps, 1 warps, 1 stages`."""
    name = f"{tile.rows}x{tile.groups}x{tile.width} steps, {tile.num_warps} warps, {tile.stages} stages"
    name += "" if tile.registers is None else f", {tile.registers} registers"
    name += f", window {tile.window}" if tile.window else ""
    return name + (f", runs of {tile.run}" if tile.run > 1 else "")
