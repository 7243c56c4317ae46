"""The tensors that a case is measured on: its draw, always the same one for the same case and device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from experiments.config import Case

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "complex64": torch.complex64,
}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
GATE_RANGES = {"uniform_0_1": (0.0, 1.0), "uniform_099_1": (0.99, 1.0)}


@dataclass(frozen=True)
class Inputs:
    """One set of tensors in the layout of the case."""

    gates: Tensor
    tokens: Tensor
    d_states: Tensor
    cu_seqlens: Tensor | None = None
    gates_reverse: Tensor | None = None
    """The second branch, where the directions have tensors of their own."""
    tokens_reverse: Tensor | None = None
    d_states_reverse: Tensor | None = None
    """Where the second direction has states of its own."""
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    def shared(self) -> dict[str, Tensor]:
        """What every provider is given, and none may modify."""
        names = ("gates", "tokens", "d_states", "cu_seqlens", "gates_reverse", "tokens_reverse", "d_states_reverse")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}

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
    Complex gates have their modulus in the range and any angle.
    """
    dtype = DTYPES[case.dtype]
    drawn = torch.promote_types(dtype, torch.float32)
    generator = torch.Generator(device).manual_seed(case.seed + 1_000_003 * index)
    rows = (case.B, case.C, case.T)

    def gates() -> Tensor:
        low, high = GATE_RANGES[case.gates]
        sizes = torch.rand(rows, dtype=drawn.to_real(), device=device, generator=generator)
        # Rounding low + (high - low) * u may reach the end of the range, which is open.
        sizes.mul_(high - low).add_(low).clamp_(max=_below(high, drawn.to_real()))
        if not dtype.is_complex:
            return _arranged(sizes.to(dtype), case)
        angles = torch.rand(rows, dtype=drawn.to_real(), device=device, generator=generator).mul_(2 * math.pi)
        return _arranged(torch.polar(sizes, angles), case)

    def normal() -> Tensor:
        return _arranged(torch.randn(rows, dtype=drawn, device=device, generator=generator).to(dtype), case)

    inputs = Inputs(gates(), normal(), normal(), _cu_seqlens(case, device))
    if case.directions == "branched":
        inputs = replace(inputs, gates_reverse=gates(), tokens_reverse=normal())
    if case.directions in ("branched", "shared"):
        inputs = replace(inputs, d_states_reverse=normal())
    return inputs


def redraw(sets: Sequence[Inputs], case: Case, device: str) -> None:
    """Put the drawn values back where somebody has written; addresses stay, because captured graphs hold them."""
    for index, each in enumerate(sets):
        for name, tensor in draw(case, device, index).shared().items():
            each.shared()[name].copy_(tensor)


def checksums(sets: Sequence[Inputs]) -> Tensor:
    """Sums of the bit patterns of what providers share, `[sets, tensors]`, on their device."""
    return torch.stack([torch.stack([_bits(t) for t in each.shared().values()]) for each in sets])


def changed(sets: Sequence[Inputs], before: Tensor) -> list[str]:
    """The names of the tensors that have another checksum than before in any set."""
    differs = (before != checksums(sets)).any(0).tolist()
    return [name for name, each in zip(sets[0].shared(), differs, strict=True) if each]


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
