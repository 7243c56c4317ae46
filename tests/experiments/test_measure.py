"""A case from end to end on the CPU, and what becomes of providers that are wrong, slow, broken or too large."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import measure
from experiments.config import MODES, Case, Measure
from experiments.inputs import Inputs
from experiments.measure import exceeded, run_case
from experiments.providers.base import AutogradProvider, Call
from experiments.providers.registry import PROVIDERS
from scan.reference import blelloch_scan

CASE = Case("speed", "api", "forward", "float32", 2, 3, 32)
QUICK = Measure(repeats=5, target_ms=0.2, warmup_ms=0.2, longest_call_s=30)


class Tree(AutogradProvider):
    """A right provider of the tests."""

    name = "tree"
    devices = ("cpu",)
    no_kernel = "tree has no kernel."
    levels = ("api",)

    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        return self.scan

    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        return blelloch_scan(gates, tokens)


class OffByALittle(Tree):
    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        return blelloch_scan(gates, tokens) * (1 + 1e-4)


class Raises(Tree):
    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        raise RuntimeError("the launch failed.\nwith a long log")


class OutOfMemory(Tree):
    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")


class Slow(Tree):
    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        time.sleep(0.05)
        return blelloch_scan(gates, tokens)


class Changes(Tree):
    """Right until it is timed; what it does then is given."""

    def __init__(self, name: str, then: Callable[[Tensor], Tensor]) -> None:
        self.name, self.then, self.timed = name, then, False

    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        return self.then(tokens) if self.timed else blelloch_scan(gates, tokens)

    def listen(self, event: str, facts: dict[str, Any]) -> None:
        self.timed = self.timed or event == "timing"


def ignore(event: str, facts: dict[str, Any]) -> None:
    return None


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def place(**providers: Tree) -> None:
        monkeypatch.setattr(measure, "PROVIDERS", {**PROVIDERS, **providers})

    return place


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_a_case_from_end_to_end(mode: str, level: str) -> None:
    names = ("roofline", "ours", "warp", "blelloch")
    events: list[tuple[str, dict[str, Any]]] = []
    record = run_case(
        replace(CASE, mode=mode, level=level), names, QUICK, "cpu", lambda event, facts: events.append((event, facts))
    )
    results = record["providers"]
    assert tuple(results) == names
    timed = ["roofline", "ours"] + (["blelloch"] if level == "api" else [])
    for name in timed:
        assert results[name]["status"] == "ok" and results[name]["reason"] is None
        assert len(results[name]["samples_ms"]) == 5 and min(results[name]["samples_ms"]) > 0
        assert results[name]["detail"]["calls_per_sample"] >= 1
        assert results[name]["detail"]["timing"] == "host_clock"
    tensor = 2 * 3 * 32 * 4
    assert results["ours"]["detail"]["bytes"] == {"forward": 3, "backward": 5, "forward_backward": 8}[mode] * tensor
    assert results["ours"]["detail"]["strategy"] == "time_loop"
    assert results["roofline"]["detail"]["gbps"] > 0 and results["roofline"]["detail"]["variant"]
    assert set(results["ours"]["errors"]) == set(
        {"forward": ["states"], "backward": ["d_gates", "d_tokens"]}.get(mode, ["states", "d_gates", "d_tokens"])
    )
    assert all(error < 1e-6 for error in results["ours"]["errors"].values())
    assert results["warp"] == {"status": "unsupported", "reason": "warp runs on cuda, and this device is cpu."}
    assert record["protocol"]["timing"] == "host_clock" and record["protocol"]["l2"] == "warm"
    assert record["protocol"]["repeats"] == 5 and record["protocol"]["rows_compared"] == 6
    assert "roofline_exceeded_by" in record["protocol"]
    assert [facts["provider"] for event, facts in events if event == "checking"] == list(names)
    assert ("timing", {"providers": timed}) in events
    json.dumps(record, allow_nan=False)


def test_ours_is_not_timed_when_it_is_wrong(put: Callable[..., None]) -> None:
    wrong = OffByALittle()
    wrong.name = "ours"
    put(ours=wrong)
    result = run_case(CASE, ("ours", "blelloch"), QUICK, "cpu", ignore)["providers"]
    assert result["ours"]["status"] == "wrong"
    assert "states differs from the float64 scan by" in result["ours"]["reason"]
    assert "samples_ms" not in result["ours"] and result["ours"]["errors"]["states"] == pytest.approx(1e-4, rel=0.01)
    assert result["blelloch"]["status"] == "ok"


def test_a_competitor_that_is_wrong_is_timed_and_marked(put: Callable[..., None]) -> None:
    put(linrec=OffByALittle())
    result = run_case(CASE, ("linrec",), QUICK, "cpu", ignore)["providers"]["linrec"]
    assert result["status"] == "wrong"
    assert "times its error budget" in result["reason"]
    assert len(result["samples_ms"]) == 5


@pytest.mark.parametrize(("name", "timed"), [("ours", False), ("linrec", True)])
def test_outputs_are_looked_at_after_timing_too(name: str, timed: bool, put: Callable[..., None]) -> None:
    """As when a compiler drops a call: the output is what memory held before."""
    provider = Changes(name, lambda tokens: torch.full_like(tokens, float("nan")))
    put(**{name: provider})
    result = run_case(CASE, (name,), QUICK, "cpu", provider.listen)["providers"][name]
    assert result["status"] == "wrong"
    assert result["reason"] == "after it was timed, 192 of 192 elements of states are not finite."
    assert ("samples_ms" in result) == timed


def test_a_provider_that_raises_leaves_a_sentence_and_a_traceback(put: Callable[..., None]) -> None:
    put(linrec=Raises(), warp=OutOfMemory())
    events: list[tuple[str, dict[str, Any]]] = []
    results = run_case(
        CASE, ("linrec", "warp", "ours"), QUICK, "cpu", lambda event, facts: events.append((event, facts))
    )["providers"]
    assert results["linrec"] == {"status": "error", "reason": "RuntimeError: the launch failed."}
    assert results["warp"] == {
        "status": "oom",
        "reason": "OutOfMemoryError: CUDA out of memory. Tried to allocate 3 GiB.",
    }
    assert results["ours"]["status"] == "ok"
    texts = {facts["provider"]: facts["text"] for event, facts in events if event == "traceback"}
    assert set(texts) == {"linrec", "warp"} and "in scan" in texts["linrec"] and "long log" in texts["linrec"]


def test_a_provider_that_fails_while_it_is_timed_leaves_the_others_alone(put: Callable[..., None]) -> None:
    def fail(tokens: Tensor) -> Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    provider = Changes("linrec", fail)
    put(linrec=provider)
    results = run_case(CASE, ("linrec", "ours"), QUICK, "cpu", provider.listen)["providers"]
    assert results["linrec"] == {
        "status": "error",
        "reason": "RuntimeError: an illegal memory access was encountered.",
    }
    assert len(results["ours"]["samples_ms"]) == 5


def test_a_call_that_takes_too_long_is_not_sampled(put: Callable[..., None]) -> None:
    put(linrec=Slow())
    settings = replace(QUICK, longest_call_s=0.01)
    result = run_case(CASE, ("linrec",), settings, "cpu", ignore)["providers"]["linrec"]
    assert result["status"] == "unsupported"
    assert re.fullmatch(r"one call took [\d.]+ s, more than measure\.longest_call_s = 0\.01\.", result["reason"])


def test_a_provider_above_the_roofline_shows_that_the_roofline_is_wrong() -> None:
    results: dict[str, Any] = {
        "roofline": {"status": "ok", "samples_ms": [1.0, 1.1, 0.9]},
        "ours": {"status": "ok", "samples_ms": [0.97, 0.97, 0.97]},
        "warp": {"status": "ok", "samples_ms": [0.99, 0.99, 0.99]},
        "hgrn": {"status": "wrong", "samples_ms": [0.1, 0.1, 0.1]},
        "blelloch": {"status": "error"},
    }
    assert exceeded(results) == {"roofline_exceeded_by": {"ours": 1.0309}}
    assert exceeded({"ours": results["ours"]}) == {}


def test_resource_exhausted_in_another_framework_is_out_of_memory() -> None:
    result = measure.failure(ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 3 GiB."))
    assert result["status"] == "oom"


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("level", "timing"), [("kernel", "graph_replay"), ("api", "events")])
def test_a_case_on_the_gpu(mode: str, level: str, timing: str) -> None:
    case = replace(CASE, B=8, C=1536, T=128, mode=mode, level=level)
    record = run_case(case, ("ours", "scalar", "blelloch", "roofline"), QUICK, "cuda", ignore)
    results, protocol = record["providers"], record["protocol"]
    assert results["ours"]["status"] == results["roofline"]["status"] == "ok"
    assert results["ours"]["detail"]["timing"] == protocol["timing"] == timing
    assert results["roofline"]["detail"]["timing"] == "graph_replay"
    assert protocol["l2"] == "cold" and protocol["buffer_sets"] * protocol["bytes"] >= 4 * protocol["l2_bytes"]
    assert ("host_samples_us" in results["ours"]) == (level == "api")
    json.dumps(record, allow_nan=False)


@pytest.mark.gpu
def test_what_cannot_be_captured_is_timed_by_events_and_says_so(put: Callable[..., None]) -> None:
    class Synchronises(Tree):
        devices = ("cuda",)
        levels = ("kernel", "api")

        def kernel_call(self, case: Case, inputs: Inputs) -> Call:
            call = self.api_call(case, inputs)

            def run() -> tuple[Any, ...]:
                inputs.tokens.sum().item()
                return call.run()

            return Call(run, call.read)

    put(linrec=Synchronises())
    case = replace(CASE, B=8, C=64, T=128, level="kernel")
    results = run_case(case, ("linrec", "ours"), QUICK, "cuda", ignore)["providers"]
    assert results["linrec"]["status"] == "ok" and results["linrec"]["detail"]["timing"] == "events"
    assert results["ours"]["status"] == "ok" and results["ours"]["detail"]["timing"] == "graph_replay"


@pytest.mark.gpu
def test_a_large_call_is_timed_by_events() -> None:
    l2 = measure.l2_bytes("cuda")
    T = 2 ** (64 * l2 // (3 * 4 * 2048)).bit_length()
    record = run_case(replace(CASE, B=1, C=2048, T=T, level="kernel"), ("ours", "roofline"), QUICK, "cuda", ignore)
    assert record["protocol"]["timing"] == "events" and record["protocol"]["buffer_sets"] == 1
    assert record["providers"]["ours"]["status"] == record["providers"]["roofline"]["status"] == "ok"
