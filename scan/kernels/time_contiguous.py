"""Scans along a contiguous time axis: forward, and backward fused with the gate gradient.

A program owns R rows and walks them tile by tile. A tile is N groups of V neighbouring steps. A thread holds whole
groups, so that loads are 16 bytes wide, the recurrence inside a group runs in registers, and only one pair a group
takes part in the parallel scan (Blelloch 1990, section 1.4: a recurrence is a scan of its coefficient pairs).

Scan order is the order in which a kernel meets the steps: ascending time, or descending where DESCENDING. Groups are
numbered and columns named in scan order, so that a descending scan loads and shuffles no more than an ascending one.

Packed sequences are one line with resets. A reset selects; a gate of zero would not do, since 0 * Inf is NaN.
Both kernels use a grid of `cdiv(n_rows, R)` programs. State tensors (`initial`, `final`) are contiguous `[N, n_rows]`,
N = 1 where nothing is packed.
"""

import triton
import triton.language as tl

from scan.kernels.columns import load_columns, load_flags, store_columns


@triton.jit
def compose(gate_l, state_l, gate_le, state_le, gate_r, state_r, gate_re, state_re):
    """The map of the left groups, then that of the right ones; beside it (e) the same without the last group."""
    return gate_l * gate_r, state_l * gate_r + state_r, gate_l * gate_re, state_l * gate_re + state_re


@triton.jit
def compose_with_resets(
    gate_l, state_l, reset_l, gate_le, state_le, reset_le, gate_r, state_r, reset_r, gate_re, state_re, reset_re
):
    """`compose` where a reset on the right forgets what lies to its left."""
    state = tl.where(reset_r != 0, state_r, state_l * gate_r + state_r)
    state_e = tl.where(reset_re != 0, state_re, state_l * gate_re + state_re)
    return gate_l * gate_r, state, reset_l | reset_r, gate_l * gate_re, state_e, reset_l | reset_re


@triton.jit
def enter_groups(gate, state, reset, carry, PACKED: tl.constexpr):
    """State before each group `[R, N]`, from the groups' maps and the state before the tile `[R, 1]`."""
    one = tl.full(gate.shape, 1.0, gate.dtype)
    zero = tl.zeros(gate.shape, gate.dtype)
    if PACKED:
        unset = tl.zeros(gate.shape, tl.int32)
        _, _, _, gate, state, reset = tl.associative_scan(
            (gate, state, reset, one, zero, unset), 1, compose_with_resets
        )
        return tl.where(reset != 0, state, state + gate * carry)
    else:
        _, _, gate, state = tl.associative_scan((gate, state, one, zero), 1, compose)
        return state + gate * carry


@triton.jit
def last_group(value, N: tl.constexpr):
    """The value of the last group of each row: `[R, N]` to `[R, 1]`."""
    return tl.sum(tl.where(tl.arange(0, N)[None, :] == N - 1, value, 0.0), 1)[:, None]


