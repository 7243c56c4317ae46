"""What is right by definition, and the two classic parallel scans, in plain PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from scan import checks


def sequential_scan(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None = None,
    *,
    dim: int = -1,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    log_gates: bool = False,
) -> Tensor:
    """Compute `h[t] = g[t] * h[t-1] + x[t]` one step after the other, in double precision.

    This is the definition of correct: every other path is compared with it. It is differentiable by PyTorch's own
    autograd to any order, and slow: one Python iteration a step. Each packed sequence starts from its own initial
    state; positions past the last offset hold 0. The first gate multiplies the initial state even where that is 0.

    Args:
        gates: g, the shape of `tokens`, any floating or complex dtype.
        tokens: x, `[..., T]` for `dim=-1`, `[..., T, C]` for `dim=-2`, any floating or complex dtype.
        initial_state: the shape of `tokens` without the time axis, with N in front when packed; None for zeros.
        dim: the time axis, -1 or -2.
        reverse: walk from T-1 to 0, `h[t] = g[t] * h[t+1] + x[t]`.
        cu_seqlens: cumulative lengths, `[N + 1]`, int32 or int64, of N sequences packed along time; None for one.
        log_gates: `gates` holds logarithms of the gates.

    Returns:
        The states, the shape of `tokens`, float64, or complex128 where gates or tokens are complex. `final_state`
        takes the last state of each sequence from them.

    Raises:
        TypeError: a dtype is no floating or complex one, or an argument is no tensor.
        ValueError: shapes or devices disagree, `dim` is another axis, or the offsets describe no packed sequences.

    Example:
        >>> sequential_scan(torch.tensor([0.5, 0.5, 2.0]), torch.tensor([1.0, 1.0, 1.0]))
        tensor([1.0000, 1.5000, 4.0000], dtype=torch.float64)
    """
    checks.scan_arguments(gates, tokens, initial_state, dim, cu_seqlens, reverse=reverse, log_gates=log_gates)
    dtype = torch.promote_types(torch.promote_types(gates.dtype, tokens.dtype), torch.float64)
    gates, tokens = gates.to(dtype), tokens.to(dtype)
    if log_gates:
        gates = gates.exp()
    time = tokens.shape[dim]
    if time == 0:
        return tokens * gates
    steps_g, steps_x = gates.unbind(dim), tokens.unbind(dim)
    zero = torch.zeros_like(steps_x[0])
    states = [zero] * time
    for n, (start, stop) in enumerate(_sequences(cu_seqlens, time)):
        state = zero
        if initial_state is not None:
            state = (initial_state if cu_seqlens is None else initial_state[n]).to(dtype)
        for t in range(start, stop) if not reverse else range(stop - 1, start - 1, -1):
            state = states[t] = steps_g[t] * state + steps_x[t]
    return torch.stack(states, dim)


def final_state(
    states: Tensor,
    initial_state: Tensor | None = None,
    *,
    dim: int = -1,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Take the state after the last step of each sequence from the states; an empty sequence's is its initial state.

    Args:
        states: what `sequential_scan` returned.
        initial_state: what it was given, and so are the others.
        dim: the time axis, -1 or -2.
        reverse: whether the last step of a sequence is its first in memory.
        cu_seqlens: cumulative lengths, `[N + 1]`; None for one sequence.

    Returns:
        The shape of `states` without the time axis, with N in front when packed; the dtype of `states`.

    Example:
        >>> final_state(torch.tensor([1.0, 1.5, 4.0]), cu_seqlens=torch.tensor([0, 2, 2, 3]))
        tensor([1.5000, 0.0000, 4.0000])
    """
    zero = states.new_zeros([size for axis, size in enumerate(states.shape) if axis != states.ndim + dim])
    ends = []
    for n, (start, stop) in enumerate(_sequences(cu_seqlens, states.shape[dim])):
        if start < stop:
            ends.append(states.select(dim, start if reverse else stop - 1))
        elif initial_state is None:
            ends.append(zero)
        else:
            ends.append((initial_state if cu_seqlens is None else initial_state[n]).to(states.dtype))
    if cu_seqlens is None:
        return ends[0]
    return torch.stack(ends) if ends else zero.new_zeros((0, *zero.shape))


