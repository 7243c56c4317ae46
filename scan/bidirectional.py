"""A scan and a reverse scan of other tensors as one operator: one launch each way where they lie alike on a GPU.

Where a call is on the CPU, under a transform, in forward mode, or of tensors that differ in dtype, the two directions
are two scans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scan import cpu, launch, ops
from scan import repeat as repeated
from scan.launch import Gradients, Inputs

Outputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def scan_both(
    ahead: Inputs, back: Inputs, cu_seqlens: Tensor | None, dim: int, log_gates: bool, want_final: bool
) -> Outputs:
    """States of gates, tokens and initial state `ahead`, of `back` in reverse, and if wanted the final states.

    Arguments are checked; differentiable.
    """
    given = [t for t in (*ahead, *back) if t is not None]
    if not ops.is_launched(ahead[1]) or _differ(ahead, back) or any(ops.is_apart(t) for t in given):
        states, final_state = ops.scan(*ahead, cu_seqlens, dim, False, log_gates, want_final)
        states_reverse, final_reverse = ops.scan(*back, cu_seqlens, dim, True, log_gates, want_final)
        return states, states_reverse, final_state, final_reverse
    if ops.is_traced(given):
        ops.refuse_forward_mode()
        outputs = torch.ops.linear_scan.scan_both(*ahead, *back, cu_seqlens, dim, log_gates, want_final)
        return outputs if want_final else (*outputs[:2], None, None)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return _Both.apply(*ahead, *back, cu_seqlens, dim, log_gates, want_final)  # type: ignore[return-value]
    return _forward(ahead, back, cu_seqlens, dim, log_gates, want_final)


def repeat(
    ahead: Inputs, back: Inputs, cu_seqlens: Tensor | None, dim: int, log_gates: bool, want_final: bool
) -> Outputs | None:
    """`scan_both` of unchecked arguments where a call of their kind is known; else None."""
    (gates, tokens, initial), (gates_reverse, tokens_reverse, initial_reverse) = ahead, back
    if (
        not (initial is initial_reverse is cu_seqlens is None)
        or not ops.is_repeatable(gates, tokens, dim, False, log_gates)
        or not ops.is_plain(gates_reverse, tokens_reverse)
    ):
        return None
    pair, pair_reverse = (gates, tokens), (gates_reverse, tokens_reverse)
    call = repeated.known_both(pair, pair_reverse, repeated.Options(dim, False, log_gates, want_final))
    if call is None:
        return None
    if torch.is_grad_enabled() and (
        gates.requires_grad or tokens.requires_grad or gates_reverse.requires_grad or tokens_reverse.requires_grad
    ):
        return _apply_repeat(gates, tokens, gates_reverse, tokens_reverse, call)
    return repeated.forward_both(call, pair, pair_reverse)


def _forward(
    ahead: Inputs, back: Inputs, cu_seqlens: Tensor | None, dim: int, log_gates: bool, want_final: bool
) -> Outputs:
    if ahead[1].is_cuda and ahead[2] is back[2] is cu_seqlens is None:
        options = repeated.Options(dim, False, bool(log_gates), want_final)
        return repeated.first_both(ahead[:2], back[:2], options)
    return launch.forward_both(ahead, back, cu_seqlens, dim, log_gates, want_final)


def _differ(ahead: Inputs, back: Inputs) -> bool:
    """Whether the directions differ in what a launch has only one of."""
    return [t is not None and t.dtype for t in ahead] != [t is not None and t.dtype for t in back]


class _Both(torch.autograd.Function):
    """The scans of an eager call; no forward mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Outputs:
        outputs = _forward(inputs[:3], inputs[3:6], *inputs[6:])  # type: ignore[arg-type]
        _save(ctx, inputs, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward(ctx, incoming, torch.compiler.is_compiling())


class _RepeatBoth(torch.autograd.Function):
    """`_Both` of a call that is known."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, tokens: Tensor, gates_reverse: Tensor, tokens_reverse: Tensor, call: repeated.Call
    ) -> Outputs:
        outputs = repeated.forward_both(call, (gates, tokens), (gates_reverse, tokens_reverse))
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, outputs[0], gates_reverse, outputs[1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, states, gates_reverse, states_reverse = ctx.saved_tensors
        d_states, d_reverse, d_final, d_final_reverse = incoming
        wanted = ctx.needs_input_grad[:4]
        if (
            all(wanted)
            and d_states is not None
            and d_reverse is not None
            and d_final is d_final_reverse is None
            and ops.backward_for(d_states, d_reverse) is None
        ):
            ahead, back = (gates, states, d_states), (gates_reverse, states_reverse, d_reverse)
            pair, pair_reverse = repeated.backward_both(ctx.call, ahead, back)
            return *pair, *pair_reverse, None
        dim, _, log_gates, _ = ctx.call.options
        ahead, back = (
            (gates, states, None, d_states, d_final),
            (gates_reverse, states_reverse, None, d_reverse, d_final_reverse),
        )
        needs = _asked(ahead, (*wanted[:2], False)), _asked(back, (*wanted[2:], False))
        traced = torch.compiler.is_compiling()
        one, other = _gradients(ahead, back, None, ctx.call.tokens_dtype, dim, log_gates, needs, traced)
        return *one[:2], *other[:2], None


_apply_repeat = super(torch.autograd.Function, _RepeatBoth).apply  # pyright: ignore[reportAttributeAccessIssue]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    gates, tokens, initial, gates_reverse, _, initial_reverse, cu_seqlens, ctx.dim, ctx.log_gates, ctx.want_final = (
        inputs
    )
    ctx.tokens_dtype = tokens.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gates, output[0], initial, gates_reverse, output[1], initial_reverse, cu_seqlens)


def _backward(ctx: Any, incoming: tuple[Tensor | None, ...], traced: bool) -> tuple[Tensor | None, ...]:
    gates, states, initial, gates_reverse, states_reverse, initial_reverse, cu_seqlens = ctx.saved_tensors
    d_states, d_states_reverse, d_final, d_final_reverse = incoming
    if not ctx.want_final:
        d_final = d_final_reverse = None
    ahead = (gates, states, initial, d_states, d_final)
    back = (gates_reverse, states_reverse, initial_reverse, d_states_reverse, d_final_reverse)
    wanted = ctx.needs_input_grad
    needs = _asked(ahead, tuple(wanted[:3])), _asked(back, tuple(wanted[3:6]))
    gradients = _gradients(ahead, back, cu_seqlens, ctx.tokens_dtype, ctx.dim, ctx.log_gates, needs, traced)
    return (*gradients[0], *gradients[1], None, None, None, None)


def _asked(saved: launch.Saved, wanted: Any) -> tuple[bool, bool, bool]:
    """What is computed of the gradients `wanted` of a direction: nothing where nothing depends on it."""
    *_, d_states, d_final = saved
    return (False, False, False) if d_states is None and d_final is None else wanted


def _gradients(
    ahead: launch.Saved,
    back: launch.Saved,
    cu_seqlens: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    log_gates: bool,
    needs: Any,
    traced: bool,
) -> tuple[Gradients, Gradients]:
    if traced:
        flat = torch.ops.linear_scan.scan_both_backward(
            *ahead, *back, cu_seqlens, tokens_dtype, dim, log_gates, [*needs[0], *needs[1]]
        )
        a, b, c, d, e, f = (g if need else None for g, need in zip(flat, (*needs[0], *needs[1]), strict=True))
        return (a, b, c), (d, e, f)
    runs = [ops.backward_for(d_states, d_final) for *_, d_states, d_final in (ahead, back)]
    if not any(runs):
        return launch.backward_both(ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)
    run = next(filter(None, runs))
    return _apart(run, ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)


def _apart(
    run: Callable[..., Gradients],
    ahead: Any,
    back: Any,
    cu_seqlens: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    log_gates: bool,
    needs: Any,
) -> tuple[Gradients, Gradients]:
    """Gradients of each direction by `run`, where any are asked for."""

    def gradients(saved: launch.Saved, reverse: bool, asked: tuple[bool, bool, bool]) -> Gradients:
        if not any(asked):
            return None, None, None
        gates, states, initial, d_states, d_final = saved
        return run(gates, states, initial, cu_seqlens, d_states, d_final, tokens_dtype, dim, reverse, log_gates, asked)

    return gradients(ahead, False, needs[0]), gradients(back, True, needs[1])


ops.library.define(
    "scan_both(Tensor gates, Tensor tokens, Tensor? initial_state, Tensor gates_reverse, Tensor tokens_reverse, "
    "Tensor? initial_state_reverse, Tensor? cu_seqlens, int dim, bool log_gates, bool want_final) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
ops.library.define(
    "scan_both_backward(Tensor gates, Tensor states, Tensor? initial_state, Tensor? d_states, Tensor? d_final_state, "
    "Tensor gates_reverse, Tensor states_reverse, Tensor? initial_state_reverse, Tensor? d_states_reverse, "
    "Tensor? d_final_state_reverse, Tensor? cu_seqlens, ScalarType tokens_dtype, int dim, bool log_gates, "
    "bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _scan_both(*inputs: Any) -> tuple[Tensor, ...]:
    gates, tokens, initial, gates_reverse, tokens_reverse, initial_reverse, cu_seqlens, dim, log_gates, want = inputs
    if ops.is_launched(tokens):
        ahead, back = (gates, tokens, initial), (gates_reverse, tokens_reverse, initial_reverse)
        outputs = launch.forward_both(ahead, back, cu_seqlens, dim, log_gates, want)
    else:
        (states, final), (states_reverse, final_reverse) = (
            cpu.forward(gates, tokens, initial, cu_seqlens, dim, False, log_gates, want),
            cpu.forward(gates_reverse, tokens_reverse, initial_reverse, cu_seqlens, dim, True, log_gates, want),
        )
        outputs = (states, states_reverse, final, final_reverse)
    # An operator returns tensors: an empty one for what nothing asks for.
    empty = tokens.new_empty(0, dtype=cpu.accumulation_dtype(gates.dtype, tokens.dtype))
    return tuple(empty.clone() if t is None else t for t in outputs)


def _scan_both_backward(*inputs: Any) -> tuple[Tensor, ...]:
    ahead, back, cu_seqlens, tokens_dtype, dim, log_gates = inputs[:5], inputs[5:10], *inputs[10:14]
    needs = (tuple(inputs[14][:3]), tuple(inputs[14][3:]))
    if ops.is_launched(ahead[0]):
        both = launch.backward_both(ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)  # type: ignore[arg-type]
    else:
        both = _apart(cpu.backward, ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)
    return tuple(ahead[0].new_empty(0) if g is None else g for gradients in both for g in gradients)


for _device in ("CPU", "CUDA"):
    ops.library.impl("scan_both", _scan_both, _device)
    ops.library.impl("scan_both_backward", _scan_both_backward, _device)


@torch.library.register_fake("linear_scan::scan_both", lib=ops.library)
def _scan_both_fake(*inputs: Any) -> tuple[Tensor, ...]:
    gates, tokens, initial, gates_reverse, tokens_reverse, initial_reverse, cu_seqlens, dim, log_gates, want = inputs
    states, final = ops.scan_fake(gates, tokens, initial, cu_seqlens, dim, False, log_gates, want)
    states_reverse, final_reverse = ops.scan_fake(
        gates_reverse, tokens_reverse, initial_reverse, cu_seqlens, dim, True, log_gates, want
    )
    return states, states_reverse, final, final_reverse


@torch.library.register_fake("linear_scan::scan_both_backward", lib=ops.library)
def _scan_both_backward_fake(*inputs: Any) -> tuple[Tensor, ...]:
    cu_seqlens, tokens_dtype, dim, log_gates, needs = inputs[10:]
    gradients: list[Tensor] = []
    for branch, reverse, asked in ((inputs[:5], False, needs[:3]), (inputs[5:10], True, needs[3:])):
        gates, states, initial, d_states, d_final = branch
        gradients += ops.scan_backward_fake(
            gates, states, initial, cu_seqlens, d_states, d_final, tokens_dtype, dim, reverse, log_gates, *asked
        )
    return tuple(gradients)


def _traced_gradients(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    return _backward(ctx, incoming, True)


torch.library.register_autograd("linear_scan::scan_both", _traced_gradients, setup_context=_save, lib=ops.library)
torch.library.register_autograd("linear_scan::scan_both_backward", ops.no_second_derivative, lib=ops.library)
