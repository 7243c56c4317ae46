"""Launch configurations: a pure function of shape, dtype and direction. Nothing is timed at run time.

The tables hold what was fastest on an H200 (docs/kernels.md). `experiment=tuning` measures the candidates on another
card. A configuration never changes which steps a state depends on, only the order in which they are composed.
"""

from __future__ import annotations

from typing import NamedTuple

# Steps of the largest tile that a configuration may have: packed tables are padded by as much.
LARGEST_TILE = 8192
# Bytes of shared memory that scans of a tile need beside what is loaded ahead.
_EXCHANGED = 16384


_Table = tuple[tuple[int | None, tuple[int, int, int, int]], ...]


class Tile(NamedTuple):
    """A tile of `rows` rows, each of `groups` groups of `width` neighbouring steps."""

    rows: int
    groups: int
    width: int
    num_warps: int
    stages: int = 1
    registers: int | None = None
    # Where the programs of a row share it, how many exchange their maps at once; 0: one program walks a row.
    window: int = 0
    # How many tiles of a row programs whose numbers follow one another have, before others have those of the next row.
    run: int = 1

    @property
    def steps(self) -> int:
        """How many steps of a row it holds."""
        return self.groups * self.width


# Longest T, then (rows, groups, num_warps, stages), for 4 steps of 4 bytes a group and for 8 steps of 2 bytes.
_FORWARD = {
    4: ((128, (2, 32, 1, 1)), (256, (1, 64, 1, 1)), (512, (1, 128, 4, 1)), (1024, (1, 256, 8, 1)),
        (2048, (1, 512, 16, 1)), (4096, (1, 512, 8, 1)), (None, (1, 1024, 8, 3))),
    2: ((128, (4, 16, 1, 1)), (256, (2, 32, 1, 1)), (512, (1, 64, 1, 1)), (1024, (1, 128, 4, 1)),
        (2048, (1, 256, 8, 1)), (4096, (1, 256, 4, 3)), (8192, (1, 512, 4, 3)), (16384, (1, 256, 4, 3)),
        (None, (1, 256, 8, 3))),
}  # fmt: skip
_BACKWARD = {
    4: ((128, (1, 32, 1, 1)), (256, (1, 64, 1, 1)), (512, (1, 128, 4, 1)), (1024, (1, 256, 8, 1)),
        (2048, (1, 512, 16, 1)), (None, (1, 256, 4, 1))),
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


# Rows too few to fill a GPU, and long: their programs share a row. Then where sequences are packed, and where rows end
# within a tile.
_SPLIT_FORWARD = {4: Tile(1, 256, 4, 1, registers=128, window=64), 2: Tile(1, 256, 8, 1, window=64)}
_SPLIT_BACKWARD = {
    4: Tile(1, 256, 4, 1, registers=128, window=64),
    2: Tile(1, 128, 8, 1, registers=96, window=64),
}
_SPLIT_PACKED_FORWARD = {
    4: Tile(1, 256, 4, 1, registers=128, window=32),
    2: Tile(1, 128, 8, 1, registers=128, window=32),
}
_SPLIT_PACKED_BACKWARD = {4: Tile(1, 128, 4, 1, window=64), 2: Tile(1, 64, 8, 1, window=32)}
_SPLIT_RAGGED_FORWARD = {4: Tile(1, 512, 4, 4, window=128), 2: Tile(1, 256, 8, 4, window=128)}
_SPLIT_RAGGED_BACKWARD = {4: Tile(1, 256, 4, 4, window=128), 2: Tile(1, 128, 8, 4, window=128)}
# Longer rows of whole tiles of 4 bytes, however many: shared in runs, which memory likes better than a program each.
# Packed ones take the tile of forward either way, if sequences are longer on average than so many steps.
_RUNS_FORWARD = Tile(1, 256, 4, 1, registers=128, window=32, run=16)
_RUNS_BACKWARD = Tile(1, 256, 4, 1, registers=160, window=64, run=64)
_SHORT_SEQUENCES = 255
_WALKED_FORWARD, _WALKED_BACKWARD = 8192, 4096
_FEW_ROWS, _LONG = 384, 16384


def time_contiguous(
    T: int, itemsize: int, *, backward: bool, packed: bool = False, n_sequences: int = 1, n_rows: int = _FEW_ROWS
) -> Tile:
    """Configuration for rows of T contiguous steps of `itemsize` bytes; packed rows hold `n_sequences` sequences."""
    width = max(1, 16 // itemsize)
    nearest = 2 if itemsize == 2 else 4
    if n_rows < _FEW_ROWS and T > _LONG:
        return _split(T, itemsize, backward, packed)
    runs, walked = (_RUNS_BACKWARD, _WALKED_BACKWARD) if backward and not packed else (_RUNS_FORWARD, _WALKED_FORWARD)
    of_sequence = T // max(1, n_sequences) if packed else T
    if itemsize == 4 and T > walked and T % runs.steps == 0 and of_sequence > _SHORT_SEQUENCES:
        return runs
    if packed and T > 512:
        table = (_PACKED_BACKWARD if backward else _PACKED_FORWARD)[nearest]
        rows, groups, num_warps, stages = _of_length(of_sequence, table)
    else:
        rows, groups, num_warps, stages = _of_length(T, (_BACKWARD if backward else _FORWARD)[nearest])
        if T > groups * width and T % (groups * width):
            ragged = (_RAGGED_BACKWARD if backward else _RAGGED_FORWARD)[nearest]
            rows, groups, num_warps, stages = _of_length(T, ragged)
    return Tile(rows, groups, width, num_warps, stages)


def _split(T: int, itemsize: int, backward: bool, packed: bool) -> Tile:
    width = max(1, 16 // itemsize)
    whole = _SPLIT_BACKWARD if backward else _SPLIT_FORWARD
    if packed:
        whole = _SPLIT_PACKED_BACKWARD if backward else _SPLIT_PACKED_FORWARD
    tile = whole[2 if itemsize == 2 else 4]
    if T % (tile.groups * width):
        tile = (_SPLIT_RAGGED_BACKWARD if backward else _SPLIT_RAGGED_FORWARD)[2 if itemsize == 2 else 4]
    # Numbers of 8 bytes take two registers each.
    return tile._replace(width=width, registers=None if itemsize == 8 else tile.registers)


def _of_length(T: int, table: _Table) -> tuple[int, int, int, int]:
    return next(entry for longest, entry in table if longest is None or longest >= T)


# Both directions of the same rows: the most steps, then the tile. More rows or groups a thread have more bytes under
# way, until registers leave room for fewer programs. Of rows that no tile holds programs share each, at most `window`.
_SHARED_FORWARD = {
    4: ((128, Tile(2, 32, 4, 1)), (256, Tile(1, 64, 4, 1)), (512, Tile(1, 128, 4, 2)), (1024, Tile(1, 256, 4, 4)),
        (2048, Tile(1, 512, 4, 4)), (4096, Tile(1, 1024, 4, 4)), (8192, Tile(1, 2048, 4, 8, registers=128)),
        (131072, Tile(1, 256, 4, 1, registers=128, window=128))),
    2: ((128, Tile(4, 16, 8, 1, registers=80)), (256, Tile(2, 32, 8, 1)), (512, Tile(1, 64, 8, 1)),
        (1024, Tile(1, 128, 8, 2)), (2048, Tile(1, 256, 8, 4)), (4096, Tile(1, 512, 8, 4)),
        (8192, Tile(1, 1024, 8, 8)), (16384, Tile(1, 128, 8, 1, registers=80, window=128)),
        (131072, Tile(1, 256, 8, 2, registers=80, window=128))),
}  # fmt: skip
_SHARED_BACKWARD = {
    4: ((128, Tile(1, 32, 4, 1)), (256, Tile(1, 64, 4, 1)), (512, Tile(1, 128, 4, 4)), (1024, Tile(1, 256, 4, 8)),
        (2048, Tile(1, 512, 4, 4)), (4096, Tile(1, 1024, 4, 8)), (16384, Tile(1, 128, 4, 1, window=128)),
        (131072, Tile(1, 256, 4, 1, window=128))),
    2: ((128, Tile(2, 16, 8, 1)), (256, Tile(1, 32, 8, 1)), (512, Tile(1, 64, 8, 1)), (1024, Tile(1, 128, 8, 4)),
        (2048, Tile(1, 256, 8, 4)), (4096, Tile(1, 512, 8, 4)), (16384, Tile(1, 128, 8, 1, window=128)),
        (131072, Tile(1, 256, 8, 2, window=128))),
}  # fmt: skip
# How many registers a thread of such a tile of one warp may take where a sum alone is wanted, of 2 bytes, or comes in,
# of 4: it holds a tensor less.
_SUM_FORWARD, _SUM_BACKWARD = 72, 168


def shared(
    T: int, itemsize: int, *, backward: bool, even: bool, n_rows: int = _FEW_ROWS, added: bool = False
) -> Tile | None:
    """Configuration for both directions of `n_rows` rows of T contiguous steps; None where two scans are as fast.

    Rows that are not `even` begin or end within a vector. Of both directions the sum alone may be `added`.
    """
    width = 16 // itemsize
    steps = T if even else T + width - 1
    table = (_SHARED_BACKWARD if backward else _SHARED_FORWARD).get(itemsize, ())
    # The largest tile is worth it where a row fills three quarters.
    filled = [
        tile for longest, tile in table if longest >= steps and (tile.steps < LARGEST_TILE or 4 * T >= 3 * longest)
    ]
    tile = filled[0] if filled else None
    if tile is None:
        return None
    if not even:
        # Groups that are cut take more registers: a thread holds two at most.
        if tile.window or tile.groups > 512:
            return None
        return tile._replace(num_warps=max(tile.num_warps, tile.groups // 64), registers=None)
    # Of few long rows either direction alone is split.
    if tile.window and n_rows < _FEW_ROWS and T > _LONG:
        return None
    if added and tile.window and tile.num_warps == 1 and itemsize == (4 if backward else 2):
        return tile._replace(registers=_SUM_BACKWARD if backward else _SUM_FORWARD)
    return tile


def programs_at_once(tile: Tile) -> int:
    """How many programs a multiprocessor has room for at least: a thread takes 255 of 65536 registers at most."""
    return 8 // tile.num_warps


# Channels last: longest T, then a tile for 4 bytes and for 2 bytes.
_LAST_FORWARD = {
    4: ((4096, Tile(32, 8, 8, 4, 2)), (None, Tile(64, 16, 8, 8))),
    2: ((1024, Tile(32, 8, 8, 4, 3)), (None, Tile(128, 8, 8, 8, 4))),
}
_LAST_BACKWARD = {
    4: ((None, Tile(64, 8, 8, 8)),),
    2: ((1024, Tile(64, 4, 8, 4, 4)), (None, Tile(128, 8, 8, 8, 3))),
}
# The same for fewer channels (of all batch entries) than fill a GPU in blocks of 64, and for few, whose programs share
# a row unless it is short.
_LAST_SOME_FORWARD = {4: Tile(32, 32, 8, 8, 3), 2: Tile(32, 32, 8, 4, 5)}
_LAST_SOME_BACKWARD = {4: Tile(32, 32, 4, 4, 3), 2: Tile(32, 16, 8, 4, 4)}
_LAST_FEW_FORWARD = {4: Tile(16, 16, 16, 8, window=32), 2: Tile(16, 16, 16, 8, window=32)}
_LAST_FEW_BACKWARD = {4: Tile(16, 8, 16, 4, window=32), 2: Tile(16, 8, 16, 4, window=32)}
_LAST_FEW_SHORT = {4: Tile(16, 32, 8, 8), 2: Tile(8, 32, 8, 8, 2)}
# Steps whose channels begin anywhere: narrow accesses.
_LAST_ODD_FORWARD = {4: Tile(64, 4, 16, 8), 2: Tile(32, 4, 16, 4, 2)}
_LAST_ODD_BACKWARD = {4: Tile(128, 4, 8, 8, 2), 2: Tile(128, 2, 16, 8, 2)}
_SOME, _FEW, _FEW_LONG = 8192, 2048, 1024


def channels_last(T: int, C: int, itemsize: int, *, backward: bool, n_rows: int = _SOME) -> Tile:
    """Configuration for T steps of C contiguous channels of `itemsize` bytes, `n_rows` with those of all entries."""
    nearest = 2 if itemsize == 2 else 4
    if T <= 64:
        tile = Tile(32, min(16, max(2, 1 << max(-(-T // 4) - 1, 0).bit_length())), 4, 4)
    elif n_rows < _FEW and T < _FEW_LONG:
        tile = _LAST_FEW_SHORT[nearest]
    elif n_rows < _FEW:
        tile = (_LAST_FEW_BACKWARD if backward else _LAST_FEW_FORWARD)[nearest]
    elif C % (32 if nearest == 2 else 16 // itemsize):
        tile = (_LAST_ODD_BACKWARD if backward else _LAST_ODD_FORWARD)[nearest]
    elif n_rows < _SOME:
        tile = (_LAST_SOME_BACKWARD if backward else _LAST_SOME_FORWARD)[nearest]
    else:
        table = (_LAST_BACKWARD if backward else _LAST_FORWARD)[nearest]
        tile = next(tile for longest, tile in table if longest is None or longest >= T)
    if nearest == 2 and tile.stages > 2:
        # Whole blocks of channels, so that no mask comes between the vectors that run ahead.
        rows = min(tile.rows, C & -C)
        tile = tile._replace(rows=rows, groups=tile.groups * tile.rows // rows)
    # Numbers of 8 bytes take two registers each.
    return tile._replace(rows=tile.rows // 2) if itemsize == 8 else tile


def fitted(tile: Tile, step_bytes: int, shared_bytes: int) -> Tile:
    """The tile with as many of its stages as fit into shared memory, and with fewer rows where three would not.

    What is loaded ahead of a step has `step_bytes` bytes. Some room is left for what the threads of a tile exchange.
    """
    if tile.stages <= 2:
        return tile
    room, row = shared_bytes - _EXCHANGED, tile.groups * tile.width * step_bytes
    rows = max(1, min(tile.rows, 1 << max(0, (room // (2 * row)).bit_length() - 1)))
    return tile._replace(rows=rows, stages=max(1, min(tile.stages, 1 + max(0, room) // (rows * row))))


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
