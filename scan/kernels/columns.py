"""A tile of N groups of V neighbouring steps, held as V columns so that a group stays in one thread's registers.

Loads and stores are as wide as V elements wherever the addresses allow it, for rows that begin anywhere: whole groups
move as vectors, the partial group at each end of a row element by element.
"""

import triton
import triton.language as tl


@triton.jit
def split_columns(tile, V: tl.constexpr):
    """`[R, N, V]` to V tensors `[R, N]`, in registers."""
    R: tl.constexpr = tile.shape[0]
    N: tl.constexpr = tile.shape[1]
    if V == 1:
        return (tl.reshape(tile, [R, N]),)
    elif V == 2:
        a, b = tl.split(tile)
        return (a, b)
    elif V == 4:
        even, odd = tl.split(tl.reshape(tile, [R, N, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        return (a, b, c, d)
    else:
        even, odd = tl.split(tl.reshape(tile, [R, N, 4, 2]))
        even0, even1 = tl.split(tl.reshape(even, [R, N, 2, 2]))
        odd0, odd1 = tl.split(tl.reshape(odd, [R, N, 2, 2]))
        a, e = tl.split(even0)
        c, g = tl.split(even1)
        b, f = tl.split(odd0)
        d, h = tl.split(odd1)
        return (a, b, c, d, e, f, g, h)


@triton.jit
def join_columns(c, V: tl.constexpr):
    """The inverse of `split_columns`."""
    R: tl.constexpr = c[0].shape[0]
    N: tl.constexpr = c[0].shape[1]
    if V == 1:
        return tl.reshape(c[0], [R, N, 1])
    elif V == 2:
        return tl.join(c[0], c[1])
    elif V == 4:
        return tl.reshape(tl.join(tl.join(c[0], c[2]), tl.join(c[1], c[3])), [R, N, 4])
    else:
        even0 = tl.join(c[0], c[4])
        even1 = tl.join(c[2], c[6])
        odd0 = tl.join(c[1], c[5])
        odd1 = tl.join(c[3], c[7])
        even = tl.reshape(tl.join(even0, even1), [R, N, 4])
        odd = tl.reshape(tl.join(odd0, odd1), [R, N, 4])
        return tl.reshape(tl.join(even, odd), [R, N, 8])


@triton.jit
def in_scan_order(columns, V: tl.constexpr, DESCENDING: tl.constexpr):
    """Columns in the order of the recurrence (its own inverse): a renaming, no instruction."""
    if DESCENDING:
        ordered = ()
        for k in tl.static_range(V):
            ordered = ordered + (columns[V - 1 - k],)
        return ordered
    else:
        return columns


@triton.jit
def load_columns(pointer, base, stride, position, end, edge, rows, other, V: tl.constexpr, VECTOR: tl.constexpr,
                 DESCENDING: tl.constexpr, dtype: tl.constexpr):
    """Columns `[R, N]` in scan order of groups of V steps; `other` outside `[0, end)`.

    `base` is the offset of step 0 of each row `[R, 1]`, `position` the earliest step of each group `[R, N]`. Only a
    tile at an `edge` of its row may hold groups that are partly outside.
    """
    if VECTOR:
        first = base + position
        whole = rows & (position >= 0) & (position + V <= end)
        offset = (first // V * V)[:, :, None] + tl.arange(0, V)[None, None, :]
        tile = tl.load(pointer + offset, mask=tl.broadcast_to(whole[:, :, None], offset.shape), other=other)
        columns = split_columns(tile.to(dtype), V)
        if edge:
            patched = ()
            for k in tl.static_range(V):
                inside = rows & (whole == 0) & (position + k >= 0) & (position + k < end)
                single = tl.load(pointer + first + k, mask=inside, other=other).to(dtype)
                patched = patched + (tl.where(inside, single, columns[k]),)
            columns = patched
    else:
        columns = ()
        for k in tl.static_range(V):
            inside = rows & (position + k >= 0) & (position + k < end)
            offset = base + (position + k).to(tl.int64) * stride
            columns = columns + (tl.load(pointer + offset, mask=inside, other=other).to(dtype),)
    return in_scan_order(columns, V, DESCENDING)


@triton.jit
def store_columns(pointer, base, stride, position, end, edge, rows, columns, V: tl.constexpr, VECTOR: tl.constexpr,
                  DESCENDING: tl.constexpr):
    """Writes what `load_columns` reads; nothing outside `[0, end)`."""
    dtype = pointer.dtype.element_ty
    columns = in_scan_order(columns, V, DESCENDING)
    if VECTOR:
        first = base + position
        whole = rows & (position >= 0) & (position + V <= end)
        offset = (first // V * V)[:, :, None] + tl.arange(0, V)[None, None, :]
        mask = tl.broadcast_to(whole[:, :, None], offset.shape)
        tl.store(pointer + offset, join_columns(columns, V).to(dtype), mask=mask)
        if edge:
            for k in tl.static_range(V):
                inside = rows & (whole == 0) & (position + k >= 0) & (position + k < end)
                tl.store(pointer + first + k, columns[k].to(dtype), mask=inside)
    else:
        for k in tl.static_range(V):
            inside = rows & (position + k >= 0) & (position + k < end)
            tl.store(pointer + base + (position + k).to(tl.int64) * stride, columns[k].to(dtype), mask=inside)


@triton.jit
def load_bits(words_ptr, position, V: tl.constexpr, EVEN: tl.constexpr):
    """The bits of the V steps of each group, the earliest lowest, from words that hold step t in bit t + 32."""
    word = words_ptr + ((position >> 5) + 1)
    shift = (position & 31).to(tl.uint32)
    bits = tl.load(word).to(tl.uint32, bitcast=True)
    if EVEN:
        bits = bits >> shift
    else:
        ahead = tl.load(word + 1).to(tl.uint32, bitcast=True)
        bits = (((ahead.to(tl.uint64) << 32) | bits.to(tl.uint64)) >> shift.to(tl.uint64)).to(tl.uint32)
    return bits & ((1 << V) - 1)


@triton.jit
def bit_columns(bits, V: tl.constexpr, DESCENDING: tl.constexpr):
    """V boolean columns in scan order."""
    columns = ()
    for k in tl.static_range(V):
        columns = columns + ((bits & (1 << k)) != 0,)
    return in_scan_order(columns, V, DESCENDING)


@triton.jit
def blank_columns(columns, position, used, broken, V: tl.constexpr, DESCENDING: tl.constexpr):
    """Columns with NaN everywhere where the table is broken, else zeros from step `used` on."""
    blanked = ()
    for k in tl.static_range(V):
        step = position + (V - 1 - k if DESCENDING else k)
        blanked = blanked + (tl.where(broken, float("nan"), tl.where(step < used, columns[k], 0.0)),)
    return blanked
