"""The scan of complex states, forward and backward: gates and tokens may each be complex or real.

A complex tensor is one of pairs: pointers lead to its parts, strides count pairs, PARTS is 2 (1 for a real tensor).
A program owns R rows and walks them in tiles of N groups of V neighbouring steps, as in grouped.py. A tile is
`[R, N * V]` in scan order, once for real and once for imaginary parts. How a tensor moves:

    groups      time is contiguous, rows begin and end with groups: a group is one vector of 16 bytes
    steps       any strides: each step is a vector of its parts
    channels    channels are contiguous, V is 1: a vector holds one step of several of them

Packed sequences are one line with resets, which are an operand of the parallel scan: the product of two complex gates
beyond the range of their dtype is NaN (Inf - Inf), so that NaN cannot mark a reset here.

Grid and state tensors are those of grouped.py.
"""

import triton
import triton.language as tl

from scan.kernels.columns import in_scan_order, join_columns, split_columns
from scan.kernels.rows import own_rows
from scan.kernels.tiles import leave_tile


@triton.jit
def multiply(a_re, a_im, b_re, b_im):
    """`a * b`."""
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit
def compose(gate_re_l, gate_im_l, re_l, im_l, gate_re_r, gate_im_r, re_r, im_r):
    """The map of the left steps, then that of the right ones: `state -> gate * state + (re, im)`."""
    gate_re, gate_im = multiply(gate_re_l, gate_im_l, gate_re_r, gate_im_r)
    re, im = multiply(re_l, im_l, gate_re_r, gate_im_r)
    return gate_re, gate_im, re + re_r, im + im_r


@triton.jit
def compose_with_resets(gate_re_l, gate_im_l, re_l, im_l, reset_l, gate_re_r, gate_im_r, re_r, im_r, reset_r):
    """`compose` of maps that forget what was before where they hold a reset."""
    gate_re, gate_im, re, im = compose(gate_re_l, gate_im_l, re_l, im_l, gate_re_r, gate_im_r, re_r, im_r)
    keep = reset_r == 0
    return gate_re, gate_im, tl.where(keep, re, re_r), tl.where(keep, im, im_r), reset_l | reset_r


@triton.jit
def scan_tile(gate, token, carry, first, PACKED: tl.constexpr):
    """States of a tile from the one before it, `[R, 1]`, of which a sequence that begins in the tile knows nothing."""
    gate_re, gate_im = gate
    re, im = token
    carry_re, carry_im = carry
    if PACKED:
        reset = tl.broadcast_to(first, re.shape).to(tl.int32)
        gate_re, gate_im, re, im, reset = tl.associative_scan(
            (gate_re, gate_im, re, im, reset), 1, compose_with_resets
        )
        before_re, before_im = multiply(gate_re, gate_im, carry_re, carry_im)
        keep = reset == 0
        return tl.where(keep, before_re + re, re), tl.where(keep, before_im + im, im)
    else:
        gate_re, gate_im, re, im = tl.associative_scan((gate_re, gate_im, re, im), 1, compose)
        before_re, before_im = multiply(gate_re, gate_im, carry_re, carry_im)
        return before_re + re, before_im + im


@triton.jit
def exponential(re, im, PARTS: tl.constexpr):
    """Gates from their logarithms."""
    size = tl.exp(re)
    if PARTS == 2:
        return size * tl.cos(im), size * tl.sin(im)
    else:
        return size, im


