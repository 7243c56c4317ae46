"""Launch configurations: a pure function of shape, dtype and direction. Nothing is timed at run time.

The tables hold what was fastest on an H200 (docs/kernels.md). `experiment=tuning` measures the candidates on another
card. A configuration never changes which steps a state depends on, only the order in which they are composed.
"""

from __future__ import annotations

from typing import NamedTuple

# Steps of the largest tile that a configuration may have: packed tables are padded by as much.
LARGEST_TILE = 8192


_Table = tuple[tuple[int | None, tuple[int, int, int, int]], ...]


class Tile(NamedTuple):
    """A tile of `rows` rows, each of `groups` groups of `width` neighbouring steps."""

    rows: int
    groups: int
    width: int
    num_warps: int
    stages: int = 1
    registers: int | None = None


# Longest T, then (rows, groups, num_warps, stages), for 4 steps of 4 bytes a group and for 8 steps of 2 bytes.
_FORWARD = {
    4: ((128, (2, 32, 1, 1)), (256, (1, 64, 1, 1)), (512, (1, 128, 4, 1)), (1024, (1, 256, 8, 1)),
        (2048, (1, 512, 16, 1)), (4096, (1, 512, 8, 1)), (None, (1, 1024, 8, 3))),
    2: ((128, (4, 16, 1, 1)), (256, (2, 32, 1, 1)), (512, (1, 64, 1, 1)), (1024, (1, 128, 4, 1)),
        (2048, (1, 256, 8, 1)), (4096, (1, 256, 4, 3)), (8192, (1, 512, 4, 3)), (32768, (1, 512, 8, 3)),
        (None, (1, 256, 8, 3))),
}  # fmt: skip
_BACKWARD = {
    4: ((128, (1, 32, 1, 1)), (256, (1, 64, 1, 1)), (512, (1, 128, 4, 1)), (1024, (1, 256, 8, 1)),
        (2048, (1, 512, 16, 1)), (4096, (1, 256, 4, 1)), (8192, (1, 512, 8, 3)), (None, (1, 256, 8, 3))),
    2: ((128, (2, 16, 1, 1)), (256, (1, 32, 1, 1)), (512, (1, 64, 1, 1)), (1024, (2, 128, 4, 1)),
        (8192, (1, 256, 4, 1)), (None, (1, 256, 4, 3))),
}  # fmt: skip
# The same where a row takes several tiles and ends within one: smaller tiles waste less, and loads run ahead.
_RAGGED_FORWARD = {
    4: ((16384, (1, 256, 4, 3)), (None, (1, 512, 8, 3))),
    2: ((6144, (1, 64, 1, 4)), (16384, (1, 128, 4, 3)), (None, (1, 256, 4, 3))),
}  # fmt: skip
_RAGGED_BACKWARD = {
    4: ((16384, (1, 256, 4, 3)), (None, (1, 512, 8, 3))),
    2: ((16384, (1, 64, 1, 3)), (None, (1, 128, 4, 3))),
}  # fmt: skip
# Rows of packed sequences of more than 512 steps, by the mean length of a sequence: where resets make a step dearer.
_PACKED_FORWARD = {
    4: ((8191, (1, 64, 1, 3)), (None, (1, 256, 8, 3))),
    2: ((8191, (1, 64, 1, 3)), (None, (1, 256, 4, 3))),
}  # fmt: skip
_PACKED_BACKWARD = {
    4: ((255, (1, 64, 1, 3)), (None, (1, 256, 8, 3))),
    2: ((255, (1, 64, 1, 3)), (None, (1, 128, 4, 3))),
}  # fmt: skip


def time_contiguous(T: int, itemsize: int, *, backward: bool, packed: bool = False, n_sequences: int = 1) -> Tile:
    """Configuration for rows of T contiguous steps of `itemsize` bytes; packed rows hold `n_sequences` sequences."""
    width = max(1, 16 // itemsize)
    nearest = 2 if itemsize == 2 else 4
    if packed and T > 512:
        table = (_PACKED_BACKWARD if backward else _PACKED_FORWARD)[nearest]
        rows, groups, num_warps, stages = _of_length(T // max(1, n_sequences), table)
    else:
        rows, groups, num_warps, stages = _of_length(T, (_BACKWARD if backward else _FORWARD)[nearest])
        if T > groups * width and T % (groups * width):
            ragged = (_RAGGED_BACKWARD if backward else _RAGGED_FORWARD)[nearest]
            rows, groups, num_warps, stages = _of_length(T, ragged)
    return Tile(rows, groups, width, num_warps, stages)


def _of_length(T: int, table: _Table) -> tuple[int, int, int, int]:
    return next(entry for longest, entry in table if longest is None or longest >= T)


def channels_last(T: int, C: int, itemsize: int, *, backward: bool) -> Tile:
    """Configuration for T steps of C contiguous channels of `itemsize` bytes."""
    rows = 32 if itemsize >= 4 else 64
    groups = min(32, max(2, 1 << max(-(-T // 4) - 1, 0).bit_length()))
    return Tile(rows, groups, 4, 8 if groups >= 16 else 4)


def complex_time_contiguous(T: int, itemsize: int, *, packed: bool = False) -> Tile:
    """Configuration for rows of T contiguous steps of complex numbers of `itemsize` bytes."""
    width = 16 // itemsize
    # Where steps take more registers, a thread holds one group instead of two.
    longest = 128 if packed or itemsize == 16 else 256
    groups = min(longest, max(32, 1 << max(-(-T // width) - 1, 0).bit_length()))
    return Tile(1, groups, width, min(4, groups // 32), 3 if T > groups * width else 1)


def complex_channels_last(T: int, itemsize: int) -> Tile:
    """Configuration for T steps of contiguous channels of complex numbers of `itemsize` bytes."""
    groups = min(32, max(2, 1 << (T - 1).bit_length()))
    return Tile(128 // itemsize, groups, 1, 4)
