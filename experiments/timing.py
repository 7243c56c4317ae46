"""Samplers: how one number is taken on a device, and how providers take turns.

Device time of a call is taken from a CUDA graph that holds many calls, each on the next of several sets of buffers, so
that the L2 cache never holds what a call reads: between two calls on one set, at least four times its size moves
through it. Where a call moves that much by itself, or cannot be captured, CUDA events bracket each call, a write to a
scratch buffer flushes L2 before it, and the launches run ahead of the device. At level `api` each call starts from an
empty queue, as `triton.testing.do_bench` sees it, the host's share is read off at the same time, and a sample is the
median of its calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.providers.base import Call

Outputs = tuple[Any, ...]

_L2_ROTATIONS = 4
_LEAST_SETS = 3
_EVENTS_ABOVE_L2 = 64
_GRAPH_L2 = 64
_MOST_CALLS = 10_000
_FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Sample:
    """Milliseconds of one call, the mean or the median of a sample, and the host's share where it was taken."""

    ms: float
    host_us: float | None = None


class Sampler(Protocol):
    """Takes samples of one provider."""

    timing: str
    batch: int
    """A sample holds a multiple of this many calls."""

    def sample(self, calls: int, keep: bool = False) -> Sample:
        """The time of one call, from about this many; `keep` what the last one returned."""
        ...

    def outputs(self) -> Outputs:
        """What a call on the first set returned in the last sample, which was to keep it; held no longer."""
        ...


def l2_bytes(device: str) -> int:
    """The size of the device's L2 cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size


def fits_graph(call_bytes: int, l2: int) -> bool:
    """Whether a call is small enough for several sets of its buffers; larger ones flush the cache by themselves."""
    return call_bytes < _EVENTS_ABOVE_L2 * l2


def sets_needed(call_bytes: int, l2: int, free_bytes: int) -> int:
    """How many sets of buffers keep L2 cold: three or more if an eighth of the free memory holds them, else fewer."""
    wanted = max(_LEAST_SETS, math.ceil(_L2_ROTATIONS * l2 / call_bytes))
    return max(1, min(wanted, free_bytes // 8 // call_bytes))


def graph_order(calls: Sequence[Call], call_bytes: int, l2: int) -> list[Call]:
    """The calls of a graph: all sets in turn, again and again until the gap between two graphs is lost in the total."""
    return list(calls) * max(1, math.ceil(_GRAPH_L2 * l2 / (len(calls) * call_bytes)))


@cache
def flush_buffer(device: str) -> Tensor:
    """The memory that is written to between calls: as much as `triton.testing.do_bench` writes, and more than L2."""
    return torch.empty(max(_FLUSH_BYTES, _L2_ROTATIONS * l2_bytes(device)), dtype=torch.int8, device=device)


class GraphSampler:
    """Replays a CUDA graph of calls on sets of buffers in turn."""

    timing = "graph_replay"

    def __init__(self, calls: Sequence[Call]) -> None:
        self.batch = len(calls)
        # A graph reads addresses: what the calls hold (saved states, inputs in another layout) must live as long.
        self._calls = calls
        self._graph = torch.cuda.CUDAGraph()
        # Every output is kept: freed within the capture, the next call would write to the same, still cached, memory.
        # Other threads (JAX has some) may go on calling CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._outputs = [call.run() for call in calls]
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(self, calls: int, keep: bool = False) -> Sample:
        """The mean over replays of the whole graph."""
        replays = max(1, round(calls / self.batch))
        self._start.record()
        for _ in range(replays):
            self._graph.replay()
        self._end.record()
        torch.cuda.synchronize()
        return Sample(self._start.elapsed_time(self._end) / (replays * self.batch))

    def outputs(self) -> Outputs:
        """Those of the first call in the graph, as the last replay left them."""
        return self._outputs[0]

    def poison(self) -> None:
        """Fill every output with NaN."""
        for outputs in self._outputs:
            for tensor in outputs:
                tensor.fill_(float("nan"))


class EventSampler:
    """CUDA events around single calls, L2 flushed before each.

    `drained`: each call starts from an empty queue, and the host's time is taken; otherwise the host runs ahead of the
    device, and its time does not count.
    """

    timing = "events"
    batch = 1

    def __init__(self, call: Call, flush: Tensor, drained: bool) -> None:
        self._call, self._flush, self._drained = call, flush, drained
        self._kept: Outputs = ()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def sample(self, calls: int, keep: bool = False) -> Sample:
        """The mean over calls; of drained ones the medians of the time and of the host's.

        A thread of autograd that wakes up late makes one call in some dozens several times as long.
        """
        while len(self._events) < calls:
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        host = []
        # One set of outputs is held at a time: those of a call are dropped before the next.
        outputs: Outputs = ()
        torch.cuda.synchronize()
        self._flush.zero_()
        for start, end in self._events[:calls]:
            outputs = ()
            if self._drained:
                torch.cuda.synchronize()
            self._flush.zero_()
            start.record()
            began = time.perf_counter()
            outputs = self._call.run()
            host.append(time.perf_counter() - began)
            end.record()
        torch.cuda.synchronize()
        self._kept = outputs if keep else ()
        elapsed = [start.elapsed_time(end) for start, end in self._events[:calls]]
        if self._drained:
            return Sample(statistics.median(elapsed), statistics.median(host) * 1e6)
        return Sample(statistics.fmean(elapsed))

    def outputs(self) -> Outputs:
        """Those of the last call."""
        outputs, self._kept = self._kept, ()
        return outputs


class WallSampler:
    """The host's clock around single calls, each until its outputs are there; `prepare` runs before it."""

    timing = "host_clock"
    batch = 1

    def __init__(self, call: Call, prepare: Callable[[], None] | None = None) -> None:
        self._call, self._prepare = call, prepare
        self._kept: Outputs = ()

    def sample(self, calls: int, keep: bool = False) -> Sample:
        """The mean over calls; where a call returns before it ends, also the median of the time until it returned."""
        elapsed, host = [], []
        outputs: Outputs = ()
        for _ in range(calls):
            outputs = ()
            if self._prepare is not None:
                self._prepare()
            began = time.perf_counter()
            outputs = self._call.run()
            host.append(time.perf_counter() - began)
            if self._call.finish is not None:
                self._call.finish(outputs)
            elapsed.append(time.perf_counter() - began)
        self._kept = outputs if keep else ()
        returned = statistics.median(host) * 1e6 if self._call.finish is not None else None
        return Sample(statistics.fmean(elapsed) * 1e3, returned)

    def outputs(self) -> Outputs:
        """Those of the last call."""
        outputs, self._kept = self._kept, ()
        return outputs


