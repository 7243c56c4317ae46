"""The compile experiment: the same layer with every scan, a gate that sees what is wrong, facts beside the times."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from experiments import compile as experiment
from experiments import compile_block, store
from experiments.collect import paper_settings
from experiments.config import Case, Measure
from experiments.providers.registry import PROVIDERS
from tests.conftest import ON_GPU

CASE = Case("compile", "api", "forward_backward", "float32", B=2, C=8, T=32, dim=-2)
QUICK = Measure(repeats=5, target_ms=0.1, warmup_ms=0.1, longest_call_s=30)


@pytest.fixture(autouse=True)
def _no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are traced as everywhere and then run as they are: a compiler takes seconds."""
    traced = dataclasses.replace(compile_block._COMPILED, options={"backend": "aot_eager"})
    ways = {
        name: tuple(traced if way.suffix == "" else way for way in ways) for name, ways in compile_block.WAYS.items()
    }
    for module in (compile_block, experiment):
        monkeypatch.setattr(module, "WAYS", ways)


def run(case: Case = CASE, providers: tuple[str, ...] = ("ours", "hillis_steele"), device: str = "cpu") -> Any:
    notes: list[Any] = []
    measured = experiment.run_case(case, providers, QUICK, device, lambda event, facts: notes.append((event, facts)))
    assert not [facts["text"] for event, facts in notes if event == "traceback"]
    return measured


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["forward_backward", "forward"])
def test_every_way_of_a_scan_is_right_and_timed(mode: str, dtype: str) -> None:
    measured = run(dataclasses.replace(CASE, mode=mode, dtype=dtype))
    results = measured["providers"]
    assert list(results) == ["ours", "ours_eager", "ours_reduce_overhead", "hillis_steele", "hillis_steele_eager"]
    for name, result in results.items():
        if name == "ours_reduce_overhead":
            assert (result["status"], result["reason"]) == ("unsupported", "CUDA graphs need a GPU.")
            continue
        assert result["status"] == "ok", result
        assert len(result["samples_ms"]) == QUICK.repeats and all(ms > 0 for ms in result["samples_ms"])
        assert set(result["errors"]) == ({"output", "d_input"} if mode != "forward" else {"output"})
        compiled = not name.endswith("_eager")
        assert result["detail"]["graph_breaks"] == (0 if compiled else None)
        assert result["detail"]["graphs"] == (1 if compiled else None)
        assert result["detail"]["peak_tensors"] > 1
    assert measured["protocol"]["tensor_bytes"] == 2 * 8 * 32 * (4 if dtype == "float32" else 2)


def test_what_is_wrong_is_seen_and_ours_then_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return compile_block.ours(gates, tokens) * 1.001

    for module in (compile_block, experiment):
        monkeypatch.setattr(module, "SCANS", {"ours": wrong, "hillis_steele": wrong})
    results = run()["providers"]
    for name in ("ours", "ours_eager"):
        assert results[name]["status"] == "wrong" and "samples_ms" not in results[name]
        assert name in store.failures({"providers": results})
        assert "output is " in results[name]["reason"] and results[name]["reason"].endswith("as the plain one.")
    assert results["hillis_steele"]["status"] == "wrong" and results["hillis_steele"]["samples_ms"]


def test_a_break_in_the_graph_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.compiler.disable
    def unseen(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return compile_block.ours(gates, tokens)

    for module in (compile_block, experiment):
        monkeypatch.setattr(module, "SCANS", {"ours": unseen, "hillis_steele": compile_block.hillis_steele})
    results = run()["providers"]
    assert results["ours"]["status"] == "ok"
    assert (results["ours"]["detail"]["graph_breaks"], results["ours"]["detail"]["graphs"]) == (1, 2)
    assert results["hillis_steele"]["detail"]["graph_breaks"] == 0, "blocks share no compiled code"


def test_who_cannot_run_a_case_says_why() -> None:
    results = run(providers=("warp", "torch_associative_scan", "roofline"))["providers"]
    assert all(result["status"] == "unsupported" and result["reason"].endswith(".") for result in results.values())
    assert results["roofline"]["reason"] == "roofline is not among the scans that a block is compiled with."
    packed = compile_block.refuses("warp", dataclasses.replace(CASE, T=33), "cuda")
    assert packed is not None and "power of two" in packed


def test_a_failure_is_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no scan today")

    for module in (compile_block, experiment):
        monkeypatch.setattr(module, "SCANS", {"ours": compile_block.ours, "hillis_steele": broken})
    measured = experiment.run_case(CASE, ("hillis_steele", "ours"), QUICK, "cpu", lambda *_: None)
    assert measured["providers"]["hillis_steele_eager"]["status"] == "error"
    assert measured["providers"]["ours"]["status"] == "ok"


def test_a_step_that_takes_too_long_is_not_sampled() -> None:
    settings = dataclasses.replace(QUICK, longest_call_s=1e-9)
    results = experiment.run_case(CASE, ("ours",), settings, "cpu", lambda *_: None)["providers"]
    assert results["ours_eager"]["status"] == "unsupported" and "longest_call_s" in results["ours_eager"]["reason"]


def test_the_sweep_is_a_training_step_at_every_length_and_a_forward_pass_where_torch_has_one() -> None:
    cases = paper_settings("compile", "h200").experiment.cases()
    steps = {(case.dtype, case.T) for case in cases if case.mode == "forward_backward"}
    assert steps == {(dtype, T) for dtype in ("float32", "bfloat16") for T in (512, 1024, 2048, 4096, 8192)}
    forward = [case for case in cases if case.mode == "forward"]
    assert {(case.dtype, case.T) for case in forward} == {("float32", 512), ("float32", 4096)}
    limits = PROVIDERS["torch_associative_scan"].limits
    assert all(limits(dataclasses.replace(case, stem="speed"), "cuda") is None for case in forward)
    assert len(paper_settings("compile", "cpu").experiment.cases()) == 2


def test_weights_are_those_of_the_case_in_every_dtype() -> None:
    case = dataclasses.replace(CASE, dtype="bfloat16")
    narrow, exact = (compile_block.parameters(case, "cpu", dtype) for dtype in (None, torch.float64))
    for name, weight in narrow.items():
        assert weight.dtype == torch.bfloat16 and torch.equal(weight.double(), exact[name])


@pytest.mark.gpu
def test_with_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ON_GPU
    monkeypatch.undo()
    case = dataclasses.replace(CASE, C=64, T=512)
    results = run(case, ("ours",), "cuda")["providers"]
    for result in results.values():
        assert result["status"] == "ok", result
        assert len(result["host_samples_us"]) == QUICK.repeats
    assert results["ours_reduce_overhead"]["detail"]["graph_breaks"] == 0