@triton.jit
def place(pointer, strides, C, n_rows, ahead, R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, PARTS: tl.constexpr,
          MOVE: tl.constexpr, CHANNELS_LAST: tl.constexpr, DESCENDING: tl.constexpr, TIME: tl.constexpr):
    """Where a tensor has the groups of the first tile, `ahead` steps later: for `load_steps` and `store_steps`.

    Pointers lead to groups `[R * N, V * PARTS]`, or to the earliest step of each, `[R * N, PARTS]`; where channels
    move, `[N, R * PARTS]`. Beside them are these steps, which of the rows exist, and the stride of time. With two axes
    every version of Triton keeps a group in one thread.
    """
    b_stride, c_stride, t_stride = strides
    size: tl.constexpr = N if MOVE == "channels" else R * N
    number = tl.arange(0, size) % N
    if DESCENDING:
        number = N - 1 - number
    step = number.to(TIME) * V + ahead
    blocks = tl.cdiv(C, R)
    first = (tl.program_id(0) % blocks if CHANNELS_LAST else tl.program_id(0)).to(tl.int64) * R
    if MOVE == "channels":
        lane = tl.arange(0, R * PARTS)
        base = (tl.program_id(0) // blocks).to(tl.int64) * b_stride + first
        at = pointer + base * PARTS + (step.to(tl.int64) * t_stride * PARTS)[:, None] + lane[None, :]
        exists = (lane < (C - first) * PARTS)[None, :]
    else:
        row = first + tl.arange(0, size) // N
        if CHANNELS_LAST:
            base = (tl.program_id(0) // blocks).to(tl.int64) * b_stride + row * c_stride
            exists = (row < C)[:, None]
        else:
            base = row // C * b_stride + row % C * c_stride
            exists = (row < n_rows)[:, None]
        if MOVE == "groups":
            # A product shows the compiler that vectors are aligned.
            base = (base.to(tl.uint64) // V * V).to(tl.int64)
        part = tl.arange(0, V * PARTS if MOVE == "groups" else PARTS)
        at = pointer + ((base + step.to(tl.int64) * t_stride) * PARTS)[:, None] + part[None, :]
    return at, step, exists, t_stride


@triton.jit
def tile_of(tensor, start, T, k: tl.constexpr, PARTS: tl.constexpr):
    """Pointers and mask of a whole tile, or of step `k` of its groups."""
    at, step, exists, t_stride = tensor
    step = start + step + k
    inside = ((step >= 0) & (step < T))[:, None] & exists
    return at + (start.to(tl.int64) + k) * t_stride * PARTS, tl.broadcast_to(inside, at.shape)


@triton.jit
def load_steps(tensor, start, T, R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, PARTS: tl.constexpr,
               MOVE: tl.constexpr, DESCENDING: tl.constexpr, dtype: tl.constexpr):
    """Real and imaginary parts of the tile at `start`, `[R, N * V]` in scan order; 0 outside of rows."""
    if MOVE == "channels":
        at, inside = tile_of(tensor, start, T, 0, PARTS)
        values = tl.load(at, mask=inside, other=0.0).to(dtype)
        if PARTS == 2:
            re, im = tl.split(tl.reshape(values, [N, R, 2]))
            return tl.trans(re), tl.trans(im)
        else:
            return tl.trans(values), tl.zeros([R, N], dtype)
    else:
        re = ()
        im = ()
        if MOVE == "groups":
            at, inside = tile_of(tensor, start, T, 0, PARTS)
            values = tl.load(at, mask=inside, other=0.0).to(dtype)
            if PARTS == 2:
                a, b = tl.split(tl.reshape(values, [R, N, V, 2]))
                re = split_columns(a, V)
                im = split_columns(b, V)
            else:
                re = split_columns(tl.reshape(values, [R, N, V]), V)
        else:
            for k in tl.static_range(V):
                at, inside = tile_of(tensor, start, T, k, PARTS)
                values = tl.load(at, mask=inside, other=0.0).to(dtype)
                if PARTS == 2:
                    a, b = tl.split(tl.reshape(values, [R, N, 2]))
                    re = re + (a,)
                    im = im + (b,)
                else:
                    re = re + (tl.reshape(values, [R, N]),)
        if PARTS == 1:
            for k in tl.static_range(V):
                im = im + (tl.zeros([R, N], dtype),)
        re = join_columns(in_scan_order(re, V, DESCENDING), V)
        im = join_columns(in_scan_order(im, V, DESCENDING), V)
        return tl.reshape(re, [R, N * V]), tl.reshape(im, [R, N * V])


@triton.jit
def store_steps(tensor, start, T, re, im, R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, PARTS: tl.constexpr,
                MOVE: tl.constexpr, DESCENDING: tl.constexpr):
    """Writes what `load_steps` reads: of a real tensor the real parts."""
    dtype = tensor[0].dtype.element_ty
    re = re.to(dtype)
    im = im.to(dtype)
    if MOVE == "channels":
        at, inside = tile_of(tensor, start, T, 0, PARTS)
        values = tl.trans(re)
        if PARTS == 2:
            values = tl.join(values, tl.trans(im))
        tl.store(at, tl.reshape(values, at.shape), mask=inside)
    else:
        re = in_scan_order(split_columns(tl.reshape(re, [R, N, V]), V), V, DESCENDING)
        im = in_scan_order(split_columns(tl.reshape(im, [R, N, V]), V), V, DESCENDING)
        if MOVE == "groups":
            at, inside = tile_of(tensor, start, T, 0, PARTS)
            values = join_columns(re, V)
            if PARTS == 2:
                values = tl.join(values, join_columns(im, V))
            tl.store(at, tl.reshape(values, at.shape), mask=inside)
        else:
            for k in tl.static_range(V):
                at, inside = tile_of(tensor, start, T, k, PARTS)
                values = re[k]
                if PARTS == 2:
                    values = tl.join(re[k], im[k])
                tl.store(at, tl.reshape(values, at.shape), mask=inside)


@triton.jit
def marked(words_ptr, step):
    """Which of the steps have a mark in a table of bits (packed_table.py)."""
    return ((tl.load(words_ptr + 2 + (step >> 5)) >> (step & 31).to(tl.int32)) & 1) != 0


@triton.jit
def load_states(states_ptr, at, mask, dtype: tl.constexpr):
    """States number `at`; 0 outside of the mask, and everywhere where there are none."""
    if states_ptr is None:
        zero = tl.zeros(mask.shape, dtype)
        return zero, zero
    else:
        re = tl.load(states_ptr + at * 2, mask=mask, other=0.0)
        im = tl.load(states_ptr + at * 2 + 1, mask=mask, other=0.0)
        return re.to(dtype), im.to(dtype)


@triton.jit
def store_states(states_ptr, at, mask, re, im):
    """Writes what `load_states` reads."""
    tl.store(states_ptr + at * 2, re, mask=mask)
    tl.store(states_ptr + at * 2 + 1, im, mask=mask)


@triton.jit
def sequences(sequence_ptr, step, marks, row, n_rows):
    """The numbers of the states of the sequences that have a mark among the steps, `[R, N * V]`."""
    return tl.load(sequence_ptr + step, mask=marks, other=0).to(tl.int64) * n_rows + row


@triton.jit
def blank(value, step, used, broken):
    """NaN where the table of sequences is broken, else 0 from step `used` on."""
    return tl.where(broken, float("nan"), tl.where(step < used, value, 0.0))


@triton.jit(do_not_specialize=["T", "n_rows", "n_sequences", "n_words"])
def forward(
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    GATES_PARTS: tl.constexpr, TOKENS_PARTS: tl.constexpr,
    GATES_MOVE: tl.constexpr, TOKENS_MOVE: tl.constexpr, STATES_MOVE: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`h[t] = g[t] * h[t-1] + x[t]` for R rows; [t+1] where DESCENDING."""
    PACKED: tl.constexpr = words_ptr is not None
    BLOCK: tl.constexpr = N * V
    _, _, row, rows = own_rows(tl.program_id(0), C, n_rows, R, CHANNELS_LAST, False)
    T = T.to(TIME)
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    place_in_tile = tl.arange(0, BLOCK)[None, :].to(TIME)
    if DESCENDING:
        place_in_tile = BLOCK - 1 - place_in_tile
    gates = place(
        gates_ptr, (gates_b, gates_c, gates_t), C, n_rows, 0,
        R, N, V, GATES_PARTS, GATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
    )
    tokens = place(
        tokens_ptr, (tokens_b, tokens_c, tokens_t), C, n_rows, 0,
        R, N, V, TOKENS_PARTS, TOKENS_MOVE, CHANNELS_LAST, DESCENDING, TIME,
    )
    states = place(
        states_ptr, (states_b, states_c, states_t), C, n_rows, 0,
        R, N, V, 2, STATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
    )
    carry_re, carry_im = load_states(None if PACKED else initial_ptr, row, rows, STATE)
    tiles = tl.cdiv(T, BLOCK)

    for tile in tl.range(0, tiles, num_stages=STAGES):
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        start = index.to(TIME) * BLOCK
        step = start + place_in_tile
        g_re, g_im = load_steps(gates, start, T, R, N, V, GATES_PARTS, GATES_MOVE, DESCENDING, STATE)
        re, im = load_steps(tokens, start, T, R, N, V, TOKENS_PARTS, TOKENS_MOVE, DESCENDING, STATE)
        if LOG:
            g_re, g_im = exponential(g_re, g_im, GATES_PARTS)
        # Steps outside the row pass on the state before them.
        g_re = tl.where(step < T, g_re, 1.0)
        first = None
        if PACKED:
            first = marked(words_ptr + (n_words if DESCENDING else 0), step)
            # The first gate multiplies the initial state even where that is 0.
            at = sequences(sequence_ptr, step, first, row, n_rows)
            initial_re, initial_im = load_states(initial_ptr, at, first & rows, STATE)
            before_re, before_im = multiply(g_re, g_im, initial_re, initial_im)
            re = tl.where(first, before_re + re, re)
            im = tl.where(first, before_im + im, im)
        re, im = scan_tile((g_re, g_im), (re, im), (carry_re, carry_im), first, PACKED)
        carry_re = leave_tile(re, carry_re, T - start, 1, DESCENDING)
        carry_im = leave_tile(im, carry_im, T - start, 1, DESCENDING)
        if PACKED:
            re = blank(re, step, used, broken)
            im = blank(im, step, used, broken)
            if final_ptr is not None:
                last = marked(words_ptr + (0 if DESCENDING else n_words), step)
                store_states(final_ptr, sequences(sequence_ptr, step, last, row, n_rows), last & rows, re, im)
        store_steps(states, start, T, re, im, R, N, V, 2, STATES_MOVE, DESCENDING)
    if final_ptr is not None:
        if not PACKED:
            store_states(final_ptr, row, rows, carry_re, carry_im)


@triton.jit(do_not_specialize=["T", "n_rows", "n_sequences", "n_words"])
def backward(
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    GATES_PARTS: tl.constexpr, D_TOKENS_PARTS: tl.constexpr,
    GATES_MOVE: tl.constexpr, MET_GATES_MOVE: tl.constexpr, STATES_MOVE: tl.constexpr, D_STATES_MOVE: tl.constexpr,
    D_GATES_MOVE: tl.constexpr, D_TOKENS_MOVE: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """Gradients of `forward` for R rows, which it meets in the opposite order (DESCENDING for an ascending forward).

    `d_x[t] = d_h[t] + conj(g[t+1]) * d_x[t+1]` is a scan of its own, `d_g[t] = d_x[t] * conj(h[t-1])`; a real
    tensor gets the real part. Gates and states are read one step off.
    """
    PACKED: tl.constexpr = words_ptr is not None
    BLOCK: tl.constexpr = N * V
    MET: tl.constexpr = 1 if DESCENDING else -1
    OWN_GATES: tl.constexpr = (PACKED and d_initial_ptr is not None) or (LOG and d_gates_ptr is not None)
    b, c, row, rows = own_rows(tl.program_id(0), C, n_rows, R, CHANNELS_LAST, False)
    T = T.to(TIME)
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    place_in_tile = tl.arange(0, BLOCK)[None, :].to(TIME)
    if DESCENDING:
        place_in_tile = BLOCK - 1 - place_in_tile
    gates_strides = (gates_b, gates_c, gates_t)
    met_gates = place(
        gates_ptr, gates_strides, C, n_rows, MET,
        R, N, V, GATES_PARTS, MET_GATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
    )
    if OWN_GATES:
        gates = place(
            gates_ptr, gates_strides, C, n_rows, 0,
            R, N, V, GATES_PARTS, GATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
        )
    if d_states_ptr is not None:
        d_states = place(
            d_states_ptr, (d_states_b, d_states_c, d_states_t), C, n_rows, 0,
            R, N, V, 2, D_STATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
        )
    if d_gates_ptr is not None:
        states = place(
            states_ptr, (states_b, states_c, states_t), C, n_rows, -MET,
            R, N, V, 2, STATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
        )
        d_gates = place(
            d_gates_ptr, (d_gates_b, d_gates_c, d_gates_t), C, n_rows, 0,
            R, N, V, GATES_PARTS, D_GATES_MOVE, CHANNELS_LAST, DESCENDING, TIME,
        )
    if d_tokens_ptr is not None:
        d_tokens = place(
            d_tokens_ptr, (d_tokens_b, d_tokens_c, d_tokens_t), C, n_rows, 0,
            R, N, V, D_TOKENS_PARTS, D_TOKENS_MOVE, CHANNELS_LAST, DESCENDING, TIME,
        )
    carry_re, carry_im = load_states(None if PACKED else d_final_ptr, row, rows, STATE)
    if not PACKED:
        initial_re, initial_im = load_states(initial_ptr, row, rows, STATE)
    tiles = tl.cdiv(T, BLOCK)

    for tile in tl.range(0, tiles, num_stages=STAGES):
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        start = index.to(TIME) * BLOCK
        step = start + place_in_tile
        met_re, met_im = load_steps(met_gates, start, T, R, N, V, GATES_PARTS, MET_GATES_MOVE, DESCENDING, STATE)
        re = tl.zeros([R, BLOCK], STATE)
        im = tl.zeros([R, BLOCK], STATE)
        if d_states_ptr is not None:
            re, im = load_steps(d_states, start, T, R, N, V, 2, D_STATES_MOVE, DESCENDING, STATE)
        if LOG:
            met_re, met_im = exponential(met_re, met_im, GATES_PARTS)
        # Steps outside the row pass on the gradient of the final state, and so does its first one.
        met_re = tl.where((step + MET >= 0) & (step + MET < T), met_re, 1.0)
        first = None
        if PACKED:
            # In scan order: a backward kernel meets the last step of a sequence first.
            first = marked(words_ptr + (n_words if DESCENDING else 0), step)
            last = marked(words_ptr + (0 if DESCENDING else n_words), step)
            if d_final_ptr is not None:
                at = sequences(sequence_ptr, step, first, row, n_rows)
                d_final_re, d_final_im = load_states(d_final_ptr, at, first & rows, STATE)
                re = re + d_final_re
                im = im + d_final_im
        re, im = scan_tile((met_re, -met_im), (re, im), (carry_re, carry_im), first, PACKED)
        carry_re = leave_tile(re, carry_re, T - start, 1, DESCENDING)
        carry_im = leave_tile(im, carry_im, T - start, 1, DESCENDING)
        if PACKED:
            re = blank(re, step, used, broken)
            im = blank(im, step, used, broken)
        if d_tokens_ptr is not None:
            store_steps(d_tokens, start, T, re, im, R, N, V, D_TOKENS_PARTS, D_TOKENS_MOVE, DESCENDING)
        if OWN_GATES:
            g_re, g_im = load_steps(gates, start, T, R, N, V, GATES_PARTS, GATES_MOVE, DESCENDING, STATE)
            if LOG:
                g_re, g_im = exponential(g_re, g_im, GATES_PARTS)
        if PACKED:
            if d_initial_ptr is not None:
                d_initial_re, d_initial_im = multiply(re, im, g_re, -g_im)
                at = sequences(sequence_ptr, step, last, row, n_rows)
                store_states(d_initial_ptr, at, last & rows, d_initial_re, d_initial_im)
        if d_gates_ptr is not None:
            h_re, h_im = load_steps(states, start, T, R, N, V, 2, STATES_MOVE, DESCENDING, STATE)
            if PACKED:
                at = sequences(sequence_ptr, step, last, row, n_rows)
                initial_re, initial_im = load_states(initial_ptr, at, last & rows, STATE)
                h_re = tl.where(last, initial_re, h_re)
                h_im = tl.where(last, initial_im, h_im)
            elif initial_ptr is not None:
                at_last = step == (0 if DESCENDING else T - 1)
                h_re = tl.where(at_last, initial_re, h_re)
                h_im = tl.where(at_last, initial_im, h_im)
            re, im = multiply(re, im, h_re, -h_im)
            if LOG:
                re, im = multiply(re, im, g_re, -g_im)
            if PACKED:
                re = blank(re, step, used, broken)
                im = blank(im, step, used, broken)
            store_steps(d_gates, start, T, re, im, R, N, V, GATES_PARTS, D_GATES_MOVE, DESCENDING)
    if d_initial_ptr is not None:
        if not PACKED:
            last_gate = gates_ptr + (b * gates_b + c * gates_c) * GATES_PARTS
            if not DESCENDING:
                last_gate += (T - 1).to(tl.int64) * gates_t * GATES_PARTS
            g_re = tl.load(last_gate, mask=rows, other=0.0).to(STATE)
            g_im = tl.zeros([R, 1], STATE)
            if GATES_PARTS == 2:
                g_im = tl.load(last_gate + 1, mask=rows, other=0.0).to(STATE)
            if LOG:
                g_re, g_im = exponential(g_re, g_im, GATES_PARTS)
            d_initial_re, d_initial_im = multiply(carry_re, carry_im, g_re, -g_im)
            store_states(d_initial_ptr, row, rows, d_initial_re, d_initial_im)
