"""Both directions by accelerated-scan's warp, which has one: the second between flips of its inputs and outputs."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from experiments.config import Case
from experiments.directions import apart
from experiments.inputs import DTYPES, Inputs
from experiments.providers.accelerated_scan import Warp, overruns
from experiments.providers.base import Call, Named, outputs_of
from experiments.providers.both import BothDirections, Scan, joined

_warp = Warp()


class WarpFlips(BothDirections):
    """Backward of the flipped direction starts from the flipped gates and states, which autograd would have kept."""

    name = "warp_flips"
    package = Warp.package
    layout = "the second direction flipped along time by torch.flip, there and back"

    def limits(self, case: Case, device: str) -> str | None:
        if overruns(DTYPES[case.dtype], case.T):
            return (
                "warp reads and writes past the end of its tensors in 16 bits at this length, and torch.flip leaves no "
                "room behind those that it makes."
            )
        return _warp.limits(case, device)

    def missing(self) -> str | None:
        return _warp.missing()

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs."""
        return DTYPES[case.dtype]

    def function(self, case: Case) -> Scan:
        warp, added = self.module().scan, case.directions == "shared_sum"

        def scan(gates: Tensor, tokens: Tensor, *second: Tensor) -> tuple[Tensor, ...]:
            states = warp(gates, tokens)
            states_reverse = flipped(warp(*map(flipped, second or (gates, tokens))))
            return (states + states_reverse,) if added else (states, states_reverse)

        return scan

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        package = self.module()
        (_, first), (_, second) = apart(case, inputs)

        def forward() -> tuple[Tensor, Tensor, Tensor]:
            """The states of both, and the gates of the second, flipped."""
            gates = flipped(second.gates)
            return (
                _forward(package, first.gates, first.tokens),
                _forward(package, gates, flipped(second.tokens)),
                gates,
            )

        def backward(states: Tensor, states_reverse: Tensor, gates_reverse: Tensor) -> tuple[Named, Named]:
            ahead = _backward(package, first.gates, states, first.d_states)
            back = _backward(package, gates_reverse, states_reverse, flipped(second.d_states))
            return ahead, {name: flipped(each) for name, each in back.items()}

        def both() -> tuple[Tensor, ...]:
            made = forward()
            ahead, back = backward(*made)
            return joined(case, {"states": made[0], **ahead}, {"states": flipped(made[1]), **back})

        def only_forward() -> tuple[Tensor, ...]:
            states, states_reverse, _ = forward()
            return joined(case, {"states": states}, {"states": flipped(states_reverse)})

        def read(outputs: tuple[Tensor, ...]) -> Named:
            return dict(zip(outputs_of(case), outputs, strict=True))

        if case.mode == "forward":
            return Call(only_forward, read)
        if case.mode == "backward":
            saved = forward()
            return Call(lambda: joined(case, *backward(*saved)), read)
        return Call(both, read)


def flipped(tensor: Tensor) -> Tensor:
    """A copy with time the other way round."""
    return torch.flip(tensor, (-1,))


def _forward(package: ModuleType, gates: Tensor, tokens: Tensor) -> Tensor:
    states = torch.empty_like(tokens)
    _warp.forward(package, gates, tokens, states)
    return states


def _backward(package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor) -> Named:
    d_gates, d_tokens = torch.empty_like(gates), torch.empty_like(states)
    _warp.backward(package, gates, states, d_states, d_gates, d_tokens)
    return {"d_gates": d_gates, "d_tokens": d_tokens}
