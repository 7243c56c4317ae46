"""The public functions. Their meaning is `scan.reference.sequential_scan`; their speed is `scan.launch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from scan import checks, ops, shared
from scan.bidirectional import repeat as repeat_both
from scan.bidirectional import scan_both

_REVERSE = ("gates_reverse", "tokens_reverse", "initial_state_reverse")


class ScanOutput(NamedTuple):
    """What `linear_scan` returns."""

    states: Tensor
    final_state: Tensor


class BidirectionalOutput(NamedTuple):
    """What `linear_scan_bidirectional` returns; `states_reverse` is None where `reduce` put both into `states`."""

    states: Tensor
    states_reverse: Tensor | None
    final_state: Tensor
    final_state_reverse: Tensor


def linear_scan(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None = None,
    *,
    dim: int = -1,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    log_gates: bool = False,
) -> ScanOutput:
    """`h[t] = gates[t] * h[t-1] + tokens[t]` along time.

    Differentiable in gates, tokens and initial_state, and through final_state, to any order in eager mode, once under
    torch.compile. The state is carried in float32 (float64 where gates or tokens are, complex where one of them is)
    whatever the dtype of `initial_state`, and rounded once to the dtype of `tokens` (where gates are complex, to
    the dtype that both are promoted to). Every gradient has its input's dtype. Inputs are never modified. CUDA tensors
    run Triton kernels, CPU tensors plain PyTorch. The kernels multiply gates of up to some thousand neighbouring steps
    before they meet a state: where such a product overflows (gates above 1 over hundreds of steps), states are infinite
    or NaN even if the recurrence would stay finite.

    Packed sequences (`cu_seqlens`) are scanned independently, every row alike. Positions past the last offset are
    allowed and hold zero states and zero gradients. On CUDA the offsets are not read on the host: where they are
    invalid, states and gradients are filled with NaN, and `check_offsets` says what is wrong.

    Args:
        gates: factors, `[..., T]` or, with `dim=-2`, `[..., T, C]`; float16, bfloat16, float32, float64 or complex.
        tokens: inputs, the shape of `gates`; the dtype may differ.
        initial_state: state before the first step, the shape of `tokens` without the time axis, with `N` in front
            when packed. None means zeros.
        dim: time axis: -1 (time last) or -2 (channels last).
        reverse: from the last step to the first: `h[t] = gates[t] * h[t+1] + tokens[t]`.
        cu_seqlens: cumulative lengths of N packed sequences, `[N + 1]`, int32 or int64, on the device of `tokens`.
            None means one sequence a row.
        log_gates: `gates` holds the logarithms of the factors, and receives the gradient in them.

    Returns:
        `ScanOutput(states, final_state)`. `states` has the shape, the strides (dense where those overlap or leave gaps)
        and the dtype of `tokens`, complex where gates are. `final_state`, the state after each sequence's last step in
        scan order, has the shape of `initial_state` and the accumulation dtype; an empty sequence passes its initial
        state on.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes, devices or `dim` do not fit, or, on the CPU, offsets are invalid.

    Example:
        >>> gates = torch.full((1, 3), 0.5)
        >>> linear_scan(gates, torch.tensor([[1.0, 2.0, 4.0]]))
        ScanOutput(states=tensor([[1.0000, 2.5000, 5.2500]]), final_state=tensor([5.2500]))
        >>> linear_scan(gates, torch.tensor([[1.0, 2.0, 4.0]]), reverse=True).states
        tensor([[3., 4., 4.]])
        >>> offsets = torch.tensor([0, 1, 3])
        >>> linear_scan(gates, torch.tensor([[1.0, 2.0, 4.0]]), cu_seqlens=offsets).states
        tensor([[1., 2., 5.]])
    """
    output = ops.repeat(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates)
    if output is None:
        checks.scan_arguments(gates, tokens, initial_state, dim, cu_seqlens, reverse=reverse, log_gates=log_gates)
        output = ops.scan(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates)
    states, final_state = output
    assert final_state is not None
    return ScanOutput(states, final_state)


def linear_scan_bidirectional(
    gates: Tensor,
    tokens: Tensor,
    gates_reverse: Tensor | None = None,
    tokens_reverse: Tensor | None = None,
    initial_state: Tensor | None = None,
    initial_state_reverse: Tensor | None = None,
    *,
    dim: int = -1,
    cu_seqlens: Tensor | None = None,
    log_gates: bool = False,
    reduce: Literal["sum", "cat"] | None = None,
) -> BidirectionalOutput:
    """`linear_scan` of one branch and reverse `linear_scan` of another, or of the same, both in original time order.

    Args:
        gates: factors of the forward branch, as in `linear_scan`.
        tokens: inputs of the forward branch.
        gates_reverse: factors of the reverse branch; None means `gates`.
        tokens_reverse: inputs of the reverse branch; None means `tokens`.
        initial_state: state before the first step of the forward branch; None means zeros.
        initial_state_reverse: state after the last step of the reverse branch; None means zeros.
        dim: time axis: -1 or -2.
        cu_seqlens: cumulative lengths of packed sequences, the same for both branches.
        log_gates: gates hold logarithms.
        reduce: None returns both branches; "sum" adds them, on a GPU before they are rounded where both are of the
            same tensors and rows are short; "cat" joins them along the channel axis.

    Returns:
        `BidirectionalOutput(states, states_reverse, final_state, final_state_reverse)`. With `reduce`, `states` holds
        the sum, or both with twice the channels, and `states_reverse` is None.

    Raises:
        TypeError, ValueError: as `linear_scan`, and where `reduce` is unknown or the branches differ in shape.

    Example:
        >>> ones = torch.ones(1, 3)
        >>> linear_scan_bidirectional(ones, torch.tensor([[1.0, 2.0, 4.0]]), reduce="sum").states
        tensor([[ 8.,  9., 11.]])
    """
    gates_reverse = gates if gates_reverse is None else gates_reverse
    tokens_reverse = tokens if tokens_reverse is None else tokens_reverse
    ahead, back = (gates, tokens, initial_state), (gates_reverse, tokens_reverse, initial_state_reverse)
    one = gates_reverse is gates and tokens_reverse is tokens and initial_state is initial_state_reverse is None
    one, known = one and cu_seqlens is None, reduce in (None, "sum", "cat")
    if known and one:
        both = shared.repeat(gates, tokens, dim, log_gates, True, reduce == "sum")
        if both is not None:
            return _reduced(*both, reduce, dim)
    output = repeat_both(ahead, back, cu_seqlens, dim, log_gates, True) if known else None
    if output is None:
        checks.scan_arguments(gates, tokens, initial_state, dim, cu_seqlens, log_gates=log_gates)
        checks.scan_arguments(gates_reverse, tokens_reverse, initial_state_reverse, dim, cu_seqlens, _REVERSE)
        checks.branches(tokens, tokens_reverse, reduce)
        both = shared.scan(gates, tokens, dim, log_gates, True, reduce == "sum") if one else None
        if both is not None:
            return _reduced(*both, reduce, dim)
        output = scan_both(ahead, back, cu_seqlens, dim, log_gates, True)
    return _reduced(None, *output, reduce, dim)


def _reduced(
    added: Tensor | None,
    states: Tensor | None,
    states_reverse: Tensor | None,
    final: Tensor | None,
    final_reverse: Tensor | None,
    reduce: str | None,
    dim: int,
) -> BidirectionalOutput:
    """From the sum of the states of both directions, or each, and both final states."""
    assert final is not None and final_reverse is not None
    if added is not None:
        return BidirectionalOutput(added, None, final, final_reverse)
    assert states is not None and states_reverse is not None
    if reduce is None:
        return BidirectionalOutput(states, states_reverse, final, final_reverse)
    if reduce == "sum":
        return BidirectionalOutput(states + states_reverse, None, final, final_reverse)
    channels = -2 if dim == -1 else -1
    return BidirectionalOutput(torch.cat((states, states_reverse), channels), None, final, final_reverse)


def scan_causal(gates: Tensor, tokens: Tensor, args: Mapping[str, Any] | None = None) -> Tensor:
    """`h[t] = gates[t] * h[t-1] + tokens[t]` along the last axis; `linear_scan` under its first name.

    Args:
        gates: factors, `[C, T]` or `[B, C, T]`.
        tokens: inputs, the shape of `gates`.
        args: may hold `cu_seqlens` (see `linear_scan`), and `chunk_size` and `grid` (see `get_grid`), which never
            change a result; None means one sequence a row.

    Returns:
        States, the shape and dtype of `tokens`.

    Raises:
        TypeError, ValueError: as `linear_scan`, and where `grid` contradicts the data.

    Example:
        >>> scan_causal(torch.full((1, 3), 0.5), torch.ones(1, 3))
        tensor([[1.0000, 1.5000, 1.7500]])
    """
    if args is None:
        output = ops.repeat(gates, tokens, None, None, want_final=False)
        if output is not None:
            return output[0]
    cu_seqlens = checks.seed_arguments(args, gates, tokens)
    checks.scan_arguments(gates, tokens, None, -1, cu_seqlens)
    return ops.scan(gates, tokens, None, cu_seqlens, want_final=False)[0]


def scan_bidirectional_branched(
    gates_fwd: Tensor,
    tokens_fwd: Tensor,
    gates_bwd: Tensor,
    tokens_bwd: Tensor,
    args: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """`scan_causal` of one branch and the same from the last step to the first of another.

    Args:
        gates_fwd: factors of the forward branch, `[C, T]` or `[B, C, T]`.
        tokens_fwd: inputs of the forward branch.
        gates_bwd: factors of the reverse branch.
        tokens_bwd: inputs of the reverse branch.
        args: as in `scan_causal`, for both branches.

    Returns:
        States of the forward and of the reverse branch, both in original time order.

    Raises:
        TypeError, ValueError: as `scan_causal`.

    Example:
        >>> gates, tokens = torch.full((1, 3), 0.5), torch.ones(1, 3)
        >>> scan_bidirectional_branched(gates, tokens, gates, tokens)
        (tensor([[1.0000, 1.5000, 1.7500]]), tensor([[1.7500, 1.5000, 1.0000]]))
    """
    ahead, back = (gates_fwd, tokens_fwd, None), (gates_bwd, tokens_bwd, None)
    one = gates_bwd is gates_fwd and tokens_bwd is tokens_fwd
    if args is None:
        both = shared.repeat(gates_fwd, tokens_fwd, -1, False, False, False) if one else None
        if both is not None:
            return both[1:3]  # type: ignore[return-value]
        output = repeat_both(ahead, back, None, -1, False, False)
        if output is not None:
            return output[:2]
    cu_seqlens = checks.seed_arguments(args, gates_fwd, tokens_fwd, ("gates_fwd", "tokens_fwd", ""))
    checks.scan_arguments(gates_fwd, tokens_fwd, None, -1, cu_seqlens, ("gates_fwd", "tokens_fwd", ""))
    checks.scan_arguments(gates_bwd, tokens_bwd, None, -1, cu_seqlens, ("gates_bwd", "tokens_bwd", ""))
    checks.branches(tokens_fwd, tokens_bwd, None)
    both = shared.scan(gates_fwd, tokens_fwd, -1, False, False, False) if one and cu_seqlens is None else None
    if both is not None:
        return both[1:3]  # type: ignore[return-value]
    return scan_both(ahead, back, cu_seqlens, -1, False, False)[:2]


# Every name compiles without a graph break; the names of old callers stay.
scan_causal_compiled = scan_causal
scan_bidirectional_branched_compiled = scan_bidirectional_branched
