"""A scan and a reverse scan of the same gates and tokens, and their sum, as one operation: one launch each way.

It takes eager calls whose rows a tile holds whole (`launch_shared.serves`). What it does not take, `bidirectional.py`
does, which also computes those gradients that are more than a launch.
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
    backward: dict[Any, launch.Plan]


_calls: dict[Any, Call] = {}


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
    call = Call(options, tokens.dtype, None, {})
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
    call = _calls.get(repeated._key(gates, tokens, options))
    if (
        call is None
        or (gates.data_ptr() | tokens.data_ptr()) & 15
        or not (launch.is_stored(gates) and launch.is_stored(tokens))
        or launch.is_elsewhere(tokens)
    ):
        return None
    return call


def _is_differentiated(gates: Tensor, tokens: Tensor) -> bool:
    return torch.is_grad_enabled() and (gates.requires_grad or tokens.requires_grad)


def forward(call: Call, gates: Tensor, tokens: Tensor) -> Outputs:
    """Outputs of arguments for which `known` gave the call, or of checked ones."""
    plan, options = call.plan, call.options
    if plan is None:
        return _first(gates, tokens, options)
    _, want_final, added, apart = options
    total = states = back = final = final_back = None
    addresses: list[int | None] = [gates.data_ptr(), tokens.data_ptr(), None, None, None, None, None]
    if apart:
        states, back = torch.empty_like(tokens), torch.empty_like(tokens)
        addresses[2:4] = states.data_ptr(), back.data_ptr()
    if added:
        total = torch.empty_like(tokens)
        addresses[4] = total.data_ptr()
    if want_final:
        final = tokens.new_empty(tokens.shape[:-1], dtype=torch.float32)
        final_back = torch.empty_like(final)
        addresses[5:] = final.data_ptr(), final_back.data_ptr()
    if repeated._low_bits(addresses):
        return launch_shared.forward(gates, tokens, *options)[0]
    plan(tokens.get_device(), *addresses)
    return Outputs(total, states, back, final, final_back)


def _first(gates: Tensor, tokens: Tensor, options: Options) -> Outputs:
    """Outputs of checked arguments, whose kind will be `known` once its launch is kept."""
    outputs, plan = launch_shared.forward(gates, tokens, *options)
    key = repeated._key(gates, tokens, options)
    odd = repeated._low_bits([t.data_ptr() for t in (gates, tokens, *outputs) if t is not None])
    if plan is not None and key not in _calls and not odd:
        launch.keep(_calls, key, Call(options, tokens.dtype, plan, {}), repeated._MOST_CALLS)
    return outputs


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
    # Hooks on saved tensors may give back others than they were given.
    lie = (gates.stride(), states.stride(), states_reverse.stride())
    key = (needs, d_states.dtype, d_states.stride(), d_states_reverse is None, lie)
    plan = call.backward.get(key)
    given = (gates, states, states_reverse, d_states)
    second = d_states if d_states_reverse is None else d_states_reverse
    if (
        plan is not None
        and (second.dtype, second.stride()) == key[1:3]
        and launch.is_stored(d_states)
        and launch.is_stored(second)
        and not launch.is_elsewhere(d_states)
    ):
        d_gates = torch.empty_like(gates) if needs[0] else None
        d_tokens = torch.empty_like(states) if needs[1] else None
        addresses = [None if t is None else t.data_ptr() for t in (*given, d_states_reverse, d_gates, d_tokens)]
        if not repeated._low_bits(addresses):
            plan(states.get_device(), *addresses)
            return d_gates, d_tokens
    made = launch_shared.backward(*given, d_states_reverse, call.tokens_dtype, call.options.log_gates, needs)
    if made is None:
        return None
    gradients, plan = made
    addresses = [t.data_ptr() for t in (*given, d_states_reverse, *gradients) if t is not None]
    if plan is not None and not repeated._low_bits(addresses):
        launch.keep(call.backward, key, plan, repeated._MOST_BACKWARD)
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
