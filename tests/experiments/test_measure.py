"""A case from end to end on the CPU, and what becomes of providers that are wrong, slow, broken or too large."""

import gc
import json
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import bench, measure
from experiments.bench import Bench, Contender
from experiments.config import MODES, Case, Measure
from experiments.correctness import Known
from experiments.failures import failure
from experiments.inputs import Inputs
from experiments.measure import exceeded, run_case
from experiments.pace import Pace
from experiments.providers.base import AutogradProvider, Call, outputs_of
from experiments.providers.registry import PROVIDERS
from experiments.roofline import bytes_moved
from experiments.timing import GraphSampler, l2_bytes
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
    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds

    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        time.sleep(self.seconds)
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


class Scribbles(Tree):
    """Adds to its inputs, as a kernel that writes past the end of its own tensors may; from a given call on."""

    def __init__(self, name: str = "linrec", first: int = 1, fails: bool = False) -> None:
        self.name, self.first, self.fails, self.calls = name, first, fails, 0

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        self.inputs = inputs
        return super().arrange(case, inputs)

    def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
        states = blelloch_scan(gates, tokens)
        self.calls += 1
        if self.calls >= self.first:
            self.inputs.d_states.add_(1)
            if self.fails:
                raise RuntimeError("the launch failed")
        return states


@pytest.fixture(autouse=True)
def _nothing_known_from_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_pace", Pace())
    monkeypatch.setattr(bench, "_known", Known())


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
    elapsed = record["protocol"]["elapsed_s"]
    assert set(elapsed) == {"case", "inputs", *names}
    assert {name for name in names if "timing" in elapsed[name]} == set(timed)
    parts = elapsed["inputs"] + sum(seconds for name in names for seconds in elapsed[name].values())
    assert 0 < parts <= elapsed["case"] + 1e-3
    assert [facts["provider"] for event, facts in events if event == "checking"] == list(names)
    assert ("timing", {"providers": timed}) in events
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
@pytest.mark.parametrize(("names", "case"), [
    (("ours", "two_launches", "roofline"), replace(CASE, stem="bidirectional", directions="branched")),
    (("ours", "two_launches", "roofline"), replace(CASE, stem="bidirectional", directions="shared_sum")),
    (("ours", "transposed", "roofline"), replace(CASE, stem="layouts", dim=-2)),
    (("ours", "roofline"), replace(CASE, stem="few_rows", dtype="complex64")),
], ids=["branched", "shared_sum", "channels_last", "complex"])  # fmt: skip
def test_other_kinds_of_cases_from_end_to_end(mode: str, level: str, names: tuple[str, ...], case: Case) -> None:
    case = replace(case, mode=mode, level=level)
    record = run_case(case, names, QUICK, "cpu", lambda *_: None)
    for result in record["providers"].values():
        assert result["status"] == "ok", result
        assert len(result["samples_ms"]) == 5
    assert set(record["providers"]["ours"]["errors"]) == set(outputs_of(case))
    assert record["protocol"]["bytes"] == bytes_moved(case)
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
        raise RuntimeError("the launch failed")

    provider = Changes("linrec", fail)
    put(linrec=provider)
    record = run_case(CASE, ("linrec", "ours"), QUICK, "cpu", provider.listen)
    results = record["providers"]
    assert results["linrec"] == {"status": "error", "reason": "RuntimeError: the launch failed."}
    assert len(results["ours"]["samples_ms"]) == 5
    assert "context_broken_by" not in record["protocol"]


class Context:
    """A CUDA context that breaks: from then on, whatever anybody calls raises."""

    broken = False

    def provider(self, name: str, breaks_at: int | None = None) -> Tree:
        context = self

        class Uses(Tree):
            calls = 0

            def scan(self, gates: Tensor, tokens: Tensor) -> Tensor:
                self.calls += 1
                context.broken = context.broken or self.calls == breaks_at
                if context.broken:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered\nlong advice")
                return blelloch_scan(gates, tokens)

        uses = Uses()
        uses.name = name
        return uses


HOW = "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_context_broken_at_admission_is_blamed_on_whoever_broke_it(put: Callable[..., None]) -> None:
    context = Context()
    put(warp=context.provider("warp"), linrec=context.provider("linrec", 1), scalar=context.provider("scalar"))
    texts: list[str] = []
    record = run_case(
        CASE,
        ("warp", "linrec", "scalar"),
        QUICK,
        "cpu",
        lambda event, facts: texts.append(facts["provider"]) if event == "traceback" else None,
    )
    lost = {"status": "error", "reason": f"linrec broke the CUDA context before this was measured ({HOW})."}
    assert record["providers"] == {
        "warp": lost,
        "linrec": {"status": "error", "reason": f"{HOW}."},
        "scalar": lost,
    }
    assert record["protocol"]["context_broken_by"] == "linrec"
    assert texts == ["linrec"]


