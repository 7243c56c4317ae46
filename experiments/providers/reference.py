"""The scans of `scan.reference`, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import AutogradProvider, ChannelsLastProvider
from scan import reference


class _Reference(AutogradProvider):
    levels = ("api",)
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

    @property
    def no_kernel(self) -> str:  # type: ignore[override]
        """The same for all three."""
        return f"{self.name} is a composition of PyTorch operators: it has no kernel to call directly, see level api."

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs."""
        return DTYPES[case.dtype]


class Sequential(_Reference):
    name = "sequential"
    dims = (-1, -2)
    packed = True
    reversible = True
    layout = "that of the case; computed and returned in float64"

    def limits(self, case: Case, device: str) -> str | None:
        kind = torch.device(device).type
        longest = 512 if kind == "cuda" else 4096
        if case.T > longest:
            return f"sequential takes a Python iteration a step, so only T <= {longest} is measured on {kind}."
        return None

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """Always float64."""
        return torch.float64

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        return inputs.gates, inputs.tokens, inputs.d_states.double()

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        dim, reverse, cu_seqlens = case.dim, case.reverse, inputs.cu_seqlens
        return lambda gates, tokens: reference.sequential_scan(
            gates, tokens, dim=dim, reverse=reverse, cu_seqlens=cu_seqlens
        )


class HillisSteele(_Reference, ChannelsLastProvider):
    name = "hillis_steele"

    def limits(self, case: Case, device: str) -> str | None:
        if torch.device(device).type == "cuda" and case.T > 4096:
            return "hillis_steele does T log2(T) work and keeps it all for backward, so only T <= 4096 is measured."
        return None

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return reference.parallel_scan


class Blelloch(_Reference):
    name = "blelloch"
    reversible = True

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        reverse = case.reverse
        return lambda gates, tokens: reference.blelloch_scan(gates, tokens, reverse)
