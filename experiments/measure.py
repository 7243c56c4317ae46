"""One case of a timing experiment: every provider checked, then all of them timed in turns.

A provider is checked on the very call that is timed, before and after. Ours is not timed when it is wrong; a competitor
outside its error budget is timed and marked.
"""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments import inputs
from experiments.config import Case, Measure
from experiments.correctness import Known, Verdict, chosen_rows, judge
from experiments.inputs import Inputs
from experiments.providers.base import OUTPUTS, Call, Provider, first_line
from experiments.providers.registry import PROVIDERS
from experiments.roofline import bytes_moved
from experiments.timing import (
    EventSampler,
    GraphSampler,
    Sample,
    Sampler,
    WallSampler,
    calls_for,
    fits_graph,
    flush_buffer,
    graph_order,
    interleave,
    l2_bytes,
    sets_needed,
    warm_up,
)

Emit = Callable[[str, dict[str, Any]], None]
Result = dict[str, Any]

# Never timed when wrong: a number of ours, or the limit that all numbers are compared with.
_MUST_BE_RIGHT = ("ours", "roofline")
_ABOVE_ROOFLINE = 1.02

_known = Known()


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of the named providers, in that order, and how they were measured."""
    bench = Bench(case, settings, device)
    results: dict[str, Result] = {}
    contenders: dict[str, Contender] = {}

    def failed(name: str, error: Exception) -> None:
        results[name] = failure(error)
        emit("traceback", {"provider": name, "text": "".join(traceback.format_exception(error))})

    for name in providers:
        emit("checking", {"provider": name})
        provider = PROVIDERS[name]
        reason = provider.refuses(case, device)
        if reason is not None:
            results[name] = {"status": "unsupported", "reason": reason}
            continue
        try:
            admitted = bench.admit(provider)
        except Exception as error:
            failed(name, error)
            release_memory(device)
            continue
        if isinstance(admitted, Contender):
            contenders[name] = admitted
        else:
            results[name] = admitted

    emit("timing", {"providers": list(contenders)})
    samples = interleave(
        {name: contender.sampler for name, contender in contenders.items()},
        {name: contender.calls for name, contender in contenders.items()},
        settings.repeats,
        lambda name: bench.judge_again(contenders[name]),
        failed,
    )
    for name, taken in samples.items():
        results[name] = bench.result(contenders[name], taken)
    ordered = {name: results[name] for name in providers}
    return {"providers": ordered, "protocol": bench.protocol() | exceeded(ordered)}


def exceeded(results: Mapping[str, Result]) -> dict[str, Any]:
    """Who is faster than the roofline, and by what factor: more than 2 % show that the roofline is wrong."""
    roofline = results.get("roofline", {}).get("samples_ms")
    if not roofline:
        return {}
    limit = statistics.median(roofline)
    above = {
        name: round(limit / statistics.median(result["samples_ms"]), 4)
        for name, result in results.items()
        if name != "roofline" and result["status"] == "ok"
    }
    return {"roofline_exceeded_by": {name: factor for name, factor in above.items() if factor > _ABOVE_ROOFLINE}}


def failure(error: Exception) -> Result:
    """The result of a provider that raised."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError) or "RESOURCE_EXHAUSTED" in str(error)
    return {"status": "oom" if out_of_memory else "error", "reason": f"{type(error).__name__}: {first_line(error)}."}


def release_memory(device: str) -> None:
    """Hand back what a failed provider held."""
    gc.collect()
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.empty_cache()
        except RuntimeError:
            # A broken context frees nothing; whoever calls it next says so in its own record.
            return


def free_bytes(device: str) -> int:
    """Device memory that PyTorch can still hand out, its own cache included."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


@dataclass
class Contender:
    """A provider that may be timed."""

    provider: Provider
    call: Call
    sampler: Sampler
    calls: int
    verdict: Verdict
    detail: dict[str, Any] = field(default_factory=dict)


class Bench:
    """What the providers of a case share: the inputs, the truth, and the way of timing."""

    def __init__(self, case: Case, settings: Measure, device: str) -> None:
        self.case, self.settings, self.device = case, settings, device
        self.cuda = torch.device(device).type == "cuda"
        self.bytes = bytes_moved(case)
        self.sets: list[Inputs] = []
        self.wanted_sets = 1
        if self.cuda and fits_graph(self.bytes, l2_bytes(device)):
            self.wanted_sets = sets_needed(self.bytes, l2_bytes(device), free_bytes(device))

    def admit(self, provider: Provider) -> Contender | Result:
        """A provider that runs and is right enough to be timed, warmed up; else its result."""
        rotates = self.cuda and self.wanted_sets > 1 and (self.case.level == "kernel" or provider.name == "roofline")
        sets = self._inputs(self.wanted_sets if rotates else 1)
        provider.prepare(self.case, sets)
        calls = [provider.build(self.case, each) for each in sets]

        self._poison(calls[0])
        outputs, seconds = self._timed_run(calls[0])
        verdict = self._judge(provider, calls[0], outputs)
        if seconds > self.settings.longest_call_s:
            # The first call compiles; the second does not.
            outputs, seconds = self._timed_run(calls[0])
        del outputs
        if verdict.reason is not None and provider.name in _MUST_BE_RIGHT:
            return {"status": "wrong", "reason": verdict.reason, "errors": verdict.errors}
        if seconds > self.settings.longest_call_s:
            limit = self.settings.longest_call_s
            reason = f"one call took {seconds:.3g} s, more than measure.longest_call_s = {limit:g}."
            return {"status": "unsupported", "reason": reason, "errors": verdict.errors}

        sampler = self._sampler(provider, calls, rotates)
        if isinstance(sampler, GraphSampler):
            sampler.poison()
            sampler.sample(sampler.batch)
            verdict = self._judge(provider, calls[0], sampler.outputs())
            if verdict.reason is not None and provider.name in _MUST_BE_RIGHT:
                return {"status": "wrong", "reason": verdict.reason, "errors": verdict.errors}
        call_ms = warm_up(sampler, self.settings.warmup_ms)
        count = calls_for(self.settings.target_ms, call_ms, sampler.batch)
        detail = {"timing": sampler.timing, "calls_per_sample": count, **provider.detail(self.case, self.device)}
        return Contender(provider, calls[0], sampler, count, verdict, detail)

    def judge_again(self, contender: Contender) -> None:
        """Look at what the last timed call left: a call that did nothing must not give a number."""
        outputs = contender.sampler.outputs()
        verdict = self._judge(contender.provider, contender.call, outputs)
        if contender.verdict.reason is None and verdict.reason is not None:
            contender.verdict = Verdict(verdict.errors, f"after it was timed, {verdict.reason}")

    def result(self, contender: Contender, samples: list[Sample]) -> Result:
        """The result of a provider that was timed."""
        wrong = contender.verdict.reason is not None
        result: Result = {
            "status": "wrong" if wrong else "ok",
            "reason": contender.verdict.reason,
            "errors": contender.verdict.errors,
            "detail": contender.detail,
        }
        if wrong and contender.provider.name in _MUST_BE_RIGHT:
            return result
        result["samples_ms"] = [sample.ms for sample in samples]
        host = [sample.host_us for sample in samples if sample.host_us is not None]
        if host:
            result["host_samples_us"] = host
        if contender.provider.name == "roofline":
            result["detail"]["gbps"] = self.bytes / statistics.median(result["samples_ms"]) / 1e6
        if contender.provider.name in _MUST_BE_RIGHT:
            result["detail"]["bytes"] = self.bytes
        return result

    def protocol(self) -> dict[str, Any]:
        """How the case was measured."""
        graph = self.wanted_sets > 1 and self.case.level == "kernel"
        facts: dict[str, Any] = {
            "timing": "host_clock" if not self.cuda else GraphSampler.timing if graph else EventSampler.timing,
            "l2": "cold" if self.cuda else "warm",
            "repeats": self.settings.repeats,
            "target_ms": self.settings.target_ms,
            "warmup_ms": self.settings.warmup_ms,
            "buffer_sets": len(self.sets),
            "bytes": self.bytes,
            "rows_compared": len(chosen_rows(self.case)),
        }
        if self.cuda:
            facts["l2_bytes"] = l2_bytes(self.device)
        return facts

    def _inputs(self, count: int) -> list[Inputs]:
        while len(self.sets) < count:
            self.sets.append(inputs.draw(self.case, self.device, len(self.sets)))
        return self.sets[:count]

    def _timed_run(self, call: Call) -> tuple[tuple[Any, ...], float]:
        self._synchronize()
        began = time.perf_counter()
        outputs = call.run()
        if call.finish is not None:
            call.finish(outputs)
        self._synchronize()
        return outputs, time.perf_counter() - began

    def _poison(self, call: Call) -> None:
        """Fill the outputs with NaN, or else the memory in which an allocator is likely to place them."""
        if call.poison is not None:
            call.poison()
            return
        held = [torch.full_like(self.sets[0].tokens, float("nan")) for _ in OUTPUTS[self.case.mode]]
        del held

    def _judge(self, provider: Provider, call: Call, outputs: tuple[Any, ...]) -> Verdict:
        if call.check is not None:
            return Verdict({}, call.check())
        known = _known.exact(self.case, self.device, self.sets[0], provider.log_gates)
        return judge(call.read(outputs), self.case, known, provider.accumulates(self.case, self.device))

    def _sampler(self, provider: Provider, calls: list[Call], rotates: bool) -> Sampler:
        if not self.cuda:
            return WallSampler(calls[0])
        if rotates:
            try:
                return GraphSampler(graph_order(calls, self.bytes, l2_bytes(self.device)))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                # What cannot be captured is timed by events, and its row says so.
                torch.cuda.synchronize()
        flush = flush_buffer(self.device)
        if calls[0].finish is not None:

            def empty_queue_cold_cache() -> None:
                flush.zero_()
                torch.cuda.synchronize()

            return WallSampler(calls[0], empty_queue_cold_cache)
        return EventSampler(calls[0], flush, drained=self.case.level == "api" and provider.name != "roofline")

    def _synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()
