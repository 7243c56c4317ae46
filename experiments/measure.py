"""One case of a timing experiment: every provider admitted by the bench, then all of them timed in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.bench import Bench, Contender
from experiments.clock import Clock
from experiments.config import Case, Measure
from experiments.failures import Emit, Failures, Result
from experiments.providers.base import Provider
from experiments.providers.registry import PROVIDERS
from experiments.timing import interleave

_ABOVE_ROOFLINE = 1.02


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of the named providers, in that order, and how they were measured."""
    return take_turns(case, {name: PROVIDERS[name] for name in providers}, settings, device, emit)


def take_turns(
    case: Case, providers: Mapping[str, Provider], settings: Measure, device: str, emit: Emit
) -> dict[str, Any]:
    """Results of these providers, who are timed in turns, and how they were measured."""
    clock = Clock()
    with clock.of("inputs"):
        bench = Bench(case, settings, device)
    failures = Failures(device, emit)
    results: dict[str, Result] = {}
    contenders: dict[str, Contender] = {}
    for name, provider in providers.items():
        emit("checking", {"provider": name})
        with clock.of(name, "admission"):
            admitted = _admitted(bench, name, provider, failures)
        if isinstance(admitted, Contender):
            contenders[name] = admitted
        else:
            results[name] = admitted

    def failed(name: str, error: Exception) -> None:
        results[name] = failures.result(name, error)

    emit("timing", {"providers": list(contenders)})
    spent: dict[str, float] = {}
    samples = interleave(
        {name: contender.sampler for name, contender in contenders.items()},
        {name: contender.calls for name, contender in contenders.items()},
        settings.repeats,
        lambda name: bench.judge_again(contenders[name]),
        failed,
        spent,
    )
    for name, taken in samples.items():
        results[name] = bench.result(contenders[name], taken)
    for name, seconds in spent.items():
        clock.add(seconds, name, "timing")
    ordered = {name: results[name] for name in providers}
    protocol = bench.protocol() | exceeded(ordered) | failures.protocol()
    return {"providers": ordered, "protocol": protocol | {"elapsed_s": clock.seconds()}}


def _admitted(bench: Bench, name: str, provider: Provider, failures: Failures) -> Contender | Result:
    if failures.broken_by is not None:
        return failures.lost()
    try:
        reason = provider.refuses(bench.case, bench.device)
        return bench.admit(provider) if reason is None else {"status": "unsupported", "reason": reason}
    except Exception as error:
        result = failures.result(name, error)
        if failures.broken_by is None:
            bench.heal()
        return result


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
