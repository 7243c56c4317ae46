"""A gated recurrent layer as models hold it, its scan left open, and the ways to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES
from experiments.providers.registry import PROVIDERS
from scan.reference import sequential_scan

Scan = Callable[[Tensor, Tensor], Tensor]
"""`(gates, tokens) -> states`, all `[B, T, C]`."""


class Block(torch.nn.Module):
    """Projection, gates, scan, projection."""

    def __init__(self, width: int, scan: Scan) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.scan = scan

    def forward(self, x: Tensor) -> Tensor:
        gates, tokens, shape = self.into(x).chunk(3, -1)
        states = self.scan(gates.sigmoid(), tokens)
        return self.out(states * torch.nn.functional.silu(shape))


@dataclass(frozen=True)
class Way:
    """How a block is run: as it is, or compiled in a mode."""

    suffix: str
    compiled: bool
    options: dict[str, Any]
    cuda_graphs: bool = False


_numbers = count()
_COMPILED, _EAGER = Way("", True, {}), Way("_eager", False, {})
_REPLAYED = Way("_reduce_overhead", True, {"mode": "reduce-overhead"}, cuda_graphs=True)


def ours(gates: Tensor, tokens: Tensor) -> Tensor:
    """The library, channels last: nothing is transposed."""
    from scan import linear_scan

    return linear_scan(gates, tokens, dim=-2).states


def warp(gates: Tensor, tokens: Tensor) -> Tensor:
    """accelerated-scan's kernel, which takes channels first."""
    from accelerated_scan.warp import scan

    return scan(gates.mT.contiguous(), tokens.mT.contiguous()).mT


def torch_associative_scan(gates: Tensor, tokens: Tensor) -> Tensor:
    """PyTorch's own."""
    from torch._higher_order_ops.associative_scan import associative_scan

    from experiments.providers.torch_scan import combine

    mode = "pointwise" if tokens.is_cuda else "generic"
    return associative_scan(combine, (gates, tokens), dim=1, combine_mode=mode)[1]


def hillis_steele(gates: Tensor, tokens: Tensor) -> Tensor:
    """A scan in PyTorch's operators, which a compiler can fuse."""
    from scan.reference import parallel_scan

    return parallel_scan(gates, tokens)


SCANS: dict[str, Scan] = {
    "ours": ours,
    "warp": warp,
    "torch_associative_scan": torch_associative_scan,
    "hillis_steele": hillis_steele,
}
WAYS: dict[str, tuple[Way, ...]] = {
    "ours": (_COMPILED, _EAGER, _REPLAYED),
    "warp": (_COMPILED, _EAGER, _REPLAYED),
    "torch_associative_scan": (_COMPILED,),
    "hillis_steele": (_COMPILED, _EAGER),
}
# The layout that each works in, which decides what it refuses.
_TIME_LAST = ("warp",)


def refuses(name: str, case: Case, device: str) -> str | None:
    """Why a block with this scan is not measured, in one sentence; None if it is."""
    if name not in SCANS:
        return f"{name} is not among the scans that a block is compiled with."
    if name == "torch_associative_scan" and torch.device(device).type == "cpu":
        return "torch_associative_scan is unrolled by the compiler on a CPU, which takes a minute with its backward."
    as_speed = Case("speed", "api", case.mode, case.dtype, case.B, case.C, case.T, dim=-1 if name in _TIME_LAST else -2)
    return PROVIDERS[name].refuses(as_speed, device)


def parameters(case: Case, device: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The same weights for every scan, drawn on the CPU."""
    generator = torch.Generator().manual_seed(case.seed)
    drawn = {}
    for name, shape in (("into.weight", (3 * case.C, case.C)), ("into.bias", (3 * case.C,)),
                        ("out.weight", (case.C, case.C)), ("out.bias", (case.C,))):  # fmt: skip
        values = (2 * torch.rand(shape, generator=generator) - 1) / case.C**0.5
        # Rounded to the dtype of the case first, so that the exact block has the very weights of the others.
        drawn[name] = values.to(DTYPES[case.dtype]).to(device, dtype)
    return drawn


def block_of(case: Case, scan: Scan, device: str, dtype: torch.dtype | None = None) -> Block:
    """A block with the weights of the case, of a class of its own.

    The compiler keeps what it compiled by code object, and asks every entry of one whether it fits.
    """
    code = Block.forward.__code__
    own = FunctionType(code.replace(co_name=f"forward_{next(_numbers)}"), Block.forward.__globals__)
    with torch.device("meta"):
        block: Block = type("Block", (Block,), {"forward": own})(case.C, scan)
    block.load_state_dict(parameters(case, device, dtype or DTYPES[case.dtype]), assign=True)
    return block.requires_grad_()


def exact_scan(gates: Tensor, tokens: Tensor) -> Tensor:
    """The sequential scan, which computes in float64; its states are rounded once."""
    return sequential_scan(gates, tokens, dim=-2).to(tokens.dtype)
