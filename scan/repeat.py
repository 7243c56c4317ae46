"""A call that is like an earlier one in all that was checked and decided then: two outputs and a launch.

On short rows whatever else the host does takes longer than the device needs. Such calls have no initial state and no
packing; what they need of an earlier one is found by what decides a launch, or held by their context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import launch
from scan.launch import Plan

# What torch.compile guards its graphs by, and what its graphs allocate by: one call in C++ each.
_compiled = torch._C._dynamo.guards  # pyright: ignore[reportAttributeAccessIssue]


class Options(NamedTuple):
    """The arguments of a call that are no tensors."""

    dim: int
    reverse: bool
    log_gates: bool
    want_final: bool


class Known:
    """What is kept of calls, found by their tensors, whatever these are, and by options.

    Of each options the latest call is looked at first. Its guard is true of tensors with its types, dtypes, devices,
    shapes and strides, of which the same ask for gradients, and that have memory and no mark of a negation. It is true
    of no tensor twice.
    """

    def __init__(self, most: int) -> None:
        self.kept: dict[Any, tuple[Any, dict[Any, Callable[..., bool]]]] = {}
        self._latest: dict[Any, tuple[Callable[..., bool], Any]] = {}
        self._most = most

    def find(self, options: Any, *tensors: Tensor) -> Any:
        """What was kept of a call like this one, or None."""
        latest = self._latest.get(options)
        if latest is not None and latest[0](*tensors):
            return latest[1]
        if not have_memory(tensors):
            return None
        found = self.kept.get(_key(options, tensors))
        if found is None or not all(map(launch.is_stored, tensors)):
            return None
        value, guards = found
        kind = tuple((type(t), t.requires_grad) for t in tensors)
        guard = guards.get(kind)
        if guard is None:
            sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
            guard = _compiled.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
            guards[kind] = guard
        launch.keep(self._latest, options, (guard, value), self._most)
        return value

    def keep(self, value: Any, options: Any, *tensors: Tensor) -> None:
        """Keeps a value unless there is one."""
        key = _key(options, tensors)
        if key not in self.kept:
            launch.keep(self.kept, key, (value, {}), self._most)


def _key(options: Any, tensors: Iterable[Tensor]) -> Any:
    return options, *[(t.dtype, t.shape, t.stride(), t.device) for t in tensors]


def have_memory(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors have memory of their own.

    Batched tensors, what a transform has left behind, and zeros that are a mark only have none.
    """
    try:
        return all(t.data_ptr() for t in tensors)
    except RuntimeError:
        return False


Make = Callable[[], Tensor]


class Call(NamedTuple):
    """What calls of one kind share."""

    plan: Plan
    options: Options
    tokens_dtype: torch.dtype
    states: Make
    final_state: Make | None
    backward: Known


class Backward(NamedTuple):
    """What backwards of one kind share."""

    plan: Plan
    d_gates: Make | None
    d_tokens: Make | None


def make_like(tensor: Tensor | None) -> Make | None:
    """Makes tensors like one, in half the time that `torch.empty_like` takes."""
    if tensor is None:
        return None
    empty = _compiled._empty_strided_cuda if tensor.is_cuda else _compiled._empty_strided_cpu
    return partial(empty, tuple(tensor.shape), tensor.stride(), tensor.dtype)


Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]

_MOST_CALLS = 4096
_MOST_BACKWARD = 64
_calls = Known(_MOST_CALLS)
_calls_of_both = Known(_MOST_CALLS)


def known(gates: Tensor, tokens: Tensor, options: tuple[Any, ...]) -> Call | None:
    """The earlier call that `forward` may repeat for arguments which nobody needs to have checked."""
    # Each shape has a guard that is looked at first: layers of a network differ in it and take turns.
    call = _calls.find((options, tokens.shape), gates, tokens)
    return None if call is None or launch.is_elsewhere(tokens) else call


def first(gates: Tensor, tokens: Tensor, options: Options) -> tuple[Tensor, Tensor | None]:
    """`launch.forward` of checked arguments, whose kind will be `known` once its launch is kept."""
    states, final_state, plan = launch.planned_forward(gates, tokens, None, None, *options)
    unlike = states.dtype != tokens.dtype or low_bits([t.data_ptr() for t in (gates, tokens, states)])
    if plan is not None and not unlike:
        _calls.keep(_call(plan, options, tokens.dtype, states, final_state), (options, tokens.shape), gates, tokens)
    return states, final_state


