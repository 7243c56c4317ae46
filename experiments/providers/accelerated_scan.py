"""accelerated-scan: `warp` (CUDA), `scalar` and `complex` (Triton), `ref` (plain PyTorch).

https://github.com/proger/accelerated-scan
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import SIXTEEN_BIT, AutogradProvider, Call, Named, buffered, outputs_of, too_large

# All kernels compute offsets in 32-bit integers and launch a grid (B, C).
_OFFSETS = 2**31
_GRID_AXIS = 65_535
# As for blelloch, whose levels `ref` has too.
_MOST_REF_ELEMENTS = 8 * 1536 * 16384
# From this T on, `warp` moves four steps a thread as one object aligned to 16 bytes. Four 16-bit numbers fill half of
# one, so the kernel walks through twice the memory of its tensors (warp.cuh, AlignedTuple, version 0.3.1).
_WARP_OVERRUNS_FROM = 4096

# The backward kernel of `scalar` masks its shifted load of states on the left only (scalar.py, backward_scan, version
# 0.3.1), and so reads up to one block behind the last row.
_SCALAR_BLOCK = 2048


class _AcceleratedScan(AutogradProvider):
    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return self.module().scan

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs: all compute in it."""
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

    def given(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """Gates, tokens and d_states as its kernels get them."""
        return self.arrange(case, inputs)

    def output(self, case: Case, inputs: Inputs, name: str) -> Tensor:
        """Memory that its kernels write to."""
        return inputs.buffer(name)

    def saved(self, case: Case, tokens: Tensor) -> Tensor:
        """Memory for states that backward reads."""
        return torch.empty_like(tokens)

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        package = self.module()
        gates, tokens, d_states = self.given(case, inputs)
        outputs: Named = {name: self.output(case, inputs, name) for name in outputs_of(case)}
        if case.mode == "forward":
            return buffered(lambda: self.forward(package, gates, tokens, outputs["states"]), outputs)

        d_gates, d_tokens = outputs["d_gates"], outputs["d_tokens"]
        if case.mode == "backward":
            # Its own states, as its autograd.Function saves them.
            saved = self.saved(case, tokens)
            self.forward(package, gates, tokens, saved)
            return buffered(lambda: self.backward(package, gates, saved, d_states, d_gates, d_tokens), outputs)

        states = outputs["states"]

        def both() -> None:
            self.forward(package, gates, tokens, states)
            self.backward(package, gates, states, d_states, d_gates, d_tokens)

        return buffered(both, outputs)


class Warp(_Kernels):
    name = "warp"
    package = "accelerated_scan.warp"

    def limits(self, case: Case, device: str) -> str | None:
        if case.T & (case.T - 1) or not 32 <= case.T <= 65536:
            return f"warp takes T that is a power of two from 32 to 65536, and the case has {case.T}."
        if case.level == "api" and _overruns(case):
            return (
                f"warp reads and writes past the end of its tensors in 16 bits from T = {_WARP_OVERRUNS_FROM} on, "
                "so only its kernels are run there, see level kernel."
            )
        return super().limits(case, device)

    def missing(self) -> str | None:
        # Its import runs nvcc, which takes a minute and ends in a traceback without a GPU.
        if not torch.cuda.is_available():
            return "accelerated_scan.warp compiles CUDA code when it is imported, and no GPU is visible."
        return super().missing()

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        if not _overruns(case):
            return super().detail(case, device)
        return {"layout": "private copies of its inputs, and zeros of the same size behind each tensor: it reads and "
                "writes past their end"}  # fmt: skip

    def given(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        gates, tokens, d_states = super().given(case, inputs)
        if _overruns(case):
            gates, tokens, d_states = (_padded(tensor) for tensor in (gates, tokens, d_states))
        return gates, tokens, d_states

    def output(self, case: Case, inputs: Inputs, name: str) -> Tensor:
        return (
            _with_slack(inputs.tokens, inputs.tokens.numel()) if _overruns(case) else super().output(case, inputs, name)
        )

    def saved(self, case: Case, tokens: Tensor) -> Tensor:
        return _with_slack(tokens, tokens.numel()) if _overruns(case) else super().saved(case, tokens)

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        package.warpscan_forward(gates, tokens, states, False)

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        package.warpscan_backward(gates, states, d_states, d_gates, d_tokens)


class Scalar(_Kernels):
    name = "scalar"
    package = "accelerated_scan.scalar"

    def limits(self, case: Case, device: str) -> str | None:
        if case.level == "api" and case.mode != "forward" and case.T % _SCALAR_BLOCK:
            return (
                f"scalar's backward reads past the end of its saved states where T is no multiple of {_SCALAR_BLOCK}, "
                "so only its kernels are run there, see level kernel."
            )
        return super().limits(case, device)

    def output(self, case: Case, inputs: Inputs, name: str) -> Tensor:
        return _with_slack(inputs.tokens, _SCALAR_BLOCK) if name == "states" else super().output(case, inputs, name)

    def saved(self, case: Case, tokens: Tensor) -> Tensor:
        return _with_slack(tokens, _SCALAR_BLOCK)

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        B, C, T = gates.shape
        package.forward_scan[(B, C)](gates, tokens, states, seqlen=T, enable_fp_fusion=False)

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        B, C, T = gates.shape
        package.backward_scan[(B, C)](gates, states, d_states, d_tokens, d_gates, seqlen=T, enable_fp_fusion=False)


class Complex(_Kernels):
    """Numbers as pairs of float32, real part first."""

    name = "complex"
    package = "accelerated_scan.complex"
    dtypes = (torch.complex64,)

    def limits(self, case: Case, device: str) -> str | None:
        if 2 * case.B * case.C * case.T >= _OFFSETS:
            return f"{self.name} has 32-bit offsets, and the case has {2 * case.B * case.C * case.T} real numbers."
        return super().limits(case, device)

    def forward(self, package: ModuleType, gates: Tensor, tokens: Tensor, states: Tensor) -> None:
        B, C, T = gates.shape
        pairs = (torch.view_as_real(each) for each in (gates, tokens, states))
        package.forward_scan[(B, C)](*pairs, seqlen=T, enable_fp_fusion=False)

    def backward(
        self, package: ModuleType, gates: Tensor, states: Tensor, d_states: Tensor, d_gates: Tensor, d_tokens: Tensor
    ) -> None:
        B, C, T = gates.shape
        pairs = (torch.view_as_real(each) for each in (gates, states, d_states, d_tokens, d_gates))
        package.backward_scan[(B, C)](*pairs, seqlen=T, enable_fp_fusion=False)


class Ref(_AcceleratedScan):
    name = "ref"
    package = "accelerated_scan.ref"
    levels = ("api",)
    no_kernel = "ref is a composition of PyTorch operators: it has no kernel to call directly, see level api."
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

    def limits(self, case: Case, device: str) -> str | None:
        if case.T < 2:
            return "ref fails at T = 1: its tree needs at least two steps."
        return too_large(self.name, case, device, _MOST_REF_ELEMENTS)


def overruns(dtype: torch.dtype, T: int) -> bool:
    """Whether the kernels of `warp` leave their tensors."""
    return dtype in SIXTEEN_BIT and T >= _WARP_OVERRUNS_FROM


def scan_with_slack(gates: Tensor, tokens: Tensor) -> Tensor:
    """The function of `warp` where it would leave its tensors: the same kernels, each tensor with zeros behind it."""
    return _Slack.apply(gates, tokens)


class _Slack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, tokens: Tensor) -> Tensor:
        from accelerated_scan.warp import warpscan_forward

        gates, tokens = _padded(gates), _padded(tokens)
        states = _with_slack(tokens, tokens.numel())
        warpscan_forward(gates, tokens, states, False)
        ctx.save_for_backward(gates, states)
        return states

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, Tensor]:
        from accelerated_scan.warp import warpscan_backward

        gates, states = ctx.saved_tensors
        d_gates, d_tokens = (_with_slack(states, states.numel()) for _ in range(2))
        warpscan_backward(gates, states, _padded(d_states), d_gates, d_tokens)
        return d_gates, d_tokens


def _overruns(case: Case) -> bool:
    return overruns(DTYPES[case.dtype], case.T)


def _padded(tensor: Tensor) -> Tensor:
    """A contiguous copy with zeros of the same size behind it."""
    return _with_slack(tensor, tensor.numel()).copy_(tensor)


def _with_slack(like: Tensor, elements: int) -> Tensor:
    """Zeros like a contiguous tensor, with as many more behind them."""
    return like.new_zeros(like.numel() + elements)[: like.numel()].view(like.shape)
