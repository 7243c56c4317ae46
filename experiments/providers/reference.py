"""The scans of `scan.reference`, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import AutogradProvider, ChannelsLastProvider, too_large
from scan import reference

# More takes tenths of a second a call on CUDA, and keeps every level of the tree for backward.
_MOST_ELEMENTS = {"hillis_steele": 8 * 1536 * 4096, "blelloch": 8 * 1536 * 16384}


class _Reference(AutogradProvider):
    levels = ("api",)
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

    @property
    def no_kernel(self) -> str:  # type: ignore[override]
        """The same for all three."""
        return f"{self.name} is a composition of PyTorch operators: it has no kernel to call directly, see level api."

    def limits(self, case: Case, device: str) -> str | None:
        return too_large(self.name, case, device, _MOST_ELEMENTS[self.name])

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs."""
        return DTYPES[case.dtype]


class Sequential(_Reference):
    name = "sequential"
    dims = (-1, -2)
    packed = True
    reversible = True
    layout = "that of the case; computed in float64, the states rounded once to the dtype before they are compared"

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

    def restore(self, case: Case, tensor: Tensor) -> Tensor:
        return tensor.to(DTYPES[case.dtype])

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        dim, reverse, cu_seqlens = case.dim, case.reverse, inputs.cu_seqlens
        return lambda gates, tokens: reference.sequential_scan(
            gates, tokens, dim=dim, reverse=reverse, cu_seqlens=cu_seqlens
        )


class HillisSteele(_Reference, ChannelsLastProvider):
    name = "hillis_steele"

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return reference.parallel_scan


class Blelloch(_Reference):
    name = "blelloch"
    reversible = True

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        reverse = case.reverse
        return lambda gates, tokens: reference.blelloch_scan(gates, tokens, reverse)