def calls_for(target_ms: float, call_ms: float, batch: int) -> int:
    """How many calls fill a sample: a multiple of the batch, at least one batch."""
    wanted = min(_MOST_CALLS, math.ceil(target_ms / max(call_ms, 1e-4)))
    return batch * max(1, round(wanted / batch))


def warm_up(sampler: Sampler, warmup_ms: float) -> float:
    """Run for about that long; the milliseconds of one call by the host's clock, all its overhead included."""
    spent, calls = 0.0, 0
    while not calls or spent < warmup_ms:
        began = time.perf_counter()
        todo = sampler.batch if not calls else calls_for(warmup_ms - spent, spent / calls, sampler.batch)
        sampler.sample(todo)
        spent += (time.perf_counter() - began) * 1e3
        calls += todo
    return spent / calls


def interleave(
    samplers: Mapping[str, Sampler],
    calls: Mapping[str, int],
    repeats: int,
    finished: Callable[[str], None],
    failed: Callable[[str, Exception], None],
    spent: dict[str, float],
) -> dict[str, list[Sample]]:
    """Samples of all providers, who take turns; each round starts with another of them.

    `finished` is called right after the last sample of a provider, `failed` instead where a sample or that call raises:
    that provider has no samples, and the others go on. `spent` gets the seconds of each.
    """
    names = list(samplers)
    taken: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            if name not in taken:
                continue
            began = time.perf_counter()
            try:
                taken[name].append(samplers[name].sample(calls[name], keep=turn == repeats - 1))
                if turn == repeats - 1:
                    finished(name)
            except Exception as error:
                del taken[name]
                failed(name, error)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
    return taken
