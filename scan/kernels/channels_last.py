"""Scans along a strided time axis with neighbouring channels in neighbouring lanes (`[..., T, C]`).

A program owns BC channels of one batch entry and walks time in tiles of BT steps, in scan order: ascending time, or
descending where DESCENDING. Rows of a tile are loaded in scan order, so that neither direction needs a reversal.
Grid: `B * cdiv(C, BC)` programs. State tensors are contiguous `[N, B * C]`, N = 1 where nothing is packed.
"""

import triton
import triton.language as tl


@triton.jit
def load_bit(words_ptr, step, mask):
    """The bit of each step in the words of a packed table (packed_table.py); false where masked."""
    return ((tl.load(words_ptr + (step >> 5) + 1, mask=mask, other=0) >> (step & 31).to(tl.int32)) & 1) != 0



@triton.jit
def compose(gate_l, state_l, gate_r, state_r):
    """The map of the left steps, then that of the right ones."""
    return gate_l * gate_r, state_l * gate_r + state_r


@triton.jit
def compose_with_resets(gate_l, state_l, reset_l, gate_r, state_r, reset_r):
    """`compose` where a reset on the right forgets what lies to its left."""
    return gate_l * gate_r, tl.where(reset_r != 0, state_r, state_l * gate_r + state_r), reset_l | reset_r


@triton.jit
def scan_tile(gate, state, reset, carry, PACKED: tl.constexpr):
    """States of a tile `[BT, BC]` from its gates and tokens and the state before it `[1, BC]`."""
    if PACKED:
        gate, state, reset = tl.associative_scan((gate, state, reset), 0, compose_with_resets)
        return tl.where(reset != 0, state, state + gate * carry)
    else:
        gate, state = tl.associative_scan((gate, state), 0, compose)
        return state + gate * carry


@triton.jit(do_not_specialize=["C", "T", "n_rows", "n_sequences", "n_words"])
def forward(
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    BT: tl.constexpr, BC: tl.constexpr, DESCENDING: tl.constexpr, LOG: tl.constexpr, STATE: tl.constexpr,
):
    """`h[t] = g[t] * h[t-1] + x[t]` for BC channels; [t+1] where DESCENDING."""
    PACKED: tl.constexpr = words_ptr is not None
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks).to(tl.int64) * BC + tl.arange(0, BC)[None, :]
    channels = c < C
    row = b * C + c
    i = tl.arange(0, BT)[:, None]
    T = T.to(tl.int64)
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    carry = tl.zeros([1, BC], STATE)
    if initial_ptr is not None:
        if not PACKED:
            carry = tl.load(initial_ptr + row, mask=channels, other=0.0).to(STATE)
    for start in tl.range(0, T, BT):
        t = (start + i).to(tl.int64)
        if DESCENDING:
            t = T - 1 - t
        steps = (t >= 0) & (t < T)
        mask = steps & channels
        x = tl.load(tokens_ptr + b * tokens_b + t * tokens_t + c * tokens_c, mask=mask, other=0.0).to(STATE)
        g = tl.load(gates_ptr + b * gates_b + t * gates_t + c * gates_c, mask=mask, other=0.0 if LOG else 1.0).to(STATE)
        if LOG:
            g = tl.exp(g)
        reset = tl.zeros([BT, BC], tl.int32)
        if PACKED:
            first = load_bit(words_ptr + (n_words if DESCENDING else 0), t, steps)
            last = load_bit(words_ptr + (0 if DESCENDING else n_words), t, steps)
            s = tl.load(sequence_ptr + t, mask=first | last, other=0).to(tl.int64)
            reset = tl.where(first, 1, reset)
            if initial_ptr is not None:
                before = tl.load(initial_ptr + s * n_rows + row, mask=first & channels, other=0.0).to(STATE)
                x = tl.where(first, g * before + x, x)
        h = scan_tile(g, x, reset, carry, PACKED)
        carry = tl.sum(tl.where(i == tl.minimum(BT, T - start) - 1, h, 0.0), 0)[None, :]
        if PACKED:
            out = tl.where(broken, float("nan"), h)
            if final_ptr is not None:
                tl.store(final_ptr + s * n_rows + row, out, mask=last & channels)
            h = tl.where(broken | (t < used), out, 0.0)
        tl.store(states_ptr + b * states_b + t * states_t + c * states_c, h.to(states_ptr.dtype.element_ty), mask=mask)
    if final_ptr is not None:
        if not PACKED:
            tl.store(final_ptr + row, carry, mask=channels)


