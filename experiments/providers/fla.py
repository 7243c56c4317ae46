"""flash-linear-attention: HGRN in chunks, and step by step where sequences are packed.

https://github.com/fla-org/flash-linear-attention
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor

from experiments.config import Case
from experiments.inputs import Inputs
from experiments.providers.base import Call, ChannelsLastProvider

# Of the package's two implementations the only one that takes cu_seqlens (fla-core 0.6.0).
_PACKED = "fla.ops.hgrn.fused_recurrent"


class Hgrn(ChannelsLastProvider):
    """`x` and log gates `[B, T, C]`; the gradient is that of the log gates."""

    name = "hgrn"
    package = "fla.ops.hgrn.chunk"
    log_gates = True
    packed = True
    layout = "channels last, logarithms of the gates rounded to the dtype; d_gates is their gradient"

    def limits(self, case: Case, device: str) -> str | None:
        if case.lengths and case.B != 1:
            return f"hgrn packs sequences into a batch of 1, and the case has B = {case.B}."
        return None

    def packed_module(self) -> ModuleType:
        """Where its function for packed sequences is, imported now."""
        return importlib.import_module(_PACKED)

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        return {**super().detail(case, device), "function": "fused_recurrent_hgrn" if case.lengths else "chunk_hgrn"}

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        if case.lengths:
            recurrent = self.packed_module().fused_recurrent_hgrn
            return lambda log_gates, tokens: recurrent(tokens, log_gates, cu_seqlens=inputs.cu_seqlens)[0]
        chunk_hgrn = self.module().chunk_hgrn
        return lambda log_gates, tokens: chunk_hgrn(tokens, log_gates)[0]

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        gates, tokens, d_states = super().arrange(case, inputs)
        return gates.log(), tokens, d_states

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        """What its autograd.Function does, on a context of ours: kernels and casts, without autograd."""
        log_gates, tokens, d_states = self.arrange(case, inputs)
        context = _Context()
        if case.lengths:
            function = self.packed_module().FusedRecurrentHGRNFunction
            arguments: tuple[Any, ...] = (tokens, log_gates, None, False, inputs.cu_seqlens)
        else:
            function, arguments = self.module().ChunkHGRNFunction, (tokens, log_gates)

        def forward() -> Tensor:
            return function.forward(context, *arguments)[0]

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
