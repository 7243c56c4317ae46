"""Calls of both directions: leaves and gradients in the order of their names, and two causal scans as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from experiments.config import DIRECTIONS, Case
from experiments.directions import apart, terms
from experiments.inputs import Inputs
from experiments.providers.base import Call, Named, Provider, of_a_later_call, outputs_of

Scan = Callable[..., Sequence[Tensor]]
"""Gates and tokens, then those of the reverse branch where it has its own, to the states, one or two tensors."""


class BothDirections(Provider):
    """A provider that is there for both directions alone."""

    directions = DIRECTIONS[1:]

    def function(self, case: Case) -> Scan:
        """Its public functions."""
        raise NotImplementedError(f"{self.name} has no function of its own")

    def api_call(self, case: Case, inputs: Inputs) -> Call:
        return differentiated(case, inputs, self.function(case))


def differentiated(case: Case, inputs: Inputs, scan: Scan) -> Call:
    """Forward as in inference, without a graph; backward on a kept graph of a call that was made before."""
    shared = inputs.shared()
    names = [name for name in shared if not name.startswith("d_states")]
    upstream = [each for name, each in shared.items() if name.startswith("d_states")]
    read = reader(case, [f"d_{name}" for name in names])
    if case.mode == "forward":

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(scan(*(shared[name] for name in names)))

        return Call(forward, read)

    leaves = [shared[name].detach().requires_grad_() for name in names]
    if case.mode == "backward":
        states = tuple(of_a_later_call(scan, leaves))
        return Call(lambda: torch.autograd.grad(states, leaves, upstream, retain_graph=True), read)

    def both() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            states = tuple(scan(*leaves))
        return *states, *torch.autograd.grad(states, leaves, upstream)

    return Call(both, read)


def reader(case: Case, gradients: Sequence[str]) -> Callable[[tuple[Tensor, ...]], Named]:
    """Outputs by name, where they come as states and then these gradients."""
    wanted = outputs_of(case)
    names = [name for name in wanted if name.startswith("states")]
    if case.mode != "forward":
        names += gradients

    def read(outputs: tuple[Tensor, ...]) -> Named:
        named = dict(zip(names, outputs, strict=True))
        return {name: named[name] for name in wanted}

    return read


def joined(case: Case, first: Named, second: Named) -> tuple[Tensor, ...]:
    """The outputs of a case from those of its directions; a sum is written over its first term."""
    ways, outputs = (first, second), []
    for name in outputs_of(case):
        values = [ways[way][term] for way, term in terms(name, case)]
        outputs.append(values[0] if len(values) == 1 else values[0].add_(values[1]))
    return tuple(outputs)


def two_launches(case: Case, inputs: Inputs, implementation: ModuleType) -> Call:
    """Both directions by the causal functions of ours below the operator, one after the other."""
    ways = apart(case, inputs)

    def forward() -> list[Named]:
        return [
            {"states": implementation.forward(
                given.gates, given.tokens, None, None, one.dim, one.reverse, False, False
            )[0]}
            for one, given in ways
        ]  # fmt: skip

    def backward(states: Sequence[Tensor]) -> list[Named]:
        found = []
        for (one, given), saved in zip(ways, states, strict=True):
            d_gates, d_tokens, _ = implementation.backward(
                given.gates, saved, None, None, given.d_states, None, given.tokens.dtype, one.dim, one.reverse, False,
                (True, True, False),
            )  # fmt: skip
            found.append({"d_gates": d_gates, "d_tokens": d_tokens})
        return found

    return _below_the_operator(case, inputs, forward, backward)


def at_once(case: Case, inputs: Inputs, implementation: ModuleType) -> Call:
    """Both directions by the functions of ours below the operator that launch them together."""
    (_, ahead), (_, back) = apart(case, inputs)

    def forward() -> list[Named]:
        given = ((ahead.gates, ahead.tokens, None), (back.gates, back.tokens, None))
        return [{"states": states} for states in implementation.forward_both(*given, None, case.dim, False, False)[:2]]

    def backward(states: Sequence[Tensor]) -> list[Named]:
        saved, saved_back = (
            (given.gates, each, None, given.d_states, None) for given, each in zip((ahead, back), states, strict=True)
        )
        needs = ((True, True, False),) * 2
        both = implementation.backward_both(saved, saved_back, None, ahead.tokens.dtype, case.dim, False, needs)
        return [{"d_gates": d_gates, "d_tokens": d_tokens} for d_gates, d_tokens, _ in both]

    return _below_the_operator(case, inputs, forward, backward)


def shared_at_once(case: Case, inputs: Inputs) -> Call:
    """Both directions of the same tensors by the functions of ours that launch one kernel each way."""
    from scan import launch_shared

    added = case.directions == "shared_sum"

    def forward(apart: bool) -> tuple[Tensor, ...]:
        outputs, _ = launch_shared.forward(inputs.gates, inputs.tokens, False, False, added, apart)
        return tuple(each for each in outputs if each is not None)

    def backward(states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made = launch_shared.backward(
            inputs.gates, states[-2], states[-1], inputs.d_states, inputs.d_states_reverse, inputs.tokens.dtype,
            False, (True, True),
        )  # fmt: skip
        assert made is not None
        return tuple(each for each in made[0] if each is not None)

    def both() -> tuple[Tensor, ...]:
        outputs = forward(True)
        # Of a sum the states are saved and no result.
        return *(outputs[:1] if added else outputs), *backward(outputs)

    def read(outputs: tuple[Tensor, ...]) -> Named:
        return dict(zip(outputs_of(case), outputs, strict=True))

    if case.mode == "forward":
        return Call(lambda: forward(not added), read)
    if case.mode == "backward":
        made: list[Tensor] = []

        def state(way: int) -> Tensor:
            if not made:
                made.extend(forward(True)[-2:])
            return made[way]

        saved = [inputs.kept(f"states of ours, way {way}", lambda way=way: state(way)) for way in (0, 1)]
        return Call(lambda: backward(saved), read)
    return Call(both, read)


def _below_the_operator(
    case: Case, inputs: Inputs, forward: Callable[[], list[Named]], backward: Callable[[Sequence[Tensor]], list[Named]]
) -> Call:
    def both() -> tuple[Tensor, ...]:
        states = forward()
        gradients = backward([each["states"] for each in states])
        first, second = (a | b for a, b in zip(states, gradients, strict=True))
        return joined(case, first, second)

    def read(outputs: tuple[Tensor, ...]) -> Named:
        return dict(zip(outputs_of(case), outputs, strict=True))

    if case.mode == "forward":
        return Call(lambda: joined(case, *forward()), read)
    if case.mode == "backward":
        made: list[Named] = []

        def state(way: int) -> Tensor:
            if not made:
                made.extend(forward())
            return made[way]["states"]

        saved = [inputs.kept(f"states of ours, way {way}", lambda way=way: state(way)) for way in (0, 1)]
        return Call(lambda: joined(case, *backward(saved)), read)
    return Call(both, read)
