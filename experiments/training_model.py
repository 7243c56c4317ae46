"""A small gated linear recurrent network, its scan left open, and the task that it is trained on.

The task is selective copying (Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023): a
few items at random places among blanks, to be named in their order at the end, where the sequence asks for one after
another. What is asked for has to be kept over all steps in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments.compile_block import Scan, exact_scan, hillis_steele, ours, warp
from experiments.config import Case
from experiments.inputs import DTYPES
from experiments.providers.accelerated_scan import overruns, scan_with_slack
from experiments.providers.base import SIXTEEN_BIT
from experiments.providers.registry import PROVIDERS
from scan.reference import parallel_scan

ITEMS, KINDS, BLOCKS = 4, 8, 2
"""How many items a sequence holds, of how many kinds; and how many blocks the network has."""
LONGEST_SEQUENTIAL = 512
_BLANK = 0

Draw = Callable[[Tensor], Tensor]


def warp_or_its_kernels(gates: Tensor, tokens: Tensor) -> Tensor:
    """accelerated-scan's `warp`; its kernels on padded memory where they leave their tensors."""
    if overruns(tokens.dtype, tokens.shape[1]):
        return scan_with_slack(gates.mT, tokens.mT).mT
    return warp(gates, tokens)


def scalar(gates: Tensor, tokens: Tensor) -> Tensor:
    """accelerated-scan's Triton kernel, which takes channels first."""
    from accelerated_scan.scalar import scan

    return scan(gates.mT.contiguous(), tokens.mT.contiguous()).mT


SCANS: dict[str, Scan] = {
    "ours": ours,
    "warp": warp_or_its_kernels,
    "scalar": scalar,
    "sequential": exact_scan,
    "hillis_steele": hillis_steele,
}
_TIME_LAST = ("warp", "scalar")


def refuses(name: str, case: Case, device: str) -> str | None:
    """Why the network is not trained with this scan, in one sentence; None if it is."""
    if name not in SCANS:
        return f"{name} is not among the scans that a network is trained with."
    if name == "sequential" and case.T > LONGEST_SEQUENTIAL:
        return (
            f"sequential takes a Python iteration a step, so it is trained with where T <= {LONGEST_SEQUENTIAL} only."
        )
    # Of warp, the kernels are called where its function would leave its tensors.
    level = "kernel" if name == "warp" and overruns(DTYPES[case.dtype], case.T) else "api"
    dim = -1 if name in _TIME_LAST else -2
    return PROVIDERS[name].refuses(Case("speed", level, case.mode, case.dtype, case.B, case.C, case.T, dim=dim), device)


def exact(gates: Tensor, tokens: Tensor) -> Tensor:
    """States computed in float64 and rounded once; in about log2(T) rounds, since sequences are long."""
    return parallel_scan(gates.double(), tokens.double()).to(tokens.dtype)


class _Rounded(torch.autograd.Function):
    """The exact scan and its gradients, with a random error in each step of either: what its rounding would leave."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, tokens: Tensor, draw: Draw) -> Tensor:
        ctx.draw = draw
        error = 1 + draw(tokens)
        states = parallel_scan(gates.double() * error, tokens.double() * error)
        ctx.save_for_backward(gates, states)
        return states

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, states = ctx.saved_tensors
        error = 1 + ctx.draw(gates)
        # From the last step to the first, where no gate follows.
        met = functional.pad(gates.double()[:, 1:], (0, 0, 0, 1)) * error
        d_tokens = parallel_scan(met.flip(1), (d_states * error).flip(1)).flip(1)
        before = functional.pad(states[:, :-1], (0, 0, 1, 0))
        return (d_tokens * before).to(gates.dtype), d_tokens.to(gates.dtype), None


def rounded(generator: torch.Generator) -> Scan:
    """The exact scan with random errors: of half a unit of accumulation in each step, then of half one in the result.

    The first is what rounding each step leaves, forward and backward; the second one rounding more to the dtype.
    """

    def uniform(like: Tensor, dtype: torch.dtype) -> Tensor:
        draw = torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float64)
        return torch.finfo(dtype).eps * (draw - 0.5)

    def scan(gates: Tensor, tokens: Tensor) -> Tensor:
        accumulated = torch.promote_types(tokens.dtype, torch.float32)
        states = _Rounded.apply(gates, tokens, lambda like: uniform(like, accumulated))
        return (states * (1 + uniform(tokens, tokens.dtype))).to(tokens.dtype)

    return scan


class Block(torch.nn.Module):
    """Norm, projection to gates, tokens and an output gate, scan, projection; added to what came in."""

    def __init__(self, width: int, length: int, scan: Scan) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.into, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.scan = scan
        with torch.no_grad():
            # Channels begin with memories of two steps to about the whole length.
            self.into.bias[:width] = torch.linspace(0, math.log(length), width)

    def forward(self, x: Tensor) -> Tensor:
        gates, tokens, shape = self.into(self.norm(x)).chunk(3, -1)
        gates = gates.sigmoid()
        return x + self.out(self.scan(gates, (1 - gates) * tokens) * functional.silu(shape))


class Network(torch.nn.Module):
    """Embedding, blocks, norm, and scores of every kind for each item that is asked for."""

    def __init__(self, width: int, length: int, scan: Scan) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1 + KINDS + ITEMS, width)
        self.blocks = torch.nn.Sequential(*(Block(width, length, scan) for _ in range(BLOCKS)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, KINDS)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(symbols))[:, -ITEMS:]))


def network_of(case: Case, scan: Scan, device: str) -> Network:
    """A network with the same first weights for every scan, drawn on the CPU; in float32, or float64 for float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        network = Network(case.C, case.T, scan)
    return network.to(device, torch.promote_types(DTYPES[case.dtype], torch.float32))


def loss_of(network: Network, case: Case, symbols: Tensor, wanted: Tensor) -> Tensor:
    """The cross-entropy over all items asked for; in 16 bits under autocast, so that the scan is given 16 bits."""
    dtype = DTYPES[case.dtype]
    with torch.autocast(symbols.device.type, dtype, enabled=dtype in SIXTEEN_BIT):
        scores = network(symbols)
    return functional.cross_entropy(
        scores.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), wanted.flatten()
    )


def batch(case: Case, step: int, device: str) -> tuple[Tensor, Tensor]:
    """Sequences of symbols `[B, T]` and the kinds to name `[B, ITEMS]`; the same on every device."""
    generator = torch.Generator().manual_seed(case.seed + 1_000_003 * step)
    kinds = torch.randint(KINDS, (case.B, ITEMS), generator=generator)
    places = torch.rand(case.B, case.T - ITEMS, generator=generator).topk(ITEMS).indices.sort(-1).values
    symbols = torch.full((case.B, case.T), _BLANK).scatter(1, places, 1 + kinds)
    symbols[:, -ITEMS:] = 1 + KINDS + torch.arange(ITEMS)
    return symbols.to(device), kinds.to(device)