def test_a_context_broken_in_turn_costs_those_that_were_not_done(put: Callable[..., None]) -> None:
    context = Context()
    once = replace(QUICK, target_ms=1e-6, warmup_ms=1e-6)
    # One call to be judged, one to warm up, then a call in each of five turns: the seventh is in the last turn, which
    # begins with the second provider and ends with the first.
    breaks = context.provider("scalar", 7)
    put(warp=context.provider("warp"), linrec=context.provider("linrec"), scalar=breaks)
    record = run_case(CASE, ("warp", "linrec", "scalar"), once, "cpu", ignore)
    results = record["providers"]
    assert record["protocol"]["context_broken_by"] == "scalar"
    assert results["scalar"] == {"status": "error", "reason": f"{HOW}."}
    # Its last sample was taken and looked at before that.
    assert results["linrec"]["status"] == "ok" and len(results["linrec"]["samples_ms"]) == 5
    assert results["warp"]["status"] == "error"
    assert results["warp"]["reason"] == f"scalar broke the CUDA context before this was measured ({HOW})."


@pytest.mark.parametrize("fails", [False, True])
def test_a_provider_that_modifies_its_inputs_is_named_and_harms_nobody(fails: bool, put: Callable[..., None]) -> None:
    put(linrec=Scribbles(fails=fails))
    case = replace(CASE, mode="forward_backward")
    results = run_case(case, ("linrec", "ours", "blelloch"), QUICK, "cpu", ignore)["providers"]
    if fails:
        assert results["linrec"] == {"status": "error", "reason": "RuntimeError: the launch failed."}
    else:
        assert results["linrec"] == {"status": "wrong", "reason": "it modifies its inputs: d_states."}
    assert results["ours"]["status"] == results["blelloch"]["status"] == "ok"


def test_inputs_modified_while_timing_are_found_and_put_back(put: Callable[..., None]) -> None:
    once = replace(QUICK, target_ms=1e-6, warmup_ms=1e-6)
    put(linrec=Scribbles(first=7))
    case = replace(CASE, mode="forward_backward")
    results = run_case(case, ("ours", "linrec"), once, "cpu", ignore)["providers"]
    # The last of five turns begins with ours, which is judged before the other one writes.
    assert results["ours"]["status"] == "ok"
    assert results["linrec"]["status"] == "wrong"
    assert results["linrec"]["reason"] == (
        "after it was timed, its inputs had been modified, by it or by one that took turns with it: d_states."
    )


class Saves(Tree):
    """A provider whose calls read a tensor that they alone hold."""

    levels = ("kernel",)

    def __init__(self) -> None:
        self.saved: list[weakref.ref[Tensor]] = []

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        saved = inputs.tokens.clone()
        self.saved.append(weakref.ref(saved))
        return Call(lambda: (blelloch_scan(inputs.gates, saved),), self.read(case))