@triton.jit(do_not_specialize=["C", "T", "n_rows", "n_sequences", "n_words"])
def backward(
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    BT: tl.constexpr, BC: tl.constexpr, DESCENDING: tl.constexpr, LOG: tl.constexpr, STATE: tl.constexpr,
):
    """Gradients of `forward`, which it meets in the opposite order.

    `d_x[t] = d_h[t] + g[t+1] * d_x[t+1]` and `d_g[t] = d_x[t] * h[t-1]`.
    """
    PACKED: tl.constexpr = words_ptr is not None
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks).to(tl.int64) * BC + tl.arange(0, BC)[None, :]
    channels = c < C
    row = b * C + c
    i = tl.arange(0, BT)[:, None]
    T = T.to(tl.int64)
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    # d_x of the step met before; its gate there is read as 1 at the outset, so that d_final enters as it is.
    carry = tl.zeros([1, BC], STATE)
    if d_final_ptr is not None:
        if not PACKED:
            carry = tl.load(d_final_ptr + row, mask=channels, other=0.0).to(STATE)
    for start in tl.range(0, T, BT):
        t = (start + i).to(tl.int64)
        if DESCENDING:
            t = T - 1 - t
        met = t + (1 if DESCENDING else -1)
        to_come = t - (1 if DESCENDING else -1)
        steps = (t >= 0) & (t < T)
        mask = steps & channels
        d_x = tl.zeros([BT, BC], STATE)
        if d_states_ptr is not None:
            offset = b * d_states_b + t * d_states_t + c * d_states_c
            d_x = tl.load(d_states_ptr + offset, mask=mask, other=0.0).to(STATE)
        g = tl.load(gates_ptr + b * gates_b + met * gates_t + c * gates_c,
                    mask=(met >= 0) & (met < T) & mask, other=0.0 if LOG else 1.0).to(STATE)
        if LOG:
            g = tl.exp(g)
        reset = tl.zeros([BT, BC], tl.int32)
        if PACKED:
            first = load_bit(words_ptr + (n_words if DESCENDING else 0), t, steps)
            last = load_bit(words_ptr + (0 if DESCENDING else n_words), t, steps)
            s = tl.load(sequence_ptr + t, mask=first | last, other=0).to(tl.int64)
            reset = tl.where(first, 1, reset)
            if d_final_ptr is not None:
                d_x += tl.load(d_final_ptr + s * n_rows + row, mask=first & channels, other=0.0).to(STATE)
        d_x = scan_tile(g, d_x, reset, carry, PACKED)
        carry = tl.sum(tl.where(i == tl.minimum(BT, T - start) - 1, d_x, 0.0), 0)[None, :]
        out = d_x
        if PACKED:
            out = tl.where(broken, float("nan"), tl.where(t < used, d_x, 0.0))
        if d_tokens_ptr is not None:
            offset = b * d_tokens_b + t * d_tokens_t + c * d_tokens_c
            tl.store(d_tokens_ptr + offset, out.to(d_tokens_ptr.dtype.element_ty), mask=mask)
        own = tl.zeros([BT, BC], STATE)
        if LOG or d_initial_ptr is not None:
            offset = b * gates_b + t * gates_t + c * gates_c
            own = tl.load(gates_ptr + offset, mask=mask, other=0.0 if LOG else 1.0).to(STATE)
            if LOG:
                own = tl.exp(own)
        if d_gates_ptr is not None:
            h = tl.load(states_ptr + b * states_b + to_come * states_t + c * states_c,
                        mask=(to_come >= 0) & (to_come < T) & mask, other=0.0).to(STATE)
            if PACKED:
                h = tl.where(last, 0.0, h)
                if initial_ptr is not None:
                    before = tl.load(initial_ptr + s * n_rows + row, mask=last & channels, other=0.0).to(STATE)
                    h = tl.where(last, before, h)
            elif initial_ptr is not None:
                before = tl.load(initial_ptr + row, mask=channels, other=0.0).to(STATE)
                h = tl.where((to_come < 0) | (to_come >= T), before, h)
            d_gate = out * h
            if LOG:
                d_gate = d_gate * own
            if PACKED:
                d_gate = tl.where(broken | (t < used), d_gate, 0.0)
            offset = b * d_gates_b + t * d_gates_t + c * d_gates_c
            tl.store(d_gates_ptr + offset, d_gate.to(d_gates_ptr.dtype.element_ty), mask=mask)
        if d_initial_ptr is not None:
            if PACKED:
                tl.store(d_initial_ptr + s * n_rows + row, out * own, mask=last & channels)
            else:
                earliest = steps & ((to_come < 0) | (to_come >= T))
                tl.store(d_initial_ptr + row + tl.zeros_like(t), out * own, mask=earliest & channels)
