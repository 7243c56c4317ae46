"""What a caller would do with our causal kernels for time contiguous, had the library nothing else."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from experiments.config import Case
from experiments.inputs import Inputs
from experiments.providers.base import AutogradProvider, Call
from experiments.providers.both import BothDirections, Scan, two_launches
from experiments.providers.ours import Ours, implementation_for


class Transposed(AutogradProvider):
    """Channels last by transposing around our own kernel: gates and tokens in, states out, and so their gradients.

    Backward starts from the transposed gates and states, which autograd would have kept, so that it transposes one
    tensor in and two out.
    """

    name = "transposed"
    devices = Ours.devices
    dtypes = Ours.dtypes
    dims = (-2,)

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        from scan import linear_scan

        return lambda gates, tokens: _turned(linear_scan(_turned(gates), _turned(tokens)).states)

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        implementation, dtype = implementation_for(inputs), inputs.tokens.dtype

        def scanned(gates: Tensor) -> Tensor:
            return implementation.forward(gates, _turned(inputs.tokens), None, None, -1, False, False, False)[0]

        def backward(gates: Tensor, states: Tensor) -> tuple[Tensor, ...]:
            d_gates, d_tokens, _ = implementation.backward(
                gates, states, None, None, _turned(inputs.d_states), None, dtype, -1, False, False, (True, True, False)
            )
            return _turned(d_gates), _turned(d_tokens)

        def both() -> tuple[Tensor, ...]:
            gates = _turned(inputs.gates)
            states = scanned(gates)
            return _turned(states), *backward(gates, states)

        read = self.read(case)
        if case.mode == "forward":
            return Call(lambda: (_turned(scanned(_turned(inputs.gates))),), read)
        if case.mode == "backward":
            gates = _turned(inputs.gates)
            states = scanned(gates)
            return Call(lambda: backward(gates, states), read)
        return Call(both, read)


class TwoLaunches(BothDirections):
    """Both directions as two scans of ours; where they are added, a kernel of PyTorch adds them."""

    name = "two_launches"
    devices = Ours.devices
    dtypes = Ours.dtypes
    dims = Ours.dims

    def function(self, case: Case) -> Scan:
        from scan import linear_scan

        dim, added = case.dim, case.directions == "shared_sum"

        def scan(gates: Tensor, tokens: Tensor, *second: Tensor) -> tuple[Tensor, ...]:
            states = linear_scan(gates, tokens, dim=dim).states
            states_reverse = linear_scan(*(second or (gates, tokens)), dim=dim, reverse=True).states
            return (states + states_reverse,) if added else (states, states_reverse)

        return scan

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        return two_launches(case, inputs, implementation_for(inputs))


def _turned(tensor: Tensor) -> Tensor:
    """The other layout, in memory."""
    return tensor.transpose(1, 2).contiguous()
