"""A call that is like an earlier one in all that was checked and decided then: two outputs and a launch.

On short rows whatever else the host does takes longer than the device needs. Such calls have no initial state and no
packing; what they need of an earlier one is found by what decides a launch, or held by their context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import launch
from scan.launch import Plan


class Options(NamedTuple):
    """The arguments of a call that are no tensors."""

    dim: int
    reverse: bool
    log_gates: bool
    want_final: bool


class Call(NamedTuple):
    """What calls of one kind share."""

    plan: Plan
    options: Options
    tokens_dtype: torch.dtype
    final_shape: torch.Size | None
    final_dtype: torch.dtype | None
    backward: dict[Any, Plan]


_calls: dict[Any, Call] = {}
_MOST_CALLS = 4096
_MOST_BACKWARD = 64


def known(gates: Tensor, tokens: Tensor, options: Options) -> Call | None:
    """The earlier call that `forward` may repeat for these arguments, which nobody needs to have checked."""
    call = _calls.get(_key(gates, tokens, options))
    if (
        call is None
        or (gates.data_ptr() | tokens.data_ptr()) & 15
        or not (launch.is_stored(gates) and launch.is_stored(tokens))
        or launch.is_elsewhere(tokens)
    ):
        return None
    return call


def first(gates: Tensor, tokens: Tensor, options: Options) -> tuple[Tensor, Tensor | None]:
    """`launch.forward` of checked arguments, whose kind will be `known` once its launch is kept."""
    states, final_state, plan = launch.planned_forward(gates, tokens, None, None, *options)
    key = _key(gates, tokens, options)
    unlike = states.dtype != tokens.dtype or _low_bits([t.data_ptr() for t in (gates, tokens, states)])
    if plan is not None and key not in _calls and not unlike:
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        shape, dtype = (None, None) if final_state is None else (final_state.shape, final_state.dtype)
        _calls[key] = Call(plan, options, tokens.dtype, shape, dtype, {})
    return states, final_state


def forward(call: Call, gates: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """States, and the final state if wanted, of arguments for which `known` gave the call."""
    states = torch.empty_like(tokens)
    final_state = final_address = None
    if call.final_shape is not None:
        final_state = tokens.new_empty(call.final_shape, dtype=call.final_dtype)
        final_address = final_state.data_ptr()
    address = states.data_ptr()
    if address & 15:
        return launch.forward(gates, tokens, None, None, *call.options)
    call.plan.launch(
        gates.data_ptr(), tokens.data_ptr(), address, None, final_address, None, None, None, None,
        device=tokens.get_device(),
    )  # fmt: skip
    return states, final_state


def backward(
    call: Call, gates: Tensor, states: Tensor, d_states: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of gates and tokens, those that `needs` asks for."""
    key = (needs, d_states.dtype, d_states.stride())
    plan = call.backward.get(key)
    if plan is not None and launch.is_stored(d_states) and not launch.is_elsewhere(states):
        d_gates = torch.empty_like(gates) if needs[0] else None
        d_tokens = torch.empty_like(states) if needs[1] else None
        addresses = [None if t is None else t.data_ptr() for t in (gates, states, d_states, d_gates, d_tokens)]
        if not _low_bits(addresses):
            plan.launch(*addresses, None, None, None, None, None, None, None, device=states.get_device())
            return d_gates, d_tokens
    dim, reverse, log_gates, _ = call.options
    gradients, plan = launch.planned_backward(
        gates, states, None, None, d_states, None, call.tokens_dtype, dim, reverse, log_gates, (*needs, False)
    )
    addresses = [None if t is None else t.data_ptr() for t in (gates, states, d_states, *gradients)]
    if plan is not None and not _low_bits(addresses):
        if len(call.backward) >= _MOST_BACKWARD:
            call.backward.clear()
        call.backward[key] = plan
    return gradients[:2]


def _low_bits(addresses: Sequence[int | None]) -> int:
    """Not 0 where an address is no multiple of 16 bytes."""
    bits = 0
    for address in addresses:
        if address is not None:
            bits |= address
    return bits & 15


def _key(gates: Tensor, tokens: Tensor, options: Options) -> tuple[Any, ...]:
    return (
        gates.dtype, tokens.dtype, gates.shape, tokens.shape, gates.stride(), tokens.stride(), gates.device,
        tokens.device, options,
    )  # fmt: skip
