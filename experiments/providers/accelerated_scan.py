"""accelerated-scan: `warp` (CUDA), `scalar` (Triton) and `ref` (plain PyTorch). https://github.com/proger/accelerated-scan"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import AutogradProvider, Call, Named, buffered

# Both packages compute element offsets in 32-bit integers and launch a grid (B, C).
_OFFSETS = 2**31
_GRID_AXIS = 65_535


class _AcceleratedScan(AutogradProvider):
    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return self.module().scan

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs: all three compute in it."""
        return DTYPES[case.dtype]


class _Kernels(_AcceleratedScan):
    def limits(self, case: Case, device: str) -> str | None:
        if case.C > _GRID_AXIS:
            return f"{self.name} puts channels on a grid axis of at most {_GRID_AXIS}, and the case has {case.C}."
        if case.B * case.C * case.T >= _OFFSETS:
            return f"{self.name} has 32-bit offsets, and the case has {case.B * case.C * case.T} elements."
        return None

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        """Its forward kernel."""
        raise NotImplementedError

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        """Its backward kernel."""
        raise NotImplementedError

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        package = self.module()
        gates, tokens, d_states = inputs.gates, inputs.tokens, inputs.d_states
        if case.mode == "forward":
            states = inputs.buffer("states")
            return buffered(lambda: self.forward(package, gates, tokens, states), {"states": states})

        d_gates, d_tokens = inputs.buffer("d_gates"), inputs.buffer("d_tokens")
        gradients: Named = {"d_gates": d_gates, "d_tokens": d_tokens}
        if case.mode == "backward":
            # Its own states, as its autograd.Function saves them.
            states = torch.empty_like(tokens)
            self.forward(package, gates, tokens, states)
            return buffered(lambda: self.backward(package, gates, states, d_states, d_gates, d_tokens), gradients)

        states = inputs.buffer("states")

        def both() -> None:
            self.forward(package, gates, tokens, states)
            self.backward(package, gates, states, d_states, d_gates, d_tokens)

        return buffered(both, {"states": states, **gradients})


class Warp(_Kernels):
    name = "warp"
    package = "accelerated_scan.warp"

    def limits(self, case: Case, device: str) -> str | None:
        if case.T & (case.T - 1) or not 32 <= case.T <= 65536:
            return f"warp takes T that is a power of two from 32 to 65536, and the case has {case.T}."
        return super().limits(case, device)

    def missing(self) -> str | None:
        # Its import runs nvcc, which takes a minute and ends in a traceback without a GPU.
        if not torch.cuda.is_available():
            return "accelerated_scan.warp compiles CUDA code when it is imported, and no GPU is visible."
        return super().missing()

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        package.warpscan_forward(gates, tokens, states, False)

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        package.warpscan_backward(gates, states, d_states, d_gates, d_tokens)


class Scalar(_Kernels):
    name = "scalar"
    package = "accelerated_scan.scalar"

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        B, C, T = gates.shape
        package.forward_scan[(B, C)](gates, tokens, states, seqlen=T, enable_fp_fusion=False)

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        B, C, T = gates.shape
        package.backward_scan[(B, C)](gates, states, d_states, d_tokens, d_gates, seqlen=T, enable_fp_fusion=False)


class Ref(_AcceleratedScan):
    name = "ref"
    package = "accelerated_scan.ref"
    levels = ("api",)
    no_kernel = "ref is a composition of PyTorch operators: it has no kernel to call directly, see level api."
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

    def limits(self, case: Case, device: str) -> str | None:
        return "ref fails at T = 1: its tree needs at least two steps." if case.T < 2 else None
