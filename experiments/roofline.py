"""The roofline of a case: the time of a kernel that only moves the same bytes, at the same size, in the same run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.config import DIRECTIONS, Case
from experiments.inputs import Inputs, bytes_of
from experiments.providers.base import Call, Provider, outputs_of, wanted
from experiments.timing import EventSampler, GraphSampler, Sampler, flush_buffer, graph_order, l2_bytes

_COMPARED = 2**20


@dataclass(frozen=True)
class Variant:
    """A way of launching the kernel; words of 4 bytes where the size allows."""

    block: int
    warps: int
    vector: int

    def __str__(self) -> str:
        return f"block {self.block}, {self.warps} warps, vectors of {self.vector}"


def variants() -> list[Variant]:
    """The grid of block sizes, warps and vector widths from which the fastest is taken.

    A thread holds at least one vector and at most 16 words of an array; narrower vectors matter where it has few.
    Threads that hold more were never the fastest on an H200, and each variant costs a compilation.
    """
    grid = []
    for block in (512, 1024, 2048):
        for warps in (1, 2, 4, 8):
            held = block // (32 * warps)
            if held <= 16:
                grid += [Variant(block, warps, vector) for vector in (4, 2) if vector <= held]
    return grid


_BOTH = {
    "branched": {"forward": ((4, 2),), "backward": ((6, 4),), "forward_backward": ((4, 2), (6, 4))},
    "shared": {"forward": ((2, 2),), "backward": ((5, 2),), "forward_backward": ((2, 2), (5, 2))},
    "shared_sum": {"forward": ((2, 1),), "backward": ((4, 2),), "forward_backward": ((2, 3), (4, 2))},
}
"""Both directions: backward reads the gates, states and d_states of each, what they share once. The states of a sum are
written beside it where a backward follows."""


def traffic(case: Case) -> tuple[tuple[int, int], ...]:
    """Tensors read and written by each kernel of a case when each is moved once.

    Backward reads gates, d_states and, only for the gradient of the gates, states. Offsets of packed sequences, 4 bytes
    a sequence, are left out.
    """
    if case.directions in _BOTH:
        return _BOTH[case.directions][case.mode]
    backward = (3, 2) if len(wanted(case)) == 2 else (3, 1) if "gates" in wanted(case) else (2, 1)
    parts = {"forward": ((2, 1),), "backward": (backward,), "forward_backward": ((2, 1), backward)}
    return parts[case.mode]


def bytes_moved(case: Case) -> int:
    """The fewest bytes that a case can move."""
    return sum(reads + writes for reads, writes in traffic(case)) * bytes_of(case)


class Roofline(Provider):
    name = "roofline"
    devices = ("cuda", "cpu")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    dims = (-1, -2)
    directions = DIRECTIONS
    packed = True
    reversible = True
    selective = True
    computes = False

    def __init__(self) -> None:
        self._fastest: dict[tuple[int, int, int], Variant] = {}

    def prepare(self, case: Case, sets: Sequence[Inputs]) -> None:
        """Find the fastest variant for each part of the case, once a size in a process."""
        if not sets[0].tokens.is_cuda:
            return
        for part, moved in enumerate(traffic(case)):
            key = (bytes_of(case), *moved)
            if key not in self._fastest:
                times = {variant: _quick_time([_part(case, each, part, variant) for each in sets], case)
                         for variant in variants()}  # fmt: skip
                self._fastest[key] = min(times, key=times.__getitem__)

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        if torch.device(device).type == "cpu":
            return {"variant": "torch.add(out=) on integers"}
        chosen = []
        for reads, writes in traffic(case):
            variant = self._fastest[bytes_of(case), reads, writes]
            chosen.append(f"{reads} reads, {writes} writes: {variant}")
        return {"variant": "; ".join(chosen)}

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        parts = [
            _part(case, inputs, number, self._fastest.get((bytes_of(case), *moved)))
            for number, moved in enumerate(traffic(case))
        ]
        written = tuple(tensor for part in parts for tensor in part.poisonable)

        def run() -> tuple[Tensor, ...]:
            for part in parts:
                part.run()
            return written

        def check() -> str | None:
            for part in parts:
                if not part.moved():
                    return "the roofline kernel did not write what it read."
            return None

        def poison() -> None:
            for tensor in written:
                tensor.fill_(float("nan"))

        return Call(run, lambda _: {}, poison=poison, check=check)

    def api_call(self, case: Case, inputs: Inputs) -> Call:
        """The same: a limit has no overhead."""
        return self.kernel_call(case, inputs)


@dataclass(frozen=True)
class _Part:
    """One launch."""

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    poisonable: tuple[Tensor, ...]
    variant: Variant | None
    """None on the CPU."""

    def run(self) -> None:
        if self.variant is None:
            for sources, target in zip(_shares(self.reads, len(self.writes)), self.writes, strict=True):
                if len(sources) == 1:
                    target.copy_(sources[0])
                elif len(sources) == 2:
                    torch.add(*sources, out=target)
                else:
                    torch.addcmul(*sources, out=target)
            return
        from experiments.roofline_kernels import move

        kernel: Any = move
        arrays = [*self.reads, *[self.reads[0]] * (6 - len(self.reads))]
        arrays += [*self.writes, *[self.writes[0]] * (4 - len(self.writes))]
        words = self.writes[0].numel()
        kernel[(-(-words // self.variant.block),)](
            *arrays, words, READS=len(self.reads), WRITES=len(self.writes),
            BLOCK=self.variant.block, VECTOR=self.variant.vector, num_warps=self.variant.warps,
        )  # fmt: skip

    def moved(self) -> bool:
        """Whether the outputs hold what the inputs say, on every few words."""
        step = max(1, self.writes[0].numel() // _COMPARED)
        reads = [tensor[::step] for tensor in self.reads]
        if self.variant is None:
            shares = _shares(reads, len(self.writes))
            expected = [a + math.prod(more) if more else a for a, *more in shares]
        else:
            total = reads[0].clone()
            for tensor in reads[1:]:
                total ^= tensor
            expected = [total] * len(self.writes)
        return all(torch.equal(tensor[::step], value) for tensor, value in zip(self.writes, expected, strict=True))


def _shares(reads: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    """The arrays that make each of `count` outputs on the CPU: all of them in order, up to three an output."""
    least, more = divmod(len(reads), count)
    shares, start = [], 0
    for output in range(count):
        end = start + least + (output < more)
        # More outputs than arrays: the first again.
        shares.append(reads[start:end] or reads[:1])
        start = end
    return shares


def _part(case: Case, inputs: Inputs, number: int, variant: Variant | None) -> _Part:
    reads, writes = traffic(case)[number]
    forward = case.mode != "backward" and number == 0
    sources = _read(case, inputs, forward, after_forward=number > 0)
    names = [name for name in outputs_of(case) if name.startswith("states") == forward]
    names += [f"saved {way}" for way in range(writes - len(names))]
    targets = tuple(inputs.buffer(name) for name in names)
    return _Part(
        tuple(_words(tensor) for tensor in sources[:reads]), tuple(_words(tensor) for tensor in targets),
        targets, variant,
    )  # fmt: skip


def _read(case: Case, inputs: Inputs, forward: bool, after_forward: bool) -> list[Tensor]:
    """What a part reads, most wanted first: fewer gradients read fewer.

    The backward kernel reads states that a forward kernel has just written, where there was one, and else other memory
    of that size.
    """
    gates, tokens = [inputs.gates], [inputs.tokens]
    if inputs.gates_reverse is not None and inputs.tokens_reverse is not None:
        gates, tokens = [*gates, inputs.gates_reverse], [*tokens, inputs.tokens_reverse]
    if forward:
        return [*gates, *tokens]
    ways = 1 if case.directions == DIRECTIONS[0] else 2
    names = {"shared_sum": ("saved 0", "saved 1")}.get(case.directions, ("states", "states_reverse"))[:ways]
    states = [inputs.buffer(name) for name in names]
    if not after_forward:
        states[: len(tokens)] = tokens
    d_states = [inputs.d_states] if inputs.d_states_reverse is None else [inputs.d_states, inputs.d_states_reverse]
    return [*gates, *states, *d_states]


def _words(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as integers, the widest of which it is a whole number."""
    size = tensor.numel() * tensor.element_size()
    return tensor.view(-1).view(torch.int32 if size % 4 == 0 else torch.int16)


def _quick_time(parts: list[_Part], case: Case) -> float:
    """Milliseconds of one launch, roughly: the better of two samples with a cold cache."""
    calls = [Call(lambda part=part: part.run() or (), lambda _: {}) for part in parts]
    calls[0].run()  # compiles
    sampler: Sampler
    device = str(parts[0].writes[0].device)
    if len(calls) > 1:
        sampler = GraphSampler(graph_order(calls, bytes_moved(case), l2_bytes(device)))
    else:
        sampler = EventSampler(calls[0], flush_buffer(device), drained=False)
    sampler.sample(sampler.batch)
    return min(sampler.sample(sampler.batch).ms for _ in range(2))
