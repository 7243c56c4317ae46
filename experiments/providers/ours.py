"""The library of this repository."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.config import DIRECTIONS, Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import AutogradProvider, Call, wanted
from experiments.providers.both import Scan, at_once, differentiated, shared_at_once, two_launches

if TYPE_CHECKING:
    from scan import tuning


class Ours(AutogradProvider):
    name = "ours"
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    dims = (-1, -2)
    directions = DIRECTIONS
    packed = True
    reversible = True
    selective = True

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        from scan import linear_scan, scan_causal

        if case.dim == -1 and not case.reverse and inputs.cu_seqlens is None:
            # States and no final state, as peers return them.
            return scan_causal
        options: dict[str, Any] = {"dim": case.dim, "reverse": case.reverse, "cu_seqlens": inputs.cu_seqlens}
        return lambda gates, tokens: linear_scan(gates, tokens, **options).states

    def build(self, case: Case, inputs: Inputs) -> Call:
        """One direction as every provider; both by the public function, and below it."""
        if case.directions == DIRECTIONS[0]:
            return super().build(case, inputs)
        if case.level == "api":
            return differentiated(case, inputs, self.both(case))
        return self.both_kernels(case, inputs)

    def both(self, case: Case) -> Scan:
        """The public function of both directions."""
        from scan import linear_scan_bidirectional

        dim, added = case.dim, case.directions == "shared_sum"

        def scan(*tensors: Tensor) -> tuple[Tensor, ...]:
            output = linear_scan_bidirectional(*tensors, dim=dim, reduce="sum" if added else None)
            return (output.states,) if output.states_reverse is None else (output.states, output.states_reverse)

        return scan

    def both_kernels(self, case: Case, inputs: Inputs) -> Call:
        """What the public function launches."""
        implementation = self.implementation(inputs)
        if hasattr(implementation, "forward_both"):
            from scan import launch_shared

            if case.directions != "branched" and launch_shared.serves(inputs.gates, inputs.tokens, case.dim):
                return shared_at_once(case, inputs)
            return at_once(case, inputs, implementation)
        return two_launches(case, inputs, implementation)

    def implementation(self, inputs: Inputs) -> ModuleType:
        """The module that computes on the device of the inputs."""
        return implementation_for(inputs)

    def saved(self, inputs: Inputs, forward: Callable[[], Tensor]) -> Tensor:
        """The states that backward reads."""
        return forward()

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        """The implementation below the operator; it allocates its outputs, which a CUDA graph makes free."""
        implementation = self.implementation(inputs)
        gates, tokens, d_states, cu_seqlens = inputs.gates, inputs.tokens, inputs.d_states, inputs.cu_seqlens
        dim, reverse = case.dim, case.reverse
        needs = ("gates" in wanted(case), "tokens" in wanted(case), False)

        def forward() -> Tensor:
            return implementation.forward(gates, tokens, None, cu_seqlens, dim, reverse, False, False)[0]

        def backward(states: Tensor) -> tuple[Tensor | None, ...]:
            gradients = implementation.backward(
                gates, states, None, cu_seqlens, d_states, None, tokens.dtype, dim, reverse, False, needs
            )
            return tuple(each for each, needed in zip(gradients, needs, strict=True) if needed)

        def both() -> tuple[Tensor | None, ...]:
            states = forward()
            return states, *backward(states)

        read = self.read(case)
        if case.mode == "forward":
            return Call(lambda: (forward(),), read)
        if case.mode == "backward":
            states = self.saved(inputs, forward)
            return Call(lambda: backward(states), read)
        return Call(both, read)

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        if torch.device(device).type == "cpu":
            return {"strategy": "time_loop"}
        from scan import tuning

        itemsize = DTYPES[case.dtype].itemsize
        directions = [direction for direction in ("forward", "backward") if direction in case.mode.split("_")]
        chosen: dict[str, Any] = {}
        for direction in directions:
            backward = direction == "backward"
            if DTYPES[case.dtype].is_complex:
                packed = bool(case.lengths)
                chosen[direction] = (
                    tuning.complex_time_contiguous(case.T, itemsize, packed=packed)
                    if case.dim == -1
                    else tuning.complex_channels_last(case.T, itemsize)
                )
            elif (tile := self.shared_tile(case, backward=backward)) is not None:
                chosen[direction] = tile
            elif case.dim == -1:
                packed, n_sequences = bool(case.lengths), len(case.sequence_lengths)
                chosen[direction] = tuning.time_contiguous(
                    case.T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences, n_rows=case.B * case.C
                )
            else:
                n_rows = case.B * case.C
                chosen[direction] = tuning.channels_last(case.T, case.C, itemsize, backward=backward, n_rows=n_rows)
        strategy = "time_contiguous" if case.dim == -1 else "channels_last"
        return {"strategy": strategy, "configuration": {name: each._asdict() for name, each in chosen.items()}}

    def shared_tile(self, case: Case, *, backward: bool) -> tuning.Tile | None:
        """The tile of both directions of the same tensors, where they have one."""
        from scan import tuning

        itemsize = DTYPES[case.dtype].itemsize
        if case.directions not in ("shared", "shared_sum") or case.dim != -1:
            return None
        even, added = case.T * itemsize % 16 == 0, case.directions == "shared_sum"
        return tuning.shared(case.T, itemsize, backward=backward, even=even, n_rows=case.B * case.C, added=added)


def implementation_for(inputs: Inputs) -> ModuleType:
    """The module of the library that computes on the device of the inputs."""
    if inputs.tokens.is_cuda:
        from scan import launch as module
    else:
        from scan import cpu as module
    return module
