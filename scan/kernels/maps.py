"""Maps from the state before some steps to the state after them: a product of gates, and the state from zero.

A recurrence is a scan of its coefficient pairs (Blelloch 1990, section 1.4). Where sequences are packed, a gate of NaN
marks a reset: the map forgets what was before. A reset selects; a gate of zero would not do, since 0 * Inf is NaN.
"""

import triton
import triton.language as tl


@triton.jit
def enter(gate, state, before):
    """State after a map that starts from `before`, where a gate of NaN is a reset.

    A NaN gate in the data means the same, since `state` is then NaN itself; and no product of gates loses the mark.
    """
    return tl.where(gate != gate, state, before * gate + state)


@triton.jit
def compose(gate_l, state_l, gate_r, state_r):
    """The left map, then the right one."""
    return gate_l * gate_r, state_l * gate_r + state_r


@triton.jit
def compose_resets(gate_l, state_l, gate_r, state_r):
    """`compose` of maps that may be resets."""
    return gate_l * gate_r, enter(gate_r, state_r, state_l)


@triton.jit
def compose_both(gate_l, state_l, gate_le, state_le, gate_r, state_r, gate_re, state_re):
    """`compose`; beside it (e) the same without the last of the maps."""
    return gate_l * gate_r, state_l * gate_r + state_r, gate_l * gate_re, state_l * gate_re + state_re


@triton.jit
def compose_resets_both(gate_l, state_l, gate_le, state_le, gate_r, state_r, gate_re, state_re):
    """`compose_both` of maps that may be resets."""
    return gate_l * gate_r, enter(gate_r, state_r, state_l), gate_l * gate_re, enter(gate_re, state_re, state_l)


@triton.jit
def numbers(n: tl.constexpr, AXIS: tl.constexpr):
    """0 to n - 1 along an axis of two."""
    if AXIS == 0:
        return tl.arange(0, n)[:, None]
    else:
        return tl.arange(0, n)[None, :]


@triton.jit
def last_of(value, AXIS: tl.constexpr, BACK: tl.constexpr = False):
    """The last number along an axis, the first if BACK; the axis is kept: `[R, N]` to `[R, 1]`."""
    N: tl.constexpr = value.shape[AXIS]
    last = tl.sum(tl.where(numbers(N, AXIS) == (0 if BACK else N - 1), value, 0.0), AXIS)
    if value.shape[1 - AXIS] == 1:
        # A scalar has no layout. In that of `[1, 1]` the compiler may scan once more, a whole tile in every thread.
        return tl.full([1, 1], tl.sum(last, 0), value.dtype)
    else:
        return tl.expand_dims(last, AXIS)
