"""The parallel scan over the maps of a tile's groups, in strips: 32 groups that lie side by side in a warp.

Within a strip maps are composed across threads, then the maps of whole strips one after another, and the state before
each group is the one after its neighbour. So two values a round move between threads, and three or five in all. (A scan
that carries beside each prefix the same without its last map moves four values a round.)

Groups are `[R, S, L]` here, L groups of S strips; where there is one strip, `[R, L]`.
"""

import triton
import triton.language as tl

from scan.kernels.maps import compose, compose_both, compose_resets, compose_resets_both, enter


@triton.jit
def in_strips(value):
    """`[R, N]` in strips."""
    R: tl.constexpr = value.shape[0]
    N: tl.constexpr = value.shape[1]
    return tl.reshape(value, [R, N // 32, 32]) if N > 32 else value


@triton.jit
def lanes_of(value):
    """The number of each group in its strip, in the shape of one strip."""
    lane = tl.arange(0, value.shape[-1])
    return lane[None, None, :] if len(value.shape) == 3 else lane[None, :]


@triton.jit
def from_lane(value, lane):
    """Of each strip the values in other lanes: a shuffle each."""
    return tl.gather(value, tl.broadcast_to(lane, value.shape), len(value.shape) - 1)


@triton.jit
def neighbours_swapped(value, n: tl.constexpr):
    """`[R, S, L]` where every n strips changed places with the next n."""
    R: tl.constexpr = value.shape[0]
    S: tl.constexpr = value.shape[1]
    L: tl.constexpr = value.shape[2]
    early, late = tl.split(tl.permute(tl.reshape(value, [R, S // (2 * n), 2, n * L]), [0, 1, 3, 2]))
    return tl.reshape(tl.permute(tl.join(late, early), [0, 1, 3, 2]), [R, S, L])


@triton.jit
def strips_reversed(value):
    """The order of strips reversed; where one warp holds them all, by name alone."""
    for k in tl.static_range(6):
        if len(value.shape) == 3 and (2 << k) <= value.shape[1]:
            value = neighbours_swapped(value, 1 << k)
    return value


@triton.jit
def compose_strips(gate, state, RESETS: tl.constexpr, BACK: tl.constexpr = False, ONE_WARP: tl.constexpr = False):
    """Maps of groups `[R, N]` composed, from the last group on if BACK: pairs of a gate and a state.

    Those up to each group within its strip, lanes in scan order; those of all strips before; and up to each strip.
    Triton reverses a scan by five shuffles for each value that goes in or comes out, which mirrored lanes do in one;
    strips change places first if one warp holds all of them (ONE_WARP).
    """
    gate, state = in_strips(gate), in_strips(state)
    lane = lanes_of(gate)
    last: tl.constexpr = gate.shape[-1] - 1
    if BACK:
        gate, state = from_lane(gate, lane ^ last), from_lane(state, lane ^ last)
        if ONE_WARP:
            gate, state = strips_reversed(gate), strips_reversed(state)
    if RESETS:
        gate, state = tl.associative_scan((gate, state), len(gate.shape) - 1, compose_resets)
    else:
        gate, state = tl.associative_scan((gate, state), len(gate.shape) - 1, compose)
    gate_of, state_of = from_lane(gate, lane | last), from_lane(state, lane | last)
    one, zero = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
    if len(gate.shape) == 3:
        if RESETS:
            gate_of, state_of, one, zero = tl.associative_scan((gate_of, state_of, one, zero), 1, compose_resets_both)
        else:
            gate_of, state_of, one, zero = tl.associative_scan(
                (gate_of, state_of, one, zero), 1, compose_both, reverse=BACK and not ONE_WARP
            )
    return (gate, state), (one, zero), (gate_of, state_of)


@triton.jit
def of_tile(value, BACK: tl.constexpr = False, ONE_WARP: tl.constexpr = False):
    """What maps up to each strip have after all strips, in every lane, `[R, L]`: one number would take shuffles."""
    if len(value.shape) == 3:
        S: tl.constexpr = value.shape[1]
        strip = tl.arange(0, S)[None, :, None]
        value = tl.sum(tl.where(strip == (0 if BACK and not ONE_WARP else S - 1), value, 0.0), 1)
    return value


@triton.jit
def enter_strips(within, before, carry, RESETS: tl.constexpr, BACK: tl.constexpr = False,
                 ONE_WARP: tl.constexpr = False):
    """State before each group `[R, N]` from what `compose_strips` composed and the state before the tile.

    That is `[R, 1]` or, the same in every lane, `[R, L]`.
    """
    lane = lanes_of(within[0])
    last: tl.constexpr = within[0].shape[-1] - 1
    if len(within[0].shape) == 3:
        carry = tl.expand_dims(carry, 1)
    if RESETS:
        h = enter(before[0], before[1], carry)
        after = enter(within[0], within[1], h)
    else:
        h = before[1] + before[0] * carry
        after = within[1] + within[0] * h
    if BACK:
        h = tl.where(lane == last, h, from_lane(after, ((lane ^ last) - 1) & last))
        if ONE_WARP:
            h = strips_reversed(h)
    else:
        h = tl.where(lane == 0, h, from_lane(after, (lane - 1) & last))
    if len(h.shape) == 3:
        h = tl.reshape(h, [h.shape[0], h.shape[1] * h.shape[2]])
    return h