def parallel_scan(a: Tensor, b: Tensor, h0: Tensor | None = None) -> Tensor:
    """Compute `h[t] = a[t] * h[t-1] + b[t]` in about log2(T) rounds over the whole sequence.

    Each step is the affine map `h -> a * h + b`; in the round with distance d every map is composed with the one d
    steps before it, so that after it a map spans 2d steps. The work is T log2(T). Differentiable by autograd;
    computed in the dtype of the inputs.

    Args:
        a: gates, `(batch, length, dim)`, floating or complex; any length.
        b: tokens, the shape of `a`.
        h0: initial state, `(batch, dim)`; None for zeros.

    Returns:
        The states, the shape of `a`.

    Raises:
        TypeError: `a` or `b` is not floating or complex.
        ValueError: `a` or `b` does not have three axes, or shapes or devices disagree.

    Source:
        W. Daniel Hillis and Guy L. Steele, Jr.: Data parallel algorithms. Communications of the ACM 29(12), 1986,
        "Sum of an array" and "All partial sums of an array".

    Example:
        >>> a = torch.tensor([[[0.5], [0.5], [0.5]]])
        >>> b = torch.tensor([[[1.0], [1.0], [1.0]]])
        >>> parallel_scan(a, b)
        tensor([[[1.0000],
                 [1.5000],
                 [1.7500]]])
    """
    checks.three_axes(a, b, ("a", "b"), "(batch, length, dim)")
    if h0 is not None:
        checks.state_of_three_axes(h0, b)
    gates, states = a, b.clone()
    distance = 1
    while distance < b.shape[1]:
        earlier, later = slice(None, -distance), slice(distance, None)
        composed = gates[:, later] * states[:, earlier] + states[:, later]
        states = torch.cat((states[:, :distance], composed), dim=1)
        gates = torch.cat((gates[:, :distance], gates[:, later] * gates[:, earlier]), dim=1)
        distance *= 2
    return states if h0 is None else gates * h0.unsqueeze(1) + states


def blelloch_scan(gates: Tensor, tokens: Tensor, reverse: bool = False) -> Tensor:
    """Compute `h[t] = g[t] * h[t-1] + x[t]` along a balanced tree, with work proportional to T.

    On the way up neighbouring steps are composed in pairs, until one is left; on the way down the states at the end
    of each pair give those in between. Differentiable by autograd; computed in the dtype of the inputs.

    Args:
        gates: g, `(B, C, T)`, floating or complex, any T >= 1.
        tokens: x, the shape of `gates`.
        reverse: scan from T-1 to 0, `h[t] = g[t] * h[t+1] + x[t]`.

    Returns:
        The states, the shape of `tokens`.

    Raises:
        TypeError: `gates` or `tokens` is not floating or complex.
        ValueError: one does not have three axes, or their shapes or devices differ.

    Source:
        Guy E. Blelloch: Prefix sums and their applications. Technical report CMU-CS-90-190, Carnegie Mellon
        University, 1990, sections 1.2 (the tree) and 1.4 (recurrences).

    Example:
        >>> blelloch_scan(torch.tensor([[[0.5, 0.5, 2.0]]]), torch.tensor([[[1.0, 1.0, 1.0]]]))
        tensor([[[1.0000, 1.5000, 4.0000]]])
    """
    checks.three_axes(gates, tokens, ("gates", "tokens"), "(B, C, T)")
    if reverse:
        return _tree_scan(gates.flip(-1), tokens.flip(-1)).flip(-1)
    return _tree_scan(gates, tokens)


def _tree_scan(gates: Tensor, tokens: Tensor) -> Tensor:
    """One level of the tree: compose pairs, scan them, fill in the steps between."""
    time = tokens.shape[-1]
    if time < 2:
        return tokens.clone()
    paired = time - time % 2
    even_x, odd_x = tokens[..., :paired:2], tokens[..., 1:paired:2]
    even_g, odd_g = gates[..., :paired:2], gates[..., 1:paired:2]
    # States at 1, 3, 5, ...: those at 2, 4, ... follow from them, and the one at 0 is the first token.
    odd = _tree_scan(odd_g * even_g, odd_g * even_x + odd_x)
    between = gates[..., 2::2] * odd[..., : (time - 1) // 2] + tokens[..., 2::2]
    even = torch.cat((tokens[..., :1], between), dim=-1)
    states = torch.stack((even[..., : paired // 2], odd), dim=-1).flatten(-2)
    return states if paired == time else torch.cat((states, even[..., -1:]), dim=-1)


def _sequences(cu_seqlens: Tensor | None, time: int) -> list[tuple[int, int]]:
    """First step of each sequence, and the step after its last."""
    offsets = [0, time] if cu_seqlens is None else checks.offset_values(cu_seqlens, time)
    return list(pairwise(offsets))
