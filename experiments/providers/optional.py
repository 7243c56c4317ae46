"""Packages that few machines have; their adapters follow the call that their own documentation shows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import Inputs
from experiments.providers.base import AutogradProvider

# The README's own boundary between its kernel for one chunk and its pipelined one.
_LONGEST_CHUNK = 512


class _Rows(AutogradProvider):
    levels = ("api",)
    layout = "rows [B * C, T]"

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        gates, tokens, d_states = (
            tensor.view(case.B * case.C, case.T) for tensor in (inputs.gates, inputs.tokens, inputs.d_states)
        )
        return gates, tokens, d_states

    def restore(self, case: Case, tensor: Tensor) -> Tensor:
        return tensor.view(case.B, case.C, case.T)


class AssociativeScanTriton(_Rows):
    """https://github.com/PheelaV/associative-scan-triton, as its README calls it: rows are channels of one batch."""

    name = "associative_scan_triton"
    package = "associative_scan_triton"
    no_kernel = "associative_scan_triton documents no call below its public functions, see level api."
    packed = True

    def limits(self, case: Case, device: str) -> str | None:
        rows = case.B * case.C
        if rows > 65_535:
            return f"associative_scan_triton puts rows on a grid axis of at most 65535, and the case has {rows}."
        return None

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        package = self.module()
        cu_seqlens = inputs.cu_seqlens
        if cu_seqlens is None:
            cu_seqlens = torch.tensor([0, case.T], device=inputs.tokens.device, dtype=torch.int32)
        longest = max(case.sequence_lengths)
        chunk_size = min(1 << (longest - 1).bit_length(), _LONGEST_CHUNK)
        grid = package.get_grid(len(cu_seqlens), longest, chunk_size=chunk_size, no_channels=case.B * case.C)
        arguments = {"cu_seqlens": cu_seqlens, "chunk_size": chunk_size, "grid": grid}
        return lambda gates, tokens: package.scan_causal(gates, tokens, arguments)


class Linrec(_Rows):
    """`linrec(inputs, coeffs, reverse)` on rows."""

    name = "linrec"
    package = "linrec"
    no_kernel = "linrec is called through its public function, see level api."
    reversible = True

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        linrec = self.module().linrec
        return lambda gates, tokens: linrec(tokens, gates, case.reverse)
