"""Which rows a program has, where they begin, and how far memory goes on behind them."""

import triton
import triton.language as tl

from scan.kernels.maps import numbers


@triton.jit
def own_rows(block, C, n_rows, R: tl.constexpr, CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr,
             AXIS: tl.constexpr = 0):
    """Batch entry, channel and number of each row of the block, and which of them exist: `[R, 1]`, or along AXIS 1."""
    i = numbers(R, AXIS).to(tl.int64)
    if CHANNELS_LAST:
        blocks = tl.cdiv(C, R)
        b = (block // blocks).to(tl.int64)
        c = (block % blocks).to(tl.int64) * R + i
        rows = c < C
        row = b * C + c
    else:
        row = block.to(tl.int64) * R + i
        rows = row < n_rows
        b = row // C
        c = row % C
    if EVEN_ROWS:
        rows = tl.full(i.shape, 1, tl.int1)
    return b, c, row, rows


@triton.jit
def row_offset(b, c, row, b_stride, c_stride, FLAT: tl.constexpr, UNIT: tl.constexpr):
    """Where a row begins; simply `row` strides in where one stride serves batch entries and channels (FLAT)."""
    if UNIT:
        return b * b_stride + c
    elif FLAT:
        return row * c_stride
    else:
        return b * b_stride + c * c_stride


@triton.jit
def unaligned(base, T):
    """The same offset, but the compiler cannot see to what it is aligned.

    For wider stores it would move what neighbouring threads hold into one, through shared memory: dearer than storing
    single numbers, which a warp does side by side.
    """
    return base + tl.minimum(T, 0)


@triton.jit
def steps_behind(base, rows, b_stride, c_stride, C, n_rows, V: tl.constexpr):
    """How many steps can be read behind the last of any row of this program before memory may end; V at most."""
    last_row = (n_rows // C - 1).to(tl.int64) * b_stride + (C - 1).to(tl.int64) * c_stride
    return tl.min(tl.min(tl.where(rows, tl.minimum(last_row - base, V), V), 1), 0).to(tl.int32)


@triton.jit
def leaves_row(tile, tiles, end, BLOCK: tl.constexpr, DESCENDING: tl.constexpr, WINDOW: tl.constexpr):
    """Whether this program meets the last steps of its rows, which end at step `end` of the tiles."""
    if WINDOW == 0:
        return tl.full([1, 1], 1, tl.int1)
    elif DESCENDING:
        return tile + 1 == tiles
    else:
        return (end > tile * BLOCK) & (end <= tile * BLOCK + BLOCK)
