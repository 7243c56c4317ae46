"""The parallel scan over the maps of a tile's groups in strips: 32 groups that are neighbours in memory and in a warp.

Either each strip is scanned for itself, then the maps of whole strips, and the state before a group is the one after
its neighbour: two values in each of five rounds, for every strip that a thread holds.

Or strips and lanes trade places first (log2 S rounds of S / 2 shuffles for a value), until a lane holds S groups that
follow one another; it composes them in registers, and one map a lane takes part in the five rounds, one map a warp
passes through shared memory. That takes fewer shuffles and registers, in more rounds: where many programs keep a
multiprocessor busy it is sooner, and where one waits for another later.
"""

import triton
import triton.language as tl

from scan.kernels.maps import compose, compose_both, compose_resets, compose_resets_both, enter


@triton.constexpr_function
def strips_of(N, W):
    """How many strips each of W warps has of N groups."""
    return max(1, N // (32 * W))


@triton.jit
def numbers_in_strips(N: tl.constexpr, W: tl.constexpr):
    """The number of each group, `[1, N]`: those of a warp follow one another."""
    n = tl.arange(0, N)[None, :]
    if W > 1 and N > 32 * W:
        warp, strip = n & (32 * W - 32), n & -(32 * W)
        n = (n & 31) | (strip // W) | (warp * (N // (32 * W)))
    return n


@triton.jit
def in_strips(value):
    """`[1, N]` in strips `[S * W, 32]`, of W warps side by side; rows of one strip as they are.

    That is the layout that the compiler gives such a shape by itself, as `[S, W * 32]` is where lanes do not matter: no
    value moves but by a shuffle.
    """
    N: tl.constexpr = value.shape[1]
    return tl.reshape(value, [N // 32, 32]) if N > 32 else value


@triton.jit
def from_lane(value, lane):
    """Of each strip the values in other lanes: a shuffle each."""
    return tl.gather(value, tl.broadcast_to(lane, value.shape), len(value.shape) - 1)


@triton.jit
def lanes_of(value):
    """The number of each lane, in the shape of one strip."""
    lane = tl.arange(0, value.shape[-1])
    return lane[None, None, :] if len(value.shape) == 3 else lane[None, :]


@triton.jit
def strips_apart(value, n: tl.constexpr):
    """Rows whose number has not the bit n, and those whose number has it."""
    S: tl.constexpr = value.shape[0]
    L: tl.constexpr = value.shape[1]
    early, late = tl.split(tl.permute(tl.reshape(value, [S // (2 * n), 2, n * L]), [0, 2, 1]))
    return tl.reshape(early, [S // 2, L]), tl.reshape(late, [S // 2, L])


@triton.jit
def strips_together(early, late, n: tl.constexpr):
    """The inverse of `strips_apart`."""
    S: tl.constexpr = 2 * early.shape[0]
    L: tl.constexpr = early.shape[1]
    early, late = tl.reshape(early, [S // (2 * n), n * L]), tl.reshape(late, [S // (2 * n), n * L])
    return tl.reshape(tl.permute(tl.join(early, late), [0, 2, 1]), [S, L])


@triton.jit
def trade(value, S: tl.constexpr, W: tl.constexpr):
    """Bits of the number of a strip and low bits of that of a lane change places (its own inverse)."""
    for k in tl.static_range(5):
        if (2 << k) <= S:
            early, late = strips_apart(value, W << k)
            lane = lanes_of(early)
            odd = (lane & (1 << k)) != 0
            moved = from_lane(tl.where(odd, early, late), lane ^ (1 << k))
            value = strips_together(tl.where(odd, moved, early), tl.where(odd, late, moved), W << k)
    return value


@triton.jit
def strips_reversed(value):
    """The order of rows reversed, by name alone."""
    for k in tl.static_range(5):
        if (2 << k) <= value.shape[0]:
            early, late = strips_apart(value, 1 << k)
            value = strips_together(late, early, 1 << k)
    return value


@triton.jit
def last_strip(value):
    """The last row, by name alone."""
    for k in tl.static_range(5):
        if value.shape[0] > 1:
            _, value = strips_apart(value, 1)
    return value


@triton.jit
def rank_of(lane, S: tl.constexpr, L: tl.constexpr, BACK: tl.constexpr):
    """The place in scan order of what a lane holds after `trade` of S strips."""
    rank = (lane & (S - 1)) * (L // S) + lane // S
    return L - 1 - rank if BACK else rank


@triton.jit
def lane_at(rank, S: tl.constexpr, L: tl.constexpr, BACK: tl.constexpr):
    """The lane of that rank."""
    rank = L - 1 - rank if BACK else rank
    return (rank & (L // S - 1)) * S + rank // (L // S)


@triton.jit
def of_warp(value):
    """What the last lane in scan order holds, in every lane."""
    return from_lane(value, lanes_of(value) | (value.shape[-1] - 1))


@triton.jit
def compose_strips(gate, state, RESETS: tl.constexpr, BACK: tl.constexpr = False, W: tl.constexpr = 1):
    """Maps of groups `[R, N]` composed, from the last group on if BACK.

    Those of the groups before each within its lane `[S, W * L]`, in scan order, and of lanes, brought into scan order,
    up to each `[W, L]`: pairs of a gate and a state.
    """
    S: tl.constexpr = strips_of(gate.shape[1], W)
    gate, state = trade(in_strips(gate), S, W), trade(in_strips(state), S, W)
    L: tl.constexpr = gate.shape[1]
    within = gate, state  # where a lane holds one map, nobody looks
    if S > 1:
        gate, state = tl.reshape(gate, [S, W * L]), tl.reshape(state, [S, W * L])
        one, zero = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
        if BACK:
            gate, state = strips_reversed(gate), strips_reversed(state)
        if RESETS:
            gate, state, one, zero = tl.associative_scan((gate, state, one, zero), 0, compose_resets_both)
        else:
            gate, state, one, zero = tl.associative_scan((gate, state, one, zero), 0, compose_both)
        within = one, zero
        gate, state = tl.reshape(last_strip(gate), [W, L]), tl.reshape(last_strip(state), [W, L])
    if BACK or S > 1:
        at = lane_at(lanes_of(gate), S, L, BACK)
        gate, state = from_lane(gate, at), from_lane(state, at)
    if RESETS:
        lanes = tl.associative_scan((gate, state), 1, compose_resets)
    else:
        lanes = tl.associative_scan((gate, state), 1, compose)
    return within, lanes


@triton.jit
def compose_warps(lanes, W: tl.constexpr, BACK: tl.constexpr = False):
    """Maps of warps composed: of those before each `[W, L]`, and of all `[1, L]`, in every lane."""
    gate, state = of_warp(lanes[0]), of_warp(lanes[1])
    one, zero = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
    gate, state, one, zero = tl.associative_scan((gate, state, one, zero), 0, compose_both, reverse=BACK)
    last = tl.arange(0, W)[:, None] == (0 if BACK else W - 1)
    whole = tl.sum(tl.where(last, gate, 0.0), 0)[None, :], tl.sum(tl.where(last, state, 0.0), 0)[None, :]
    return (one, zero), whole


@triton.jit
def enter_strips(within, lanes, carry, N: tl.constexpr, RESETS: tl.constexpr, BACK: tl.constexpr = False,
                 W: tl.constexpr = 1):
    """State before each group `[R, N]` from what `compose_strips` composed and the state before the tile, or each warp.

    That is `[R, 1]` or, the same in every lane, `[R, L]` or `[W, L]`.
    """
    L: tl.constexpr = lanes[0].shape[1]
    if RESETS:
        after = enter(lanes[0], lanes[1], carry)
    else:
        after = lanes[1] + lanes[0] * carry
    S: tl.constexpr = strips_of(N, W)
    rank = rank_of(lanes_of(after), S, L, BACK)
    before = tl.where(rank == 0, tl.broadcast_to(carry, after.shape), from_lane(after, (rank - 1) & (L - 1)))
    if S == 1:
        return before if W == 1 else tl.reshape(before, [1, N])
    else:
        before = tl.reshape(before, [1, W * L])
        if RESETS:
            before = enter(within[0], within[1], before)
        else:
            before = within[1] + within[0] * before
        if BACK:
            before = strips_reversed(before)
        return tl.reshape(trade(tl.reshape(before, [S * W, L]), S, W), [1, N])


@triton.jit
def compose_each(gate, state, RESETS: tl.constexpr):
    """Maps of groups `[1, N]` composed, each strip for itself: those up to each group within its strip `[1, S, 32]`.

    Then those of all strips before, and up to each strip; of one strip `[1, N]`.
    """
    N: tl.constexpr = gate.shape[1]
    if N > 32:
        # Of `[S, 32]` Triton before 3.7 may scan twice.
        gate, state = tl.reshape(gate, [1, N // 32, 32]), tl.reshape(state, [1, N // 32, 32])
    if RESETS:
        gate, state = tl.associative_scan((gate, state), len(gate.shape) - 1, compose_resets)
    else:
        gate, state = tl.associative_scan((gate, state), len(gate.shape) - 1, compose)
    gate_of, state_of = of_warp(gate), of_warp(state)
    one, zero = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
    if N > 32:
        if RESETS:
            gate_of, state_of, one, zero = tl.associative_scan((gate_of, state_of, one, zero), 1, compose_resets_both)
        else:
            gate_of, state_of, one, zero = tl.associative_scan((gate_of, state_of, one, zero), 1, compose_both)
    return (gate, state), (one, zero), (gate_of, state_of)


@triton.jit
def of_strips(value):
    """What maps up to each strip have after all strips, in every lane, `[1, L]`."""
    if len(value.shape) == 3:
        S: tl.constexpr = value.shape[1]
        value = tl.sum(tl.where(tl.arange(0, S)[None, :, None] == S - 1, value, 0.0), 1)
    return value


@triton.jit
def enter_each(within, before, carry, RESETS: tl.constexpr):
    """State before each group `[1, N]` from what `compose_each` composed and the state before the tile.

    That is `[1, 1]` or, the same in every lane, `[1, L]`.
    """
    if len(within[0].shape) == 3:
        carry = tl.expand_dims(carry, 1)
    if RESETS:
        h = enter(before[0], before[1], carry)
        after = enter(within[0], within[1], h)
    else:
        h = before[1] + before[0] * carry
        after = within[1] + within[0] * h
    lane = lanes_of(after)
    h = tl.where(lane == 0, h, from_lane(after, (lane - 1) & (after.shape[-1] - 1)))
    return tl.reshape(h, [1, h.shape[1] * h.shape[2]]) if len(h.shape) == 3 else h
