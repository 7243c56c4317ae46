"""The scan of a tile: N groups of V neighbouring steps, held as V columns `[R, N]` in scan order.

Each group composes its steps into one map (product of gates, state from zero), a parallel scan over the maps of all
groups gives the state before each (Blelloch 1990, section 1.4: a recurrence is a scan of its coefficient pairs), and
each group runs the recurrence once more from there, in the order of the definition.

Packed sequences are one line with resets. Where programs share a row (`exchange`), the carry is what they hand on.
Groups lie along AXIS, rows along the other axis: where channels are neighbours AXIS is 0, and `[R, N]` is `[N, R]`.
"""

import triton
import triton.language as tl

from scan.kernels.exchange import carry_in
from scan.kernels.maps import compose_both, compose_resets_both, enter, last_of, numbers
from scan.kernels.strips import compose_each, compose_strips, enter_each, enter_strips, of_strips, of_warp


@triton.jit
def enter_groups(gate, state, carry, exchange, WINDOW: tl.constexpr, PACKED: tl.constexpr, RESETS: tl.constexpr,
                 STRIPS: tl.constexpr, AXIS: tl.constexpr):
    """State before each group `[R, N]`, from the groups' maps and the state before the tile `[R, 1]`.

    RESETS: the tile has some; PACKED: others of its row may. STRIPS: maps are composed in strips; 1: each for itself;
    2: strips trade places with lanes, but not on AMD, of whose 64 lanes two share a warp: Triton 3.7 fails on it.
    """
    if STRIPS == 2 and not tl.target_info.is_hip():
        within, lanes = compose_strips(gate, state, RESETS)
        if WINDOW > 0:
            carry = carry_in(of_warp(lanes[0]), of_warp(lanes[1]), carry, exchange, WINDOW, PACKED, AXIS)
        return enter_strips(within, lanes, carry, gate.shape[1], RESETS)
    elif STRIPS > 0:
        within, before, whole = compose_each(gate, state, RESETS)
        if WINDOW > 0:
            carry = carry_in(of_strips(whole[0]), of_strips(whole[1]), carry, exchange, WINDOW, PACKED, AXIS)
        return enter_each(within, before, carry, RESETS)
    else:
        one = tl.full(gate.shape, 1.0, gate.dtype)
        zero = tl.zeros(gate.shape, gate.dtype)
        if RESETS:
            gate_all, state_all, gate, state = tl.associative_scan((gate, state, one, zero), AXIS, compose_resets_both)
        else:
            gate_all, state_all, gate, state = tl.associative_scan((gate, state, one, zero), AXIS, compose_both)
        if WINDOW > 0:
            gate_of, state_of = last_of(gate_all, AXIS), last_of(state_all, AXIS)
            carry = carry_in(gate_of, state_of, carry, exchange, WINDOW, PACKED, AXIS)
        if RESETS:
            return enter(gate, state, carry)
        else:
            return state + gate * carry


@triton.jit
def leave_tile(value, carry, left, V: tl.constexpr, DESCENDING: tl.constexpr, AXIS: tl.constexpr = 1):
    """The value after the last step of a tile, `[R, N]` to `[R, 1]`, where `left` steps are left of an ascending row.

    Taken from the group that holds that step: behind it the parallel scan rounds in another order. A row of which
    nothing is left keeps its `carry`.
    """
    N: tl.constexpr = value.shape[AXIS]
    last = N - 1
    if not DESCENDING:
        last = tl.minimum(N - 1, (left - 1) // V)
    left_over = tl.expand_dims(tl.sum(tl.where(numbers(N, AXIS) == last, value, 0.0), AXIS), AXIS)
    if DESCENDING:
        return left_over
    else:
        return tl.where(left > 0, left_over, carry)


@triton.jit
def exponentials(logs, V: tl.constexpr, LOG: tl.constexpr):
    """Gates as loaded, or from their logarithms."""
    if LOG:
        gates = ()
        for k in tl.static_range(V):
            gates = gates + (tl.exp(logs[k]),)
        return gates
    else:
        return logs


@triton.jit
def group_map(g, x, V: tl.constexpr, WINDOW: tl.constexpr):
    """The map of each group `[R, N]`: the product of its gates, and its last state from zero."""
    state = x[0]
    if WINDOW > 0:
        # No other gate is missing in the state: one that is not finite shows there, however the map is composed.
        state = g[0] * 0.0 + x[0]
    gate = g[0]
    for k in tl.static_range(1, V):
        state = g[k] * state + x[k]
        gate = gate * g[k]
    return gate, state


@triton.jit
def states_from(h, g, x, V: tl.constexpr):
    """States of the groups from those before them."""
    states = ()
    for k in tl.static_range(V):
        h = g[k] * h + x[k]
        states = states + (h,)
    return states


@triton.jit
def scan_packed_tile(g, x, carry, exchange, first_bits, first, before, V: tl.constexpr, WINDOW: tl.constexpr,
                     STRIPS: tl.constexpr, AXIS: tl.constexpr):
    """States of a tile from the state before it `[R, 1]`; `before` are those before the `first` steps of sequences."""
    state = g[0] * (0.0 if before is None else tl.where(first[0], before[0], 0.0)) + x[0]
    gate = g[0]
    for k in tl.static_range(1, V):
        state = g[k] * tl.where(first[k], 0.0 if before is None else before[k], state) + x[k]
        gate = gate * g[k]
    mark = tl.where(first_bits != 0, float("nan"), gate)
    h = enter_groups(mark, state, carry, exchange, WINDOW, True, True, STRIPS, AXIS)
    states = ()
    for k in tl.static_range(V):
        h = g[k] * tl.where(first[k], 0.0 if before is None else before[k], h) + x[k]
        states = states + (h,)
    return states


@triton.jit
def group_map_backward(g, d, V: tl.constexpr):
    """The map of each group `[R, N]` for what flows through it: the product of its gates, and what flows out alone."""
    gate = g[0]
    d_x = d[0]
    for k in tl.static_range(1, V):
        d_x = g[k - 1] * d_x + d[k]
        gate = gate * g[k]
    return gate, g[V - 1] * d_x


@triton.jit
def gradients_from(u, g, d, V: tl.constexpr):
    """Gradients of the tokens of the groups from what flows into them, and what flows out of each."""
    d_tokens = ()
    for k in tl.static_range(V):
        d_x = u + d[k]
        u = g[k] * d_x
        d_tokens = d_tokens + (d_x,)
    return d_tokens, u


@triton.jit
def scan_packed_tile_backward(g, d, carry, exchange, first_bits, first, begin, V: tl.constexpr, WINDOW: tl.constexpr,
                              STRIPS: tl.constexpr, AXIS: tl.constexpr):
    """`gradients_from` with the scan before it; `begin` are the gradients at the `first` steps of sequences."""
    gate = g[0]
    d_x = begin[0]
    for k in tl.static_range(1, V):
        d_x = tl.where(first[k], begin[k], g[k - 1] * d_x + d[k])
        gate = gate * g[k]
    mark = tl.where(first_bits != 0, float("nan"), gate)
    u = enter_groups(mark, g[V - 1] * d_x, carry, exchange, WINDOW, True, True, STRIPS, AXIS)
    d_tokens = ()
    for k in tl.static_range(V):
        d_x = tl.where(first[k], begin[k], u + d[k])
        u = g[k] * d_x
        d_tokens = d_tokens + (d_x,)
    return d_tokens, u
