"""PyTorch's own associative_scan, compiled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import Inputs
from experiments.providers.base import AutogradProvider, Call

_MODULE = "torch._higher_order_ops.associative_scan"
# combine_mode "generic", the only one on a CPU, is unrolled by the compiler: 7 s forward, 14 s backward, each shape.
_CPU_T = 512
# On CUDA a length takes seconds too: dynamic shapes cannot be lowered, and backward cannot be traced (PyTorch 2.11).
_CUDA_T = (512, 4096)


class TorchAssociativeScan(AutogradProvider):
    name = "torch_associative_scan"
    package = _MODULE
    devices = ("cuda", "cpu")
    dims = (-1, -2)
    reversible = True

    def limits(self, case: Case, device: str) -> str | None:
        if torch.device(device).type == "cpu" and (case.T, case.dtype) != (_CPU_T, "float32"):
            return (
                "compiling torch_associative_scan for a CPU takes 20 s a length and dtype, "
                f"so only T = {_CPU_T} in float32 is measured."
            )
        if case.level == "kernel" and case.mode != "forward":
            return "torch_associative_scan has a kernel of its own for forward alone: autograd makes the rest."
        if torch.device(device).type == "cuda":
            if case.mode != "forward":
                return "torch_associative_scan has no backward that compiles for CUDA, so only forward is measured."
            if case.T not in _CUDA_T or case.dtype != "float32":
                lengths = ", ".join(map(str, _CUDA_T))
                return (
                    "compiling torch_associative_scan takes seconds a length and dtype, "
                    f"so only T = {lengths} in float32 are measured."
                )
        return None

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs: the combine function is written in it."""
        return getattr(torch, case.dtype)

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return _compiled(inputs.tokens.device.type, case.dim, case.reverse)

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        """The compiled function; its launch from Python drops out where a CUDA graph is timed."""
        return self.api_call(case, inputs)


def combine(earlier: Any, later: Any) -> Any:
    """Two steps `h -> g * h + x` as one."""
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


@cache
def _compiled(device: str, dim: int, reverse: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """One function for every level, mode and shape; each shape is compiled once."""
    associative_scan = importlib.import_module(_MODULE).associative_scan
    # One kernel needs no pool of compiling processes, whose start would disturb what is timed meanwhile.
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1
    # A backward call that is timed again and again needs what it was saved for: no buffer of it may be given away.
    functorch: Any = importlib.import_module("torch._functorch.config")
    functorch.donated_buffer = False
    mode = "pointwise" if device == "cuda" else "generic"

    def scan(gates: Tensor, tokens: Tensor) -> Tensor:
        return associative_scan(combine, (gates, tokens), dim=dim, reverse=reverse, combine_mode=mode)[1]

    return torch.compile(scan, fullgraph=True, dynamic=False)
