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
def place(pointer, base, stride, group, phase, V: tl.constexpr, VECTOR: tl.constexpr, STRIPS: tl.constexpr):
    """The rows of a tensor as `load_columns` and `store_columns` take them.

    `base` is the offset of step 0 of each row `[R, 1]`, `group` the numbers of the groups in time `[1, N]`; the first
    group begins `phase` steps before the row. Pointers lead to all steps of the groups of the first tile, `[R, N, V]`,
    if VECTOR, else to their earliest, `[R, N]`. STRIPS: to those of the first strip of 32 groups instead, and the
    offsets of strips, which are constants of a thread, are added last; Triton before 3.7 keeps an address for each.
    """
    strip = 0
    if VECTOR:
        # The first group begins at a multiple of V: a product shows the compiler that vectors are aligned.
        aligned = ((base - phase).to(tl.uint64) // V * V).to(tl.int64)
        if STRIPS:
            strip = ((group & -32) * V)[:, :, None]
            group = group & 31
        at = pointer + aligned[:, :, None] + (group * V)[:, :, None] + tl.arange(0, V)[None, None, :]
    else:
        at = pointer + base + (group * V - phase).to(tl.int64) * stride
    return at, pointer + base, stride, strip


@triton.jit
def load_columns(row, tile, other, outside, V: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr,
                 WHOLE: tl.constexpr, DESCENDING: tl.constexpr, dtype: tl.constexpr):
    """Columns `[R, N]` in scan order of groups of V steps; `outside` in groups outside the row.

    `row` is what `place` made. `tile` is the tile's first step, the earliest step of each group `[R, N]`, the length T
    of rows, and which rows exist `[R, 1]`. Groups that are partly outside are read whole, for `own_columns` to mend,
    where memory goes on for `spare` more steps behind any row, V at most; elsewhere steps outside are `other`.
    """
    at, _, stride, strip = row
    start, position, T, rows, spare = tile
    if VECTOR:
        inside = rows
        if not EVEN:
            inside = rows & (position + V > 0) & (position + V <= T + spare)
        elif not WHOLE:
            inside = rows & (position >= 0) & (position < T)
        values = tl.load(at + start + strip, mask=tl.broadcast_to(inside[:, :, None], at.shape), other=outside)
        columns = split_columns(values.to(dtype), V)
    else:
        columns = ()
        for k in tl.static_range(V):
            inside = rows
            if not WHOLE:
                inside = rows & (position + k >= 0) & (position + k < T)
            step = at + (start.to(tl.int64) + k) * stride
            single = tl.load(step, mask=tl.broadcast_to(inside, at.shape), other=other)
            columns = columns + (single.to(dtype),)
    return in_scan_order(columns, V, DESCENDING)


@triton.jit
def place_block(pointer, base, stride, group, ahead, V: tl.constexpr):
    """The steps of a tile of neighbouring channels as `load_block` takes them: pointers `[N * V, R]`, and their steps.

    `base` is the offset of step 0 of each row `[1, R]`, `group` the numbers of the groups in time `[N, 1]`; what is
    read for a step lies `ahead` steps after it.
    """
    N: tl.constexpr = group.shape[0]
    step = tl.reshape(tl.broadcast_to(group * V, [N, V]) + tl.arange(0, V)[None, :], [N * V, 1]) + ahead
    return pointer + base + step.to(tl.int64) * stride, step, stride


@triton.jit
def load_block(block, start, T, rows, other, V: tl.constexpr, WHOLE: tl.constexpr, DESCENDING: tl.constexpr,
               dtype: tl.constexpr):
    """`load_columns` of neighbouring channels `[N, R]`, all steps of the tile at `start` at once.

    One load can run ahead in shared memory, in the widest pieces, whatever the threads hold that scan.
    """
    at, step, stride = block
    BLOCK: tl.constexpr = at.shape[0]
    R: tl.constexpr = at.shape[1]
    inside = rows
    if not WHOLE:
        inside = rows & (start + step >= 0) & (start + step < T)
    values = tl.load(at + start.to(tl.int64) * stride, mask=tl.broadcast_to(inside, at.shape), other=other)
    groups = tl.permute(tl.reshape(values, [BLOCK // V, V, R]), (0, 2, 1))
    return in_scan_order(in_state_dtype(split_columns(groups, V), V, dtype), V, DESCENDING)


@triton.jit
def tile_place(tile, tiles, first_step, T, rows, spare, BLOCK: tl.constexpr, DESCENDING: tl.constexpr):
    """Where a tile lies, as `load_columns` takes it; of the last one where `tile` in scan order is no longer there."""
    index = tl.minimum(tile, tiles - 1)
    if DESCENDING:
        index = tiles - 1 - index
    start = index.to(T.dtype) * BLOCK
    return start, start + first_step, T, rows, spare


@triton.jit
def load_raw(row, tile, other, V: tl.constexpr, WHOLE: tl.constexpr, DESCENDING: tl.constexpr):
    """`load_columns` of neighbouring channels, in the dtype that they have in memory."""
    return load_columns(row, tile, other, 0.0, V, False, True, WHOLE, DESCENDING, row[0].dtype.element_ty)


@triton.jit
def in_state_dtype(columns, V: tl.constexpr, dtype: tl.constexpr):
    """Columns of another dtype."""
    converted = ()
    for k in tl.static_range(V):
        converted = converted + (columns[k].to(dtype),)
    return converted


@triton.jit
def held(columns, V: tl.constexpr, DESCENDING: tl.constexpr):
    """Columns of 16 bits in scan order two in a word, as they were loaded; others as they are."""
    if columns[0].dtype.primitive_bitwidth == 16:
        columns = in_scan_order(columns, V, DESCENDING)
        words = ()
        for k in tl.static_range(V // 2):
            low = columns[2 * k].to(tl.uint16, bitcast=True).to(tl.uint32)
            high = columns[2 * k + 1].to(tl.uint16, bitcast=True).to(tl.uint32)
            words = words + (low | (high << 16),)
        return words
    else:
        return columns


@triton.jit
def taken_up(words, nothing, V: tl.constexpr, DESCENDING: tl.constexpr, loaded: tl.constexpr, dtype: tl.constexpr):
    """What `held` was given, of the dtype `loaded`, as columns of another; `nothing` is zero.

    The compiler is not to know that it is: it would keep what was made of these columns before, not make it again.
    """
    if loaded.primitive_bitwidth == 16:
        columns = ()
        for k in tl.static_range(V // 2):
            word = words[k] | nothing
            low = (word & 0xFFFF).to(tl.uint16).to(loaded, bitcast=True)
            high = (word >> 16).to(tl.uint16).to(loaded, bitcast=True)
            columns = columns + (low.to(dtype), high.to(dtype))
        return in_scan_order(columns, V, DESCENDING)
    else:
        columns = ()
        for k in tl.static_range(V):
            word = words[k].to(tl.uint32, bitcast=True) | nothing
            columns = columns + (word.to(loaded, bitcast=True).to(dtype),)
        return columns


@triton.jit
def load_neighbour(before_row, tile, stride, V: tl.constexpr, DESCENDING: tl.constexpr):
    """The state before the earliest step of each group in scan order, `[R, N]`."""
    start, position, T, rows, _ = tile
    neighbour = position + (-1 if DESCENDING else V)
    inside = rows & (neighbour >= 0) & (neighbour < T)
    return tl.load(before_row + start.to(tl.int64) * stride, mask=inside, other=0.0)


@triton.jit
def own_columns(row, tile, columns, other, V: tl.constexpr, VECTOR: tl.constexpr, DESCENDING: tl.constexpr,
                dtype: tl.constexpr):
    """Columns of a tile at an edge of rows that begin or end within groups: `other` outside the row."""
    if VECTOR:
        _, origin, _, _ = row
        _, position, T, rows, spare = tile
        own = ()
        for k in tl.static_range(V):
            step = position + (V - 1 - k if DESCENDING else k)
            own = own + (tl.where(rows & (step >= 0) & (step < T), columns[k], other),)
        if spare < V - 1:
            # The last group of the tensor, of which nothing was read.
            unread = rows & (position + V > T + spare)
            patched = ()
            for k in tl.static_range(V):
                step = position + (V - 1 - k if DESCENDING else k)
                alone = unread & (step >= 0) & (step < T)
                single = tl.load(origin + step, mask=alone, other=other).to(dtype)
                patched = patched + (tl.where(alone, single, own[k]),)
            own = patched
        return own
    else:
        return columns


@triton.jit
def store_columns(row, tile, edge, columns, V: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr,
                  WHOLE: tl.constexpr, DESCENDING: tl.constexpr):
    """Writes what `load_columns` reads; nothing outside the row. At an `edge` groups may be partly outside."""
    at, origin, stride, strip = row
    start, position, T, rows, _ = tile
    dtype = at.dtype.element_ty
    columns = in_scan_order(columns, V, DESCENDING)
    if VECTOR:
        whole = rows
        if not EVEN:
            whole = rows & (position >= 0) & (position + V <= T)
        elif not WHOLE:
            whole = rows & (position >= 0) & (position < T)
        values = join_columns(columns, V).to(dtype)
        tl.store(at + start + strip, values, mask=tl.broadcast_to(whole[:, :, None], at.shape))
        if not EVEN:
            if edge:
                for k in tl.static_range(V):
                    single = rows & (whole == 0) & (position + k >= 0) & (position + k < T)
                    tl.store(origin + position + k, columns[k].to(dtype), mask=single)
    else:
        for k in tl.static_range(V):
            inside = rows
            if not WHOLE:
                inside = rows & (position + k >= 0) & (position + k < T)
            step = at + (start.to(tl.int64) + k) * stride
            tl.store(step, columns[k].to(dtype), mask=tl.broadcast_to(inside, at.shape))


@triton.jit
def load_bits(words_ptr, start, first_step, BLOCK: tl.constexpr, V: tl.constexpr, EVEN: tl.constexpr):
    """The bits of the V steps of each group, the earliest lowest, from words that hold step t in bit t + 64.

    The tile of BLOCK steps begins at step `start`, its groups `first_step` behind.
    """
    step = first_step
    word = words_ptr + 2
    if BLOCK % 32 == 0:
        word += start >> 5
    else:
        step += start
    shift = (step & 31).to(tl.uint32)
    bits = tl.load(word + (step >> 5)).to(tl.uint32, bitcast=True)
    if EVEN:
        bits = bits >> shift
    else:
        ahead = tl.load(word + (step >> 5) + 1).to(tl.uint32, bitcast=True)
        bits = (((ahead.to(tl.uint64) << 32) | bits.to(tl.uint64)) >> shift.to(tl.uint64)).to(tl.uint32)
    return bits & ((1 << V) - 1)


@triton.jit
def holds_end(words_ptr, n_words, start, BLOCK: tl.constexpr, EARLIER: tl.constexpr):
    """Whether a sequence begins or ends in the tile of BLOCK steps at `start`, of which some rows have an EARLIER part.

    One byte for each 256 steps says so.
    """
    flags = words_ptr + 2 * n_words + 2
    first = flags.to(tl.pointer_type(tl.int8), bitcast=True)
    if BLOCK == 256:
        flags = first
    elif BLOCK == 512:
        flags = flags.to(tl.pointer_type(tl.int16), bitcast=True)
    elif BLOCK == 2048:
        flags = flags.to(tl.pointer_type(tl.int64), bitcast=True)
    holds = tl.load(flags + start // BLOCK) != 0
    if EARLIER:
        holds |= tl.load(first + tl.maximum(start // 256 - 1, 0)) != 0
    return holds


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
