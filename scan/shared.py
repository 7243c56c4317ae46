"""A scan and a reverse scan of the same gates and tokens, and their sum, as one operation: one launch each way.

It takes eager calls of rows for which there are tiles (`launch_shared.serves`). What it does not take,
`bidirectional.py` does, which also computes those gradients that are more than a launch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import bidirectional, launch, launch_shared, ops
from scan import repeat as repeated
from scan.launch_shared import Gradients, Outputs


class Options(NamedTuple):
    """The arguments of a call that are no tensors, and what is returned: the sum if `added`, each state if `apart`."""

    log_gates: bool
    want_final: bool
    added: bool
    apart: bool


class Call(NamedTuple):
    """What calls of one kind share; one that is not known has no plan."""

    options: Options
    tokens_dtype: torch.dtype
    plan: launch.Plan | None
    states: repeated.Make | None
    final_state: repeated.Make | None
    backward: repeated.Known


_calls = repeated.Known(repeated._MOST_CALLS)


def scan(gates: Tensor, tokens: Tensor, dim: int, log_gates: bool, want_final: bool, added: bool) -> Outputs | None:
    """States of both directions of checked arguments, or their sum, if this form serves them; differentiable."""
    if (
        not ops.is_launched(tokens)
        or ops.is_traced((gates, tokens))
        or ops.is_apart(gates)
        or ops.is_apart(tokens)
        or not launch_shared.serves(gates, tokens, dim)
    ):
        return None
    differentiated = _is_differentiated(gates, tokens)
    options = Options(bool(log_gates), want_final, added, differentiated or not added)
    call = _call(options, tokens.dtype, None, None, None)
    return Outputs(*_Shared.apply(gates, tokens, call)) if differentiated else forward(call, gates, tokens)  # type: ignore[misc]


def repeat(gates: Tensor, tokens: Tensor, dim: int, log_gates: bool, want_final: bool, added: bool) -> Outputs | None:
    """`scan` of unchecked arguments where a call of their kind is known; else None."""
    if dim != -1 or not ops.is_repeatable(gates, tokens, dim, False, log_gates):
        return None
    differentiated = _is_differentiated(gates, tokens)
    call = known(gates, tokens, Options(log_gates, want_final, added, differentiated or not added))
    if call is None:
        return None
    return Outputs(*_apply(gates, tokens, call)) if differentiated else forward(call, gates, tokens)


def known(gates: Tensor, tokens: Tensor, options: Options) -> Call | None:
    """The earlier call that `forward` may repeat for these arguments, which nobody needs to have checked."""
    call = _calls.find((options, tokens.shape), gates, tokens)
    return None if call is None or launch.is_elsewhere(tokens) else call


def _is_differentiated(gates: Tensor, tokens: Tensor) -> bool:
    return torch.is_grad_enabled() and (gates.requires_grad or tokens.requires_grad)


def forward(call: Call, gates: Tensor, tokens: Tensor) -> Outputs:
    """Outputs of arguments for which `known` gave the call, or of checked ones."""
    options, _, plan, make_states, make_final, _ = call
    if plan is None or make_states is None:
        return _first(gates, tokens, options)
    total = states = back = final = final_back = None
    addresses: list[int | None] = [gates.data_ptr(), tokens.data_ptr(), None, None, None, None, None]
    if options.apart:
        states, back = make_states(), make_states()
        addresses[2:4] = states.data_ptr(), back.data_ptr()
    if options.added:
        total = make_states()
        addresses[4] = total.data_ptr()
    if make_final is not None:
        final, final_back = make_final(), make_final()
        addresses[5:] = final.data_ptr(), final_back.data_ptr()
    if repeated.low_bits(addresses):
        return launch_shared.forward(gates, tokens, *options)[0]
    plan(tokens.get_device(), *addresses)
    return Outputs(total, states, back, final, final_back)


def _first(gates: Tensor, tokens: Tensor, options: Options) -> Outputs:
    """Outputs of checked arguments, whose kind will be `known` once its launch is kept."""
    outputs, plan = launch_shared.forward(gates, tokens, *options)
    odd = repeated.low_bits([t.data_ptr() for t in (gates, tokens, *outputs) if t is not None])
    if plan is not None and not odd:
        like = outputs.added if outputs.states is None else outputs.states
        _calls.keep(_call(options, tokens.dtype, plan, like, outputs.final), (options, tokens.shape), gates, tokens)
    return outputs


def _call(
    options: Options, dtype: torch.dtype, plan: launch.Plan | None, states: Tensor | None, final: Tensor | None
) -> Call:
    known_backward = repeated.Known(repeated._MOST_BACKWARD)
    return Call(options, dtype, plan, repeated.make_like(states), repeated.make_like(final), known_backward)


def backward(
    call: Call,
    gates: Tensor,
    states: Tensor,
    states_reverse: Tensor,
    d_states: Tensor,
    d_states_reverse: Tensor | None,
    needs: tuple[bool, bool],
) -> Gradients | None:
    """`launch_shared.backward`."""
    given = (gates, states, states_reverse, d_states)
    tensors = given
    if d_states_reverse is not None and d_states_reverse is not d_states:
        tensors = (*given, d_states_reverse)
    # Hooks on saved tensors may give back others than they were given.
    options = needs, d_states_reverse is None, len(tensors)
    kept = call.backward.find(options, *tensors)
    if kept is not None and not launch.is_elsewhere(d_states):
        plan, make_gates, make_tokens = kept
        d_gates = None if make_gates is None else make_gates()
        d_tokens = None if make_tokens is None else make_tokens()
        addresses = [None if t is None else t.data_ptr() for t in (*given, d_states_reverse, d_gates, d_tokens)]
        if not repeated.low_bits(addresses):
            plan(states.get_device(), *addresses)
            return d_gates, d_tokens
    made = launch_shared.backward(*given, d_states_reverse, call.tokens_dtype, call.options.log_gates, needs)
    if made is None:
        return None
    gradients, plan = made
    addresses = [t.data_ptr() for t in (*tensors, *gradients) if t is not None]
    if plan is not None and not repeated.low_bits(addresses):
        kept = repeated.Backward(plan, repeated.make_like(gradients[0]), repeated.make_like(gradients[1]))
        call.backward.keep(kept, options, *tensors)
    return gradients


class _Shared(torch.autograd.Function):
    """The scans of an eager call; no forward mode. States are outputs also where only their sum is asked for.

    So a second derivative finds in what was saved how it depends on the inputs.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, tokens: Tensor, call: Call) -> tuple[Tensor | None, ...]:
        outputs = forward(call, gates, tokens)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, outputs.states, outputs.states_reverse)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        d_sum, d_states, d_reverse, d_final, d_final_reverse = incoming
        gates, states, states_reverse = ctx.saved_tensors
        needs, call = ctx.needs_input_grad[:2], ctx.call
        # Of a sum there is one gradient, and else one of each direction.
        single = d_sum if d_states is d_reverse is None else None
        if d_sum is None and d_reverse is not None:
            single = d_states
        gradients = None
        if single is not None and d_final is d_final_reverse is None and ops.backward_for(single, d_reverse) is None:
            gradients = backward(call, gates, states, states_reverse, single, d_reverse, needs)
        if gradients is None:
            ahead = (gates, states, None, _plus(d_sum, d_states), d_final)
            back = (gates, states_reverse, None, _plus(d_sum, d_reverse), d_final_reverse)
            gradients = _of_each(call, ahead, back, needs)
        return *gradients, None


_apply = super(torch.autograd.Function, _Shared).apply  # pyright: ignore[reportAttributeAccessIssue]


def _of_each(call: Call, ahead: launch.Saved, back: launch.Saved, needs: tuple[bool, bool]) -> Gradients:
    """Gradients of gates and tokens as the sum of those of two scans."""
    asked = [bidirectional._asked(saved, (*needs, False)) for saved in (ahead, back)]
    one, other = bidirectional._gradients(
        ahead, back, None, call.tokens_dtype, -1, call.options.log_gates, asked, torch.compiler.is_compiling()
    )
    return _plus(one[0], other[0]), _plus(one[1], other[1])


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of what is there."""
    return b if a is None else a if b is None else a + b
