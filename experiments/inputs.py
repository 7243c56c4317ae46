"""The tensors that a case is measured on: its draw, always the same one for the same case and device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from experiments.config import Case

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_SHARED = ("gates", "tokens", "d_states", "cu_seqlens")
GATE_RANGES = {"uniform_0_1": (0.0, 1.0), "uniform_099_1": (0.99, 1.0)}


@dataclass(frozen=True)
class Inputs:
    """One set of tensors in the layout of the case."""

    gates: Tensor
    tokens: Tensor
    d_states: Tensor
    cu_seqlens: Tensor | None = None
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    def shared(self) -> dict[str, Tensor]:
        """What every provider is given, and none may modify."""
        tensors = {"gates": self.gates, "tokens": self.tokens, "d_states": self.d_states}
        return tensors if self.cu_seqlens is None else {**tensors, "cu_seqlens": self.cu_seqlens}

    def kept(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A tensor made from these inputs once, for all who read it and do not write to it."""
        if name not in self._buffers:
            self._buffers[name] = make()
        return self._buffers[name]

    def buffer(self, name: str) -> Tensor:
        """Memory for an output, shared by all calls that write to buffers given to them."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty_like(self.tokens)
        return self._buffers[name]


def shape(case: Case) -> tuple[int, int, int]:
    """`(B, C, T)`, or `(B, T, C)` where the case holds channels last."""
    return (case.B, case.C, case.T) if case.dim == -1 else (case.B, case.T, case.C)


def draw(case: Case, device: str, index: int = 0) -> Inputs:
    """Set number `index` of a case: gates uniform in the range that the case names, tokens and d_states normal.

    Drawn in float32 (float64 for float64) and rounded to the dtype, so the gates of 16-bit dtypes can become exactly 1.
    """
    dtype = DTYPES[case.dtype]
    drawn = torch.promote_types(dtype, torch.float32)
    generator = torch.Generator(device).manual_seed(case.seed + 1_000_003 * index)
    low, high = GATE_RANGES[case.gates]
    rows = (case.B, case.C, case.T)
    gates = torch.rand(rows, dtype=drawn, device=device, generator=generator)
    # Rounding low + (high - low) * u may reach the end of the range, which is open.
    gates.mul_(high - low).add_(low).clamp_(max=_below(high, drawn))
    tokens, d_states = (
        _arranged(torch.randn(rows, dtype=drawn, device=device, generator=generator).to(dtype), case) for _ in range(2)
    )
    return Inputs(_arranged(gates.to(dtype), case), tokens, d_states, _cu_seqlens(case, device))


def redraw(sets: Sequence[Inputs], case: Case, device: str) -> None:
    """Put the drawn values back where somebody has written; addresses stay, because captured graphs hold them."""
    for index, each in enumerate(sets):
        for name, tensor in draw(case, device, index).shared().items():
            each.shared()[name].copy_(tensor)


def checksums(sets: Sequence[Inputs]) -> Tensor:
    """Sums of the bit patterns of what providers share, `[sets, tensors]`, on their device."""
    return torch.stack([torch.stack([_bits(t) for t in each.shared().values()]) for each in sets])


def changed(before: Tensor, after: Tensor) -> list[str]:
    """The names of the tensors whose checksums differ in any set."""
    differs = (before != after).any(0).tolist()
    return [name for name, each in zip(_SHARED, differs, strict=False) if each]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _arranged(rows: Tensor, case: Case) -> Tensor:
    """Drawn rows `[B, C, T]` in the layout of the case, so that both layouts hold the same numbers."""
    return rows if case.dim == -1 else rows.transpose(1, 2).contiguous()


def bytes_of(case: Case) -> int:
    """The size of one tensor of the case."""
    return case.B * case.C * case.T * DTYPES[case.dtype].itemsize


def gate_values(case: Case) -> list[float]:
    """Every value that the gates of this draw can take, in order; practical for 16 bits and narrow ranges."""
    dtype = DTYPES[case.dtype]
    low, high = GATE_RANGES[case.gates]
    value = torch.tensor(low, dtype=torch.float64).to(dtype)
    last = torch.tensor(_below(high, torch.float32), dtype=torch.float32).to(dtype)
    values = [value.item()]
    while value < last:
        value = torch.nextafter(value, last)
        values.append(value.item())
    return values


def starts(case: Case) -> list[int]:
    """The first step of every sequence along the time axis, empty sequences left out."""
    ends = list(accumulate(case.sequence_lengths))
    return sorted({end - length for end, length in zip(ends, case.sequence_lengths, strict=True) if length})


def _cu_seqlens(case: Case, device: str) -> Tensor | None:
    if not case.lengths:
        return None
    return torch.tensor([0, *accumulate(case.sequence_lengths)], dtype=torch.int32, device=device)


def _below(high: float, dtype: torch.dtype) -> float:
    """The largest number of the dtype below `high`."""
    value = torch.tensor(high, dtype=dtype)
    return torch.nextafter(value, torch.tensor(-math.inf, dtype=dtype)).item()
