"""flash-linear-attention: the chunk-wise HGRN kernel. https://github.com/fla-org/flash-linear-attention"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from experiments.config import Case
from experiments.inputs import Inputs
from experiments.providers.base import Call, ChannelsLastProvider


class Hgrn(ChannelsLastProvider):
    """`x` and log gates `[B, T, C]`; the gradient is that of the log gates."""

    name = "hgrn"
    package = "fla.ops.hgrn.chunk"
    log_gates = True
    layout = "channels last, logarithms of the gates rounded to the dtype; d_gates is their gradient"

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        chunk_hgrn = self.module().chunk_hgrn
        return lambda log_gates, tokens: chunk_hgrn(tokens, log_gates)[0]

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        gates, tokens, d_states = super().arrange(case, inputs)
        return gates.log(), tokens, d_states

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        """What its autograd.Function does, on a context of ours: kernels and casts, without autograd."""
        function = self.module().ChunkHGRNFunction
        log_gates, tokens, d_states = self.arrange(case, inputs)
        context = _Context()

        def forward() -> Tensor:
            return function.forward(context, tokens, log_gates)[0]

        def backward() -> tuple[Tensor, Tensor]:
            d_tokens, d_log_gates, *_ = function.backward(context, d_states)
            return d_log_gates, d_tokens

        def both() -> tuple[Tensor, ...]:
            states = forward()
            return states, *backward()

        read = self.read(case)
        if case.mode == "forward":
            return Call(lambda: (forward(),), read)
        if case.mode == "backward":
            forward()
            return Call(backward, read)
        return Call(both, read)


class _Context(SimpleNamespace):
    """Stands in for autograd's context."""

    saved_tensors: tuple[Any, ...]

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors
