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
    # What final states are like, without memory.
    final_state: Tensor | None
    backward: dict[Any, Plan]


Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]

_calls: dict[Any, Call] = {}
_calls_of_both: dict[Any, Call] = {}
_MOST_CALLS = 4096
_MOST_BACKWARD = 64


def known(gates: Tensor, tokens: Tensor, options: tuple[Any, ...]) -> Call | None:
    """The earlier call that `forward` may repeat for arguments that have memory, which nobody needs to have checked."""
    # `_key`, written out: this is the shortest path there is.
    call = _calls.get((
        gates.dtype, tokens.dtype, gates.shape, tokens.shape, gates.stride(), tokens.stride(), gates.device,
        tokens.device, options,
    ))  # fmt: skip
    if (
        call is None
        or gates.is_neg()
        or gates.is_conj()
        or tokens.is_neg()
        or tokens.is_conj()
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
        call = Call(plan, options, tokens.dtype, _without_memory(final_state), {})
        launch.keep(_calls, key, call, _MOST_CALLS)
    return states, final_state


def forward(call: Call, gates: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """States, and the final state if wanted, of arguments for which `known` gave the call."""
    plan, options, _, like, _ = call
    states = torch.empty_like(tokens)
    final_state = final_address = None
    if like is not None:
        final_state = torch.empty_like(like)
        final_address = final_state.data_ptr()
    read, added, written = gates.data_ptr(), tokens.data_ptr(), states.data_ptr()
    if (read | added | written) & 15:
        return launch.forward(gates, tokens, None, None, *options)
    plan(tokens.get_device(), read, added, written, None, final_address, None, None, None, None)
    return states, final_state


def backward(
    call: Call, gates: Tensor, states: Tensor, d_states: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of gates and tokens, those that `needs` asks for."""
    # Hooks on saved tensors may give back others than they were given.
    key = (needs, d_states.dtype, d_states.stride(), gates.stride(), states.stride())
    plan = call.backward.get(key)
    if plan is not None and not (d_states.is_neg() or d_states.is_conj() or launch.is_elsewhere(states)):
        d_gates = torch.empty_like(gates) if needs[0] else None
        d_tokens = torch.empty_like(states) if needs[1] else None
        first, second, third = gates.data_ptr(), states.data_ptr(), d_states.data_ptr()
        fourth = None if d_gates is None else d_gates.data_ptr()
        fifth = None if d_tokens is None else d_tokens.data_ptr()
        # Zeros that are a mark only have no address.
        if third and not (first | second | third | (fourth or 0) | (fifth or 0)) & 15:
            plan(states.get_device(), first, second, third, fourth, fifth, None, None, None, None, None, None, None)
            return d_gates, d_tokens
    dim, reverse, log_gates, _ = call.options
    gradients, plan = launch.planned_backward(
        gates, states, None, None, d_states, None, call.tokens_dtype, dim, reverse, log_gates, (*needs, False)
    )
    addresses = [None if t is None else t.data_ptr() for t in (gates, states, d_states, *gradients)]
    if plan is not None and not _low_bits(addresses):
        launch.keep(call.backward, key, plan, _MOST_BACKWARD)
    return gradients[:2]


def known_both(ahead: Pair, back: Pair, options: Options) -> Call | None:
    """The earlier call that `forward_both` may repeat for gates and tokens `ahead` and, in reverse, `back`."""
    (gates, tokens), (gates_reverse, tokens_reverse) = ahead, back
    call = _calls_of_both.get(_key_of_both(ahead, back, options))
    if (
        call is None
        or not (gates is gates_reverse or _alike(gates, gates_reverse))
        or not (tokens is tokens_reverse or _alike(tokens, tokens_reverse))
        or (gates.data_ptr() | tokens.data_ptr() | gates_reverse.data_ptr() | tokens_reverse.data_ptr()) & 15
        or not (launch.is_stored(gates) and launch.is_stored(tokens))
        or not (launch.is_stored(gates_reverse) and launch.is_stored(tokens_reverse))
        or launch.is_elsewhere(tokens)
    ):
        return None
    return call


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie alike on one device."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.device == other.device
    )


def first_both(ahead: Pair, back: Pair, options: Options) -> launch.Both:
    """`launch.forward_both` of checked arguments, whose kind will be `known_both` once its launch is kept."""
    dim, _, log_gates, want_final = options
    outputs, plan = launch.planned_forward_both((*ahead, None), (*back, None), None, dim, log_gates, want_final)
    key, tensors = _key_of_both(ahead, back, options), (*ahead, *back, *outputs[:2])
    unlike = outputs[0].dtype != ahead[1].dtype or _low_bits([t.data_ptr() for t in tensors])
    if plan is not None and key not in _calls_of_both and not unlike:
        call = Call(plan, options, ahead[1].dtype, _without_memory(outputs[2]), {})
        launch.keep(_calls_of_both, key, call, _MOST_CALLS)
    return outputs


def forward_both(call: Call, ahead: Pair, back: Pair) -> launch.Both:
    """Both states, and both final states if wanted, of arguments for which `known_both` gave the call."""
    tokens = ahead[1]
    states, states_reverse = torch.empty_like(tokens), torch.empty_like(tokens)
    final = final_reverse = address = address_reverse = None
    if call.final_state is not None:
        final, final_reverse = torch.empty_like(call.final_state), torch.empty_like(call.final_state)
        address, address_reverse = final.data_ptr(), final_reverse.data_ptr()
    if (states.data_ptr() | states_reverse.data_ptr()) & 15:
        dim, _, log_gates, want_final = call.options
        return launch.forward_both((*ahead, None), (*back, None), None, dim, log_gates, want_final)
    call.plan(
        tokens.get_device(), ahead[0].data_ptr(), tokens.data_ptr(), states.data_ptr(), None, address,
        back[0].data_ptr(), back[1].data_ptr(), states_reverse.data_ptr(), None, address_reverse,
        None, None, None, None,
    )  # fmt: skip
    return states, states_reverse, final, final_reverse


def backward_both(
    call: Call, ahead: Triple, back: Triple
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
    """Gradients of gates and tokens of both directions from gates, states and incoming gradients of each."""
    d_states, d_states_reverse = ahead[2], back[2]
    # Hooks on saved tensors may give back others than they were given.
    key = tuple(t.stride() for t in (*ahead, *back)), d_states.dtype
    plan = call.backward.get(key)
    if (
        plan is not None
        and d_states_reverse.dtype == d_states.dtype
        and launch.is_stored(d_states)
        and launch.is_stored(d_states_reverse)
        and not launch.is_elsewhere(d_states)
    ):
        (gates, states, _), (gates_reverse, states_reverse, _) = ahead, back
        d_gates, d_tokens = torch.empty_like(gates), torch.empty_like(states)
        d_gates_reverse, d_tokens_reverse = torch.empty_like(gates_reverse), torch.empty_like(states_reverse)
        addresses = (
            gates.data_ptr(), states.data_ptr(), d_states.data_ptr(), d_gates.data_ptr(), d_tokens.data_ptr(),
            None, None, None,
            gates_reverse.data_ptr(), states_reverse.data_ptr(), d_states_reverse.data_ptr(),
            d_gates_reverse.data_ptr(), d_tokens_reverse.data_ptr(), None, None, None,
        )  # fmt: skip
        if not _low_bits(addresses):
            plan(d_states.get_device(), *addresses, None, None, None, None)
            return (d_gates, d_tokens), (d_gates_reverse, d_tokens_reverse)
    dim, _, log_gates, _ = call.options
    saved = [(gates, states, None, d, None) for gates, states, d in (ahead, back)]
    needs = ((True, True, False),) * 2
    gradients, plan = launch.planned_backward_both(
        saved[0], saved[1], None, call.tokens_dtype, dim, log_gates, (needs[0], needs[1])
    )
    tensors = [t for each in (ahead, back, *gradients) for t in each if t is not None]
    if plan is not None and not _low_bits([t.data_ptr() for t in tensors]):
        launch.keep(call.backward, key, plan, _MOST_BACKWARD)
    return gradients[0][:2], gradients[1][:2]


def _without_memory(tensor: Tensor | None) -> Tensor | None:
    """What `torch.empty_like` needs of a tensor: from it a tensor is made in half the time that a shape takes."""
    if tensor is None:
        return None
    like = torch.empty_like(tensor)
    like.untyped_storage().resize_(0)
    return like


def _low_bits(addresses: Sequence[int | None]) -> int:
    """Not 0 where an address is no multiple of 16 bytes."""
    bits = 0
    for address in addresses:
        if address is not None:
            bits |= address
    return bits & 15


def _key(gates: Tensor, tokens: Tensor, options: tuple[Any, ...]) -> tuple[Any, ...]:
    return (
        gates.dtype, tokens.dtype, gates.shape, tokens.shape, gates.stride(), tokens.stride(), gates.device,
        tokens.device, options,
    )  # fmt: skip


def _key_of_both(ahead: Pair, back: Pair, options: Options) -> tuple[Any, ...]:
    """What decides a call of both directions: of one pair of tensors it is one of `shared.py`, where that serves it."""
    return *_key(*ahead, options), ahead[0] is back[0] and ahead[1] is back[1]