@triton.jit
def load_gates(pointer, base, stride, position, end, rows, V: tl.constexpr, VECTOR: tl.constexpr,
               EVEN: tl.constexpr, DESCENDING: tl.constexpr, LOG: tl.constexpr, dtype: tl.constexpr):
    """Gates in scan order; 1, the identity, outside the row."""
    if LOG:
        logs = load_columns(pointer, base, stride, position, end, rows, 0.0, V, VECTOR, EVEN, DESCENDING, dtype)
        gates = ()
        for k in tl.static_range(V):
            gates = gates + (tl.exp(logs[k]),)
        return gates
    else:
        return load_columns(pointer, base, stride, position, end, rows, 1.0, V, VECTOR, EVEN, DESCENDING, dtype)


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "gates_b", "gates_c", "tokens_b", "tokens_c", "states_b", "states_c",
    ]
)  # fmt: skip
def forward(
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr,
    flags_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    GATES_VECTOR: tl.constexpr, TOKENS_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`h[t] = g[t] * h[t-1] + x[t]` for R rows; [t+1] where DESCENDING."""
    PACKED: tl.constexpr = flags_ptr is not None
    BLOCK: tl.constexpr = N * V
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    rows = row < n_rows
    gates_base = row // C * gates_b + row % C * gates_c
    tokens_base = row // C * tokens_b + row % C * tokens_c
    states_base = row // C * states_b + row % C * states_c
    group = tl.arange(0, N)[None, :].to(TIME)
    if DESCENDING:
        group = N - 1 - group
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    phase = tl.zeros([R, 1], TIME)
    tiles = tl.cdiv(T, BLOCK)
    if not EVEN:
        phase = (states_base % V).to(TIME)
        tiles = tl.cdiv(T + V - 1, BLOCK)
    if ONE_TILE:
        tiles = 1
    carry = tl.zeros([R, 1], STATE)
    if initial_ptr is not None:
        if not PACKED:
            carry = tl.load(initial_ptr + row, mask=rows, other=0.0).to(STATE)

    for tile in tl.range(0, tiles):
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        position = index * BLOCK + group * V - phase
        g = load_gates(gates_ptr, gates_base, gates_t, position, T, rows, V, GATES_VECTOR, EVEN, DESCENDING, LOG, STATE)
        x = load_columns(tokens_ptr, tokens_base, tokens_t, position, T, rows, 0.0, V, TOKENS_VECTOR, EVEN, DESCENDING, STATE)
        gate = tl.full([R, N], 1.0, STATE)
        state = tl.zeros([R, N], STATE)
        reset = tl.zeros([R, N], tl.int32)
        first = ()
        last = ()
        before = ()
        if PACKED:
            first, last = load_flags(flags_ptr, position, T, V, EVEN, DESCENDING)
            for k in tl.static_range(V):
                step = position + (V - 1 - k if DESCENDING else k)
                start = tl.zeros([R, N], STATE)
                if initial_ptr is not None:
                    s = tl.load(sequence_ptr + step, mask=first[k], other=0).to(tl.int64)
                    start = tl.load(initial_ptr + s * n_rows + row, mask=first[k] & rows, other=0.0).to(STATE)
                before = before + (start,)
                state = g[k] * tl.where(first[k], start, state) + x[k]
                gate = gate * g[k]
                reset = tl.where(first[k], 1, reset)
        else:
            for k in tl.static_range(V):
                state = g[k] * state + x[k]
                gate = gate * g[k]
        h = enter_groups(gate, state, reset, carry, PACKED)
        states = ()
        for k in tl.static_range(V):
            if PACKED:
                h = g[k] * tl.where(first[k], before[k], h) + x[k]
                step = position + (V - 1 - k if DESCENDING else k)
                out = tl.where(broken, float("nan"), h)
                if final_ptr is not None:
                    s = tl.load(sequence_ptr + step, mask=last[k], other=0).to(tl.int64)
                    tl.store(final_ptr + s * n_rows + row, out, mask=last[k] & rows)
                states = states + (tl.where(broken | (step < used), out, 0.0),)
            else:
                h = g[k] * h + x[k]
                states = states + (h,)
        carry = last_group(h, N)
        store_columns(states_ptr, states_base, states_t, position, T, rows, states, V, STATES_VECTOR, EVEN, DESCENDING)
    if final_ptr is not None:
        if not PACKED:
            tl.store(final_ptr + row, carry, mask=rows)


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "gates_b", "gates_c", "states_b", "states_c", "d_states_b", "d_states_c",
        "d_gates_b", "d_gates_c", "d_tokens_b", "d_tokens_c",
    ]
)  # fmt: skip
def backward(
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
    flags_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    GATES_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr, D_STATES_VECTOR: tl.constexpr,
    D_GATES_VECTOR: tl.constexpr, D_TOKENS_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """Gradients of `forward` for R rows, which it meets in the opposite order (DESCENDING for an ascending forward).

    `d_x[t] = d_h[t] + u`, `d_g[t] = d_x[t] * h[t-1]`, then `u = g[t] * d_x[t]`: what flows into `h[t-1]`.
    """
    PACKED: tl.constexpr = flags_ptr is not None
    BLOCK: tl.constexpr = N * V
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    rows = row < n_rows
    gates_base = row // C * gates_b + row % C * gates_c
    states_base = row // C * states_b + row % C * states_c
    d_states_base = row // C * d_states_b + row % C * d_states_c
    d_gates_base = row // C * d_gates_b + row % C * d_gates_c
    d_tokens_base = row // C * d_tokens_b + row % C * d_tokens_c
    group = tl.arange(0, N)[None, :].to(TIME)
    if DESCENDING:
        group = N - 1 - group
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    phase = tl.zeros([R, 1], TIME)
    tiles = tl.cdiv(T, BLOCK)
    if not EVEN:
        phase = (states_base % V).to(TIME)
        tiles = tl.cdiv(T + V - 1, BLOCK)
    if ONE_TILE:
        tiles = 1
    carry = tl.zeros([R, 1], STATE)
    if d_final_ptr is not None:
        if not PACKED:
            carry = tl.load(d_final_ptr + row, mask=rows, other=0.0).to(STATE)
    if initial_ptr is not None:
        if not PACKED:
            initial = tl.load(initial_ptr + row, mask=rows, other=0.0).to(STATE)

    for tile in tl.range(0, tiles):
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        position = index * BLOCK + group * V - phase
        g = load_gates(gates_ptr, gates_base, gates_t, position, T, rows, V, GATES_VECTOR, EVEN, DESCENDING, LOG, STATE)
        if d_states_ptr is not None:
            d = load_columns(d_states_ptr, d_states_base, d_states_t, position, T, rows, 0.0, V, D_STATES_VECTOR, EVEN, DESCENDING, STATE)
        else:
            d = ()
            for k in tl.static_range(V):
                d = d + (tl.zeros([R, N], STATE),)
        h = ()
        if d_gates_ptr is not None:
            # Beside its own states a group needs one of its neighbour, the state before its earliest step.
            h = load_columns(states_ptr, states_base, states_t, position, T, rows, 0.0, V, STATES_VECTOR, EVEN, DESCENDING, STATE)
            neighbour = position + (-1 if DESCENDING else V)
            h_before = tl.load(states_ptr + states_base + neighbour.to(tl.int64) * states_t,
                               mask=rows & (neighbour >= 0) & (neighbour < T), other=0.0).to(STATE)
            h = h + (h_before,)
        # Flags in scan order: a backward kernel meets the last step of a sequence first.
        first = ()
        last = ()
        entering = ()
        gate = g[0]
        d_x = d[0]
        reset = tl.zeros([R, N], tl.int32)
        if PACKED:
            first, last = load_flags(flags_ptr, position, T, V, EVEN, DESCENDING)
            for k in tl.static_range(V):
                step = position + (V - 1 - k if DESCENDING else k)
                start = tl.zeros([R, N], STATE)
                if d_final_ptr is not None:
                    s = tl.load(sequence_ptr + step, mask=first[k], other=0).to(tl.int64)
                    start = tl.load(d_final_ptr + s * n_rows + row, mask=first[k] & rows, other=0.0).to(STATE)
                entering = entering + (start,)
                if k > 0:
                    d_x = tl.where(first[k], d[k] + start, g[k - 1] * d_x + d[k])
                    gate = gate * g[k]
                else:
                    d_x = d[0] + start
                reset = tl.where(first[k], 1, reset)
        else:
            for k in tl.static_range(1, V):
                d_x = g[k - 1] * d_x + d[k]
                gate = gate * g[k]
        u = enter_groups(gate, g[V - 1] * d_x, reset, carry, PACKED)
        d_x = u
        d_tokens = ()
        d_gates = ()
        for k in tl.static_range(V):
            step = position + (V - 1 - k if DESCENDING else k)
            if k > 0:
                d_x = g[k - 1] * d_x + d[k]
            else:
                d_x = u + d[0]
            if PACKED:
                d_x = tl.where(first[k], d[k] + entering[k], d_x)
                out = tl.where(broken, float("nan"), tl.where(step < used, d_x, 0.0))
            else:
                out = d_x
            d_tokens = d_tokens + (out,)
            if d_gates_ptr is not None:
                h_before = h[k + 1]
                if PACKED:
                    start = tl.zeros([R, N], STATE)
                    if initial_ptr is not None:
                        s = tl.load(sequence_ptr + step, mask=last[k], other=0).to(tl.int64)
                        start = tl.load(initial_ptr + s * n_rows + row, mask=last[k] & rows, other=0.0).to(STATE)
                    h_before = tl.where(last[k], start, h_before)
                elif initial_ptr is not None:
                    h_before = tl.where(step == (0 if DESCENDING else T - 1), initial, h_before)
                d_gate = out * h_before
                if LOG:
                    d_gate = d_gate * g[k]
                if PACKED:
                    d_gate = tl.where(broken | (step < used), d_gate, 0.0)
                d_gates = d_gates + (d_gate,)
            if PACKED:
                if d_initial_ptr is not None:
                    s = tl.load(sequence_ptr + step, mask=last[k], other=0).to(tl.int64)
                    tl.store(d_initial_ptr + s * n_rows + row, out * g[k], mask=last[k] & rows)
        carry = last_group(g[V - 1] * d_x, N)
        if d_tokens_ptr is not None:
            store_columns(d_tokens_ptr, d_tokens_base, d_tokens_t, position, T, rows, d_tokens, V, D_TOKENS_VECTOR, EVEN, DESCENDING)
        if d_gates_ptr is not None:
            store_columns(d_gates_ptr, d_gates_base, d_gates_t, position, T, rows, d_gates, V, D_GATES_VECTOR, EVEN, DESCENDING)
    if d_initial_ptr is not None:
        if not PACKED:
            tl.store(d_initial_ptr + row, carry, mask=rows)