def test_a_contender_keeps_what_its_graph_reads(captured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All sets of buffers, not the first alone: a graph that reads freed memory breaks the context."""
    at = Bench(replace(CASE, level="kernel"), QUICK, "cpu")
    # As on a GPU, with graphs that run nothing.
    at.cuda, at.wanted_sets = True, 3
    monkeypatch.setattr(bench, "l2_bytes", lambda device: 2**20)
    provider = Saves()
    monkeypatch.setattr(GraphSampler, "poison", lambda self: None)
    contender = at.admit(provider)
    assert isinstance(contender, Contender) and contender.verdict.reason is None
    assert contender.detail["timing"] == "graph_replay" and "captured" in captured
    gc.collect()
    assert len(provider.saved) == 3 and all(each() is not None for each in provider.saved)
    del contender
    gc.collect()
    assert all(each() is None for each in provider.saved)


def test_a_call_that_takes_too_long_is_not_sampled(put: Callable[..., None]) -> None:
    put(linrec=Slow())
    settings = replace(QUICK, longest_call_s=0.01)
    result = run_case(CASE, ("linrec",), settings, "cpu", ignore)["providers"]["linrec"]
    assert result["status"] == "unsupported"
    assert re.fullmatch(r"one call took [\d.]+ s, more than measure\.longest_call_s = 0\.01\.", result["reason"])


def test_a_length_is_refused_by_what_a_shorter_one_took(put: Callable[..., None]) -> None:
    put(linrec=Slow(0.5))  # a quarter of the limit, so that a busy machine does not reach it
    settings = replace(QUICK, longest_call_s=2)
    first = run_case(CASE, ("linrec",), settings, "cpu", ignore)["providers"]["linrec"]
    assert first["status"] == "ok"
    put(linrec=Raises())
    longer = run_case(replace(CASE, T=32 * 1000), ("linrec",), settings, "cpu", ignore)["providers"]["linrec"]
    assert longer["status"] == "unsupported"
    assert re.fullmatch(
        r"one call is expected to take [\d.]+ s, in proportion to [\d.]+ s at T = 32: more than "
        r"measure\.longest_call_s = 2\.",
        longer["reason"],
    )
    other_mode = run_case(replace(CASE, T=32 * 1000, mode="backward"), ("linrec",), settings, "cpu", ignore)
    assert other_mode["providers"]["linrec"]["status"] == "error", "another mode takes another time"


def test_pace_is_a_proportion_once_work_and_not_launches_take_the_time() -> None:
    pace = Pace()
    pace.saw("linrec", CASE, 0.01)
    assert pace.refuses("linrec", replace(CASE, T=64000), 0.2) is None
    pace.saw("linrec", replace(CASE, T=64), 0.06)
    assert pace.refuses("linrec", replace(CASE, T=128), 0.2) is None
    assert pace.refuses("linrec", replace(CASE, T=256), 0.2) == (
        "one call is expected to take 0.24 s, in proportion to 0.06 s at T = 64: more than "
        "measure.longest_call_s = 0.2."
    )
    assert pace.refuses("linrec", replace(CASE, T=64), 0.2) is None
    assert pace.refuses("ref", replace(CASE, T=256), 0.2) is None
    assert pace.refuses("linrec", replace(CASE, T=256, dtype="bfloat16"), 0.2) is None
    packed = replace(CASE, T=256, lengths="4x64")
    assert pace.refuses("linrec", packed, 0.2) is None, "one long sequence may take longer than many short ones"
    pace.saw("linrec", replace(packed, T=512, lengths="1x512"), 0.1)
    assert pace.refuses("linrec", replace(CASE, T=1024), 0.2) == pace.refuses("linrec", replace(CASE, T=1024), 0.2)


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
    result = failure(ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 3 GiB."))
    assert result["status"] == "oom"


@pytest.mark.parametrize(("free", "emptied"), [(60, 1), (80, 0)])
def test_memory_is_given_back_where_others_see_a_device_half_full(
    free: int, emptied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 140))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(None))
    bench.make_room("cuda")
    assert len(calls) == emptied


def test_a_call_that_waits_for_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: set_to[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_to.append)

    def call(error: str) -> Call:
        def run() -> tuple[Any, ...]:
            if error:
                raise RuntimeError(error)
            return ()

        return Call(run, lambda _: {})

    assert bench.host_waits(call("called a synchronizing CUDA operation"))
    assert not bench.host_waits(call(""))
    with pytest.raises(RuntimeError, match="out of memory"):
        bench.host_waits(call("out of memory"))
    assert set_to == [0, "error", 0, "error", 0, "error", 0]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["kernel", "api"])
@pytest.mark.parametrize("reverse", [False, True])
def test_packed_cases_on_the_gpu_need_no_word_from_the_device(mode: str, level: str, reverse: bool) -> None:
    case = replace(CASE, B=1, C=64, T=1041, mode=mode, level=level, reverse=reverse, lengths="1x1000+1x0+1x41")
    results = run_case(case, ("ours", "hgrn", "roofline"), QUICK, "cuda", ignore)["providers"]
    assert results["ours"]["status"] == "ok" and results["ours"]["detail"]["host_waits"] is False
    assert results["hgrn"]["status"] in ("ok", "unsupported")


@pytest.mark.gpu
@pytest.mark.parametrize("needs", ["gates", "tokens"])
def test_fewer_gradients_on_the_gpu(needs: str) -> None:
    case = replace(CASE, B=8, C=64, T=512, mode="backward", level="kernel", needs=needs)
    results = run_case(case, ("ours", "scalar", "roofline"), QUICK, "cuda", ignore)["providers"]
    assert results["ours"]["status"] == results["roofline"]["status"] == "ok"
    assert set(results["ours"]["errors"]) == {f"d_{needs}"}
    assert results["scalar"]["status"] == "unsupported"


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
    l2 = l2_bytes("cuda")
    T = 2 ** (64 * l2 // (3 * 4 * 2048)).bit_length()
    record = run_case(replace(CASE, B=1, C=2048, T=T, level="kernel"), ("ours", "roofline"), QUICK, "cuda", ignore)
    assert record["protocol"]["timing"] == "events" and record["protocol"]["buffer_sets"] == 1
    assert record["providers"]["ours"]["status"] == record["providers"]["roofline"]["status"] == "ok"
