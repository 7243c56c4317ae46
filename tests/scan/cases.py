"""One problem in many shapes: what a scan is asked, the tensors that ask it, and where these lie in memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
NAMES = dict(zip((*DTYPES, *COMPLEX), ("f16", "bf16", "f32", "f64", "c64", "c128"), strict=True))


@dataclasses.dataclass(frozen=True)
class Case:
    """What a scan is asked; printed, it is the id of its test."""

    T: int
    dtype: torch.dtype = torch.float32
    gates_dtype: torch.dtype | None = None  # None: that of the tokens
    rows: tuple[int, ...] = (3,)  # every axis but time; the last one holds the channels
    dim: int = -1
    reverse: bool = False
    lengths: tuple[int, ...] | None = None  # of packed sequences; what is left of T is slack
    initial: bool = False
    log: bool = False
    gates_layout: str = "dense"
    tokens_layout: str = "dense"
    upstream_layout: str = "dense"
    upstream: str = "both"  # which gradients arrive: states, final or both

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.rows, self.T) if self.dim == -1 else (*self.rows[:-1], self.T, *self.rows[-1:])

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.rows if self.lengths is None else (len(self.lengths), *self.rows)

    @property
    def states_dtype(self) -> torch.dtype:
        gates = self.gates_dtype or self.dtype
        return torch.promote_types(gates, self.dtype) if gates.is_complex else self.dtype

    @property
    def wide(self) -> torch.dtype:
        """The dtype in which states are carried."""
        return torch.promote_types(torch.promote_types(self.gates_dtype or self.dtype, self.dtype), torch.float32)

    @property
    def offsets(self) -> list[int]:
        return [0, self.T] if self.lengths is None else [0, *itertools.accumulate(self.lengths)]

    @property
    def keywords(self) -> dict[str, Any]:
        """Arguments that every scan takes, but for the offsets."""
        return {"dim": self.dim, "reverse": self.reverse, "log_gates": self.log}

    def __str__(self) -> str:
        dtypes = NAMES[self.dtype] if self.gates_dtype is None else f"{NAMES[self.gates_dtype]}+{NAMES[self.dtype]}"
        parts = [dtypes, f"T{self.T}", "x".join(map(str, self.rows)), "last" if self.dim == -2 else "first"]
        parts += [word for word in ("reverse", "initial", "log") if getattr(self, word)]
        if self.lengths is not None:
            parts.append(f"packed{len(self.lengths)}" + ("slack" if sum(self.lengths) < self.T else ""))
        layouts = (self.gates_layout, self.tokens_layout, self.upstream_layout)
        if layouts != ("dense",) * 3:
            parts.append("/".join(layouts))
        if self.upstream != "both":
            parts.append(f"upstream_{self.upstream}")
        return "-".join(parts)


def interpretable(tokens: torch.dtype, gates: torch.dtype | None) -> bool:
    """Whether Triton's interpreter has the casts that these dtypes need."""
    return torch.bfloat16 not in (tokens, gates) or not {torch.float64, torch.complex128} & {tokens, gates}


def grid(**axes: Iterable[Any]) -> list[Case]:
    """Every combination of the axes."""
    return [Case(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


@dataclasses.dataclass
class Inputs:
    """Leaves and upstream gradients of a case."""

    gates: Tensor
    tokens: Tensor
    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    d_states: Tensor | None
    d_final_state: Tensor | None

    def tensors(self) -> list[Tensor]:
        return [t for t in vars(self).values() if t is not None]


def draw(case: Case, device: torch.device | str = "cpu") -> Inputs:
    """Gates in [0, 1) with a few zeros, ones and negative ones among them; tokens and gradients standard normal.

    Complex gates have these values at angles from 0 to 2 pi, complex tokens a normal imaginary part, too.
    """
    random = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    gates = torch.rand(case.shape, generator=random, dtype=torch.float64)
    if case.log:
        gates = gates.clamp_min(1e-6).log()
    else:
        kind = torch.randint(0, 40, case.shape, generator=random)
        gates = gates.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0).where(kind != 2, -gates)
    tokens = torch.randn(case.shape, generator=random, dtype=torch.float64)
    upstream = torch.randn(case.shape, generator=random, dtype=torch.float64)
    initial = torch.randn(case.state_shape, generator=random, dtype=torch.float64)
    d_final = torch.randn(case.state_shape, generator=random, dtype=torch.float64)

    def to(values: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.is_complex:
            values = torch.complex(values, torch.randn(values.shape, generator=random, dtype=torch.float64))
        return values.to(device, dtype)

    gates_dtype = case.gates_dtype or case.dtype
    if gates_dtype.is_complex:
        angles = 2 * math.pi * torch.rand(case.shape, generator=random, dtype=torch.float64)
        gates = torch.complex(gates, angles) if case.log else torch.polar(gates.abs(), angles)
    return Inputs(
        laid_out(gates.to(device, gates_dtype), case.gates_layout),
        laid_out(to(tokens, case.dtype), case.tokens_layout),
        to(initial, case.states_dtype) if case.initial else None,
        None if case.lengths is None else torch.tensor(case.offsets, dtype=torch.int32, device=device),
        laid_out(to(upstream, case.states_dtype), case.upstream_layout) if case.upstream != "final" else None,
        to(d_final, case.wide) if case.upstream != "states" else None,
    )


def laid_out(values: Tensor, layout: str) -> Tensor:
    """A view that holds `values` (`expanded`: some of them, repeated), in memory that holds NaN everywhere else."""
    if layout == "dense":
        return values.contiguous()
    if layout == "swapped":  # the last two axes change places in memory
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "turned":  # the first axis comes last in memory
        return values.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "expanded":  # one step for all
        return values[..., :1].expand(values.shape)
    if layout == "spread":  # one row for all
        return values[..., :1, :].expand(values.shape)
    if layout == "scalar":  # one element for all, as the gradient of a sum
        return values.flatten()[0].expand(values.shape)
    if layout == "gaps":  # a cut out of something wider
        wide = torch.full([size + 5 for size in values.shape], math.nan, dtype=values.dtype, device=values.device)
        view = wide[tuple(slice(3, 3 + size) for size in values.shape)]
    elif layout == "strided":  # every second element
        wide = torch.full((*values.shape, 2), math.nan, dtype=values.dtype, device=values.device)
        view = wide[..., 1]
    elif layout == "offset":  # rows that begin one element behind an aligned address
        wide = torch.full([values.numel() + 2], math.nan, dtype=values.dtype, device=values.device)
        view = wide[1:-1].view(values.shape)
    elif layout == "odd":  # strides of no use on axes of one element
        view = torch.full_like(values, math.nan, memory_format=torch.contiguous_format)
        strides = [
            31 + 2 * axis if size == 1 else stride
            for axis, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True))
        ]
        view = view.as_strided(view.shape, strides)
    else:
        raise ValueError(f"no layout is called {layout!r}")
    return view.copy_(values)


def storage_bits(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor lies in, with what is beside its elements."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()  # type: ignore[call-overload, no-any-return]


def bits(tensor: Tensor) -> Tensor:
    """A tensor's bits as integers, so that NaN equals NaN and 0 differs from -0."""
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().contiguous().view(views[tensor.element_size()])