def forward(call: Call, gates: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """States, and the final state if wanted, of arguments for which `known` gave the call."""
    plan, options, _, make_states, make_final, _ = call
    states = make_states()
    final_state = final_address = None
    if make_final is not None:
        final_state = make_final()
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
    kept = call.backward.find(needs, gates, states, d_states)
    if kept is not None and not launch.is_elsewhere(states):
        plan, make_gates, make_tokens = kept
        d_gates = d_tokens = fourth = fifth = None
        first, second, third = gates.data_ptr(), states.data_ptr(), d_states.data_ptr()
        bits = first | second | third
        if make_gates is not None:
            d_gates = make_gates()
            fourth = d_gates.data_ptr()
            bits |= fourth
        if make_tokens is not None:
            d_tokens = make_tokens()
            fifth = d_tokens.data_ptr()
            bits |= fifth
        if not bits & 15:
            plan(states.get_device(), first, second, third, fourth, fifth, None, None, None, None, None, None, None)
            return d_gates, d_tokens
    dim, reverse, log_gates, _ = call.options
    gradients, plan = launch.planned_backward(
        gates, states, None, None, d_states, None, call.tokens_dtype, dim, reverse, log_gates, (*needs, False)
    )
    addresses = [None if t is None else t.data_ptr() for t in (gates, states, d_states, *gradients)]
    if plan is not None and not low_bits(addresses):
        kept = Backward(plan, make_like(gradients[0]), make_like(gradients[1]))
        call.backward.keep(kept, needs, gates, states, d_states)
    return gradients[:2]


def known_both(ahead: Pair, back: Pair, options: Options) -> Call | None:
    """The earlier call that `forward_both` may repeat for gates and tokens `ahead` and, in reverse, `back`."""
    same, tensors = _distinct(ahead, back)
    call = _calls_of_both.find((options, same, tensors[1].shape), *tensors)
    return None if call is None or launch.is_elsewhere(ahead[1]) else call


def _distinct(ahead: Sequence[Tensor], back: Sequence[Tensor]) -> tuple[tuple[bool, ...], tuple[Tensor, ...]]:
    """Which tensors of both directions are the same, and all once: a guard is true of no tensor twice.

    Of one pair of tensors a call is one of `shared.py`, where that serves it, whatever is known of two pairs.
    """
    same = tuple([a is b for a, b in zip(ahead, back, strict=True)])
    return same, (*ahead, *[b for b, known in zip(back, same, strict=True) if not known])


def first_both(ahead: Pair, back: Pair, options: Options) -> launch.Both:
    """`launch.forward_both` of checked arguments, whose kind will be `known_both` once its launch is kept."""
    dim, _, log_gates, want_final = options
    outputs, plan = launch.planned_forward_both((*ahead, None), (*back, None), None, dim, log_gates, want_final)
    tensors = (*ahead, *back, *outputs[:2])
    unlike = outputs[0].dtype != ahead[1].dtype or low_bits([t.data_ptr() for t in tensors])
    if plan is not None and not unlike:
        call = _call(plan, options, ahead[1].dtype, outputs[0], outputs[2])
        same, tensors = _distinct(ahead, back)
        _calls_of_both.keep(call, (options, same, tensors[1].shape), *tensors)
    return outputs


def forward_both(call: Call, ahead: Pair, back: Pair) -> launch.Both:
    """Both states, and both final states if wanted, of arguments for which `known_both` gave the call."""
    (gates, tokens), (gates_reverse, tokens_reverse) = ahead, back
    plan, options, _, make_states, make_final, _ = call
    states, states_reverse = make_states(), make_states()
    final = final_reverse = address = address_reverse = None
    if make_final is not None:
        final, final_reverse = make_final(), make_final()
        address, address_reverse = final.data_ptr(), final_reverse.data_ptr()
    read, added, written = gates.data_ptr(), tokens.data_ptr(), states.data_ptr()
    other, other_added, other_written = gates_reverse.data_ptr(), tokens_reverse.data_ptr(), states_reverse.data_ptr()
    if (read | added | written | other | other_added | other_written) & 15:
        dim, _, log_gates, want_final = options
        return launch.forward_both((*ahead, None), (*back, None), None, dim, log_gates, want_final)
    plan(
        tokens.get_device(), read, added, written, None, address, other, other_added, other_written, None,
        address_reverse, None, None, None, None,
    )  # fmt: skip
    return states, states_reverse, final, final_reverse


def backward_both(
    call: Call, ahead: Triple, back: Triple
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
    """Gradients of gates and tokens of both directions from gates, states and incoming gradients of each."""
    # Hooks on saved tensors may give back others than they were given.
    same, given = _distinct(ahead, back)
    kept = call.backward.find(same, *given)
    if kept is not None and not launch.is_elsewhere(ahead[1]):
        (gates, states, d_states), (gates_reverse, states_reverse, d_states_reverse) = ahead, back
        plan, make_gates, make_tokens = kept
        d_gates, d_tokens, d_gates_reverse, d_tokens_reverse = make_gates(), make_tokens(), make_gates(), make_tokens()
        addresses = (
            gates.data_ptr(), states.data_ptr(), d_states.data_ptr(), d_gates.data_ptr(), d_tokens.data_ptr(),
            None, None, None,
            gates_reverse.data_ptr(), states_reverse.data_ptr(), d_states_reverse.data_ptr(),
            d_gates_reverse.data_ptr(), d_tokens_reverse.data_ptr(), None, None, None,
        )  # fmt: skip
        if not low_bits(addresses):
            plan(d_states.get_device(), *addresses, None, None, None, None)
            return (d_gates, d_tokens), (d_gates_reverse, d_tokens_reverse)
    dim, _, log_gates, _ = call.options
    saved = [(gates, states, None, d, None) for gates, states, d in (ahead, back)]
    needs = ((True, True, False),) * 2
    gradients, plan = launch.planned_backward_both(
        saved[0], saved[1], None, call.tokens_dtype, dim, log_gates, (needs[0], needs[1])
    )
    tensors = [t for each in (ahead, back, *gradients) for t in each if t is not None]
    if plan is not None and not low_bits([t.data_ptr() for t in tensors]):
        kept = Backward(plan, make_like(gradients[0][0]), make_like(gradients[0][1]))
        call.backward.keep(kept, same, *given)
    return gradients[0][:2], gradients[1][:2]


def _call(plan: Plan, options: Options, tokens_dtype: torch.dtype, states: Tensor, final_state: Tensor | None) -> Call:
    make_states = make_like(states)
    assert make_states is not None
    return Call(plan, options, tokens_dtype, make_states, make_like(final_state), Known(_MOST_BACKWARD))


def low_bits(addresses: Sequence[int | None]) -> int:
    """Not 0 where an address is no multiple of 16 bytes."""
    bits = 0
    for address in addresses:
        if address is not None:
            bits |= address
    return bits & 15
