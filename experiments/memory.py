"""One case of the memory experiment: what forward and backward hold at most, in tensors of the size of the tokens.

Counted is what the call holds beyond its inputs, as PyTorch's allocators know it, plus the inputs in the layout that
the provider wants: gates, tokens, and the incoming gradient, which is `dense`, or one number expanded to the shape
(`expanded`: the gradient of a sum). The call comes twice, and the second one counts, so that what is compiled or kept
for later calls is there already. With a dense gradient the result passes the same gate as everywhere.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from experiments.bench import make_room
from experiments.clock import Clock
from experiments.config import Case, Measure
from experiments.correctness import Known, judge
from experiments.failures import Emit, Failures, Result
from experiments.inputs import bytes_of, draw
from experiments.providers.base import Provider
from experiments.providers.registry import PROVIDERS

GRADIENTS = {"dense": 3, "expanded": 2}
"""Whose memory counts with the inputs: gates, tokens, and a gradient that is dense."""

_known = Known()


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of the named providers, in that order; nothing is timed."""
    clock, failures = Clock(), Failures(device, emit)
    results: dict[str, Result] = {}
    for name in providers:
        emit("measuring", {"provider": name})
        with clock.of(name):
            if failures.broken_by is not None:
                results[name] = failures.lost()
                continue
            try:
                results[name] = measure(PROVIDERS[name], case, device)
            except Exception as error:
                results[name] = failures.result(name, error)
    protocol = {"tensor_bytes": bytes_of(case), "allocator": "cuda" if _is_cuda(device) else "profiler"}
    return {"providers": results, "protocol": protocol | failures.protocol() | {"elapsed_s": clock.seconds()}}


def measure(provider: Provider, case: Case, device: str) -> Result:
    """The most that one provider holds, with either kind of gradient."""
    if not provider.computes:
        return {"status": "unsupported", "reason": f"{provider.name} computes nothing."}
    if provider.package == "jax":
        return {"status": "unsupported", "reason": f"{provider.name} allocates where PyTorch does not see it."}
    reason = provider.refuses(case, device)
    if reason is not None:
        return {"status": "unsupported", "reason": reason}
    if _is_cuda(device):
        make_room(device)
    tensors: dict[str, float] = {}
    held: dict[str, int] = {}
    verdict = None
    for kind, of_inputs in GRADIENTS.items():
        given = draw(case, device)
        if kind == "expanded":
            one = torch.ones((), dtype=given.d_states.dtype, device=device)
            given = dataclasses.replace(given, d_states=one.expand(given.d_states.shape))
        call = provider.build(case, given)
        outputs = call.run()
        if kind == "dense":
            exact = _known.exact(case, device, given, provider.log_gates)
            verdict = judge(call.read(outputs), case, exact, provider.accumulates(case, device))
            del exact
        del outputs
        held[kind] = held_at_most(call.run, device)
        tensors[kind] = held[kind] / bytes_of(case) + of_inputs
        del call, given
    assert verdict is not None
    wrong = verdict.reason is not None
    result: Result = {
        "status": "wrong" if wrong else "ok", "reason": verdict.reason, "errors": verdict.errors,
        "detail": provider.detail(case, device),
    }  # fmt: skip
    return result if wrong and provider.name == "ours" else result | {"peak_tensors": tensors, "held_bytes": held}


def held_at_most(call: Callable[[], tuple[Any, ...]], device: str) -> int:
    """The bytes that a call holds at most beyond what was there before it, its outputs included."""
    gc.collect()
    if _is_cuda(device):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        outputs = call()
        torch.cuda.synchronize()
        del outputs
        return torch.cuda.max_memory_allocated(device) - before
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with _profiler_is_quiet():
        with profile:
            outputs = call()
    del outputs
    now = most = 0
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events: list[Any] = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@contextmanager
def _profiler_is_quiet() -> Iterator[None]:
    """PyTorch 2.13 says on stderr that its profiler starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"
