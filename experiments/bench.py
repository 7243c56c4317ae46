"""What the providers of a timed case share: inputs, truth, the way of timing, and the gate that each passes.

A provider is checked on the very call that is timed, before and after. Ours is not timed when it is wrong; a competitor
outside its error budget is timed and marked. One that modifies what all are given is named, and the values put back.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments import inputs
from experiments.config import Case, Measure
from experiments.correctness import Both, Exact, Known, Verdict, chosen_rows, judge
from experiments.inputs import Inputs
from experiments.pace import Pace
from experiments.providers.base import Call, Provider, outputs_of
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
    l2_bytes,
    sets_needed,
    warm_up,
)

Result = dict[str, Any]

# Never timed when wrong: a number of ours, or the limit that all numbers are compared with.
MUST_BE_RIGHT = ("ours", "roofline")

_known = Known()
_pace = Pace()


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
    """The ground that the providers of one case meet on."""

    def __init__(self, case: Case, settings: Measure, device: str) -> None:
        self.case, self.settings, self.device = case, settings, device
        self.cuda = torch.device(device).type == "cuda"
        self.bytes = bytes_moved(case)
        self.wanted_sets = 1
        if self.cuda:
            make_room(device)
            if fits_graph(self.bytes, l2_bytes(device)):
                self.wanted_sets = sets_needed(self.bytes, l2_bytes(device), free_bytes(device))
        self.sets: list[Inputs] = []
        self._inputs(1)
        # What earlier work left to fail is not to be blamed on the first provider.
        self._synchronize()

    def admit(self, provider: Provider) -> Contender | Result:
        """A provider that runs and is right enough to be timed, warmed up; else its result."""
        reason = _pace.refuses(provider.name, self.case, self.settings.longest_call_s)
        if reason is not None:
            return {"status": "unsupported", "reason": reason}
        admitted = self._admit(provider)
        modified = self.heal()
        if modified:
            return {"status": "wrong", "reason": f"it modifies its inputs: {', '.join(modified)}."}
        return admitted

    def heal(self) -> list[str]:
        """Put the inputs back where somebody has written to them; the names of those."""
        modified = inputs.changed(self.sets, self._sums)
        if modified:
            inputs.redraw(self.sets, self.case, self.device)
        return modified

    def judge_again(self, contender: Contender) -> None:
        """Look at what the last timed call left: a call that did nothing must not give a number."""
        outputs = contender.sampler.outputs()
        modified = self.heal()
        verdict = self._judge(contender.provider, contender.call, outputs)
        reason = verdict.reason
        if modified:
            reason = f"its inputs had been modified, by it or by one that took turns with it: {', '.join(modified)}."
        if contender.verdict.reason is None and reason is not None:
            contender.verdict = Verdict(verdict.errors, f"after it was timed, {reason}")

    def result(self, contender: Contender, samples: list[Sample]) -> Result:
        """The result of a provider that was timed."""
        wrong = contender.verdict.reason is not None
        result: Result = {
            "status": "wrong" if wrong else "ok",
            "reason": contender.verdict.reason,
            "errors": contender.verdict.errors,
            "detail": contender.detail,
        }
        if wrong and contender.provider.name in MUST_BE_RIGHT:
            return result
        result["samples_ms"] = [sample.ms for sample in samples]
        host = [sample.host_us for sample in samples if sample.host_us is not None]
        if host:
            result["host_samples_us"] = host
        if contender.provider.name == "roofline":
            result["detail"]["gbps"] = self.bytes / statistics.median(result["samples_ms"]) / 1e6
        if contender.provider.name in MUST_BE_RIGHT:
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

    def _admit(self, provider: Provider) -> Contender | Result:
        rotates = self.cuda and self.wanted_sets > 1 and (self.case.level == "kernel" or provider.name == "roofline")
        sets = self._inputs(self.wanted_sets if rotates else 1)
        if provider.computes:
            # Found before the provider is run, which might modify what it is compared with.
            self._exact(provider)
        provider.prepare(self.case, sets)
        calls = [provider.build(self.case, each) for each in sets]

        self._poison(calls[0])
        outputs, seconds = self._timed_run(calls[0])
        verdict = self._judge(provider, calls[0], outputs)
        if seconds > self.settings.longest_call_s:
            # The first call compiles; the second does not.
            outputs, seconds = self._timed_run(calls[0])
        del outputs
        if verdict.reason is not None and provider.name in MUST_BE_RIGHT:
            return {"status": "wrong", "reason": verdict.reason, "errors": verdict.errors}
        if seconds > self.settings.longest_call_s:
            _pace.saw(provider.name, self.case, seconds)
            limit = self.settings.longest_call_s
            reason = f"one call took {seconds:.3g} s, more than measure.longest_call_s = {limit:g}."
            return {"status": "unsupported", "reason": reason, "errors": verdict.errors}

        sampler = self._sampler(provider, calls, rotates)
        if isinstance(sampler, GraphSampler):
            sampler.poison()
            sampler.sample(sampler.batch)
            verdict = self._judge(provider, calls[0], sampler.outputs())
            if verdict.reason is not None and provider.name in MUST_BE_RIGHT:
                return {"status": "wrong", "reason": verdict.reason, "errors": verdict.errors}
        call_ms = warm_up(sampler, self.settings.warmup_ms)
        _pace.saw(provider.name, self.case, call_ms / 1e3)
        count = calls_for(self.settings.target_ms, call_ms, sampler.batch)
        detail = {"timing": sampler.timing, "calls_per_sample": count, **provider.detail(self.case, self.device)}
        if self.cuda and self.case.lengths and provider.computes:
            detail["host_waits"] = host_waits(calls[0])
        return Contender(provider, calls[0], sampler, count, verdict, detail)

    def _inputs(self, count: int) -> list[Inputs]:
        if len(self.sets) < count:
            self.sets += [inputs.draw(self.case, self.device, index) for index in range(len(self.sets), count)]
            self._sums = inputs.checksums(self.sets)
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
        held = [torch.full_like(self.sets[0].tokens, float("nan")) for _ in outputs_of(self.case)]
        del held

    def _judge(self, provider: Provider, call: Call, outputs: tuple[Any, ...]) -> Verdict:
        if call.check is not None:
            return Verdict({}, call.check())
        state = provider.accumulates(self.case, self.device)
        return judge(call.read(outputs), self.case, self._exact(provider), state)

    def _exact(self, provider: Provider) -> Exact | Both:
        return _known.exact(self.case, self.device, self.sets[0], provider.log_gates)

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


def host_waits(call: Call) -> bool:
    """Whether a call makes the host wait for the device, as it must to read an offset of a packed batch."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.run()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def make_room(device: str) -> None:
    """Give back cached memory where the device is half full, as far as others see: JAX allocates beside PyTorch."""
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int:
    """Device memory that PyTorch can still hand out, its own cache included."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached
