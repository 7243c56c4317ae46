"""The memory experiment: what is counted, what is not, and who cannot be asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from experiments import memory
from experiments.collect import paper_settings
from experiments.config import Case, Measure
from experiments.providers.base import AutogradProvider
from experiments.providers.registry import PROVIDERS

CASE = Case("memory", "api", "forward_backward", "float32", B=4, C=64, T=256)
TENSOR = 4 * 64 * 256 * 4


def run(case: Case, providers: tuple[str, ...], device: str = "cpu") -> Any:
    notes: list[Any] = []
    measured = memory.run_case(case, providers, Measure(), device, lambda event, facts: notes.append((event, facts)))
    assert not [facts["text"] for event, facts in notes if event == "traceback"]
    return measured


def test_a_call_is_charged_for_all_that_it_holds_at_once() -> None:
    def call() -> tuple[torch.Tensor, ...]:
        first = torch.ones(2**20)
        second = first + 1
        del first
        return (second * 2,)

    assert memory.held_at_most(call, "cpu") == pytest.approx(2 * 2**22, rel=1e-3)
    assert memory.held_at_most(lambda: (torch.ones(2**20),), "cpu") == pytest.approx(2**22, rel=1e-3)


@pytest.mark.parametrize("dim", [-1, -2])
def test_outputs_and_inputs_are_counted(dim: int) -> None:
    measured = run(dataclasses.replace(CASE, dim=dim), ("ours", "sequential"))
    assert measured["protocol"]["tensor_bytes"] == TENSOR
    for result in measured["providers"].values():
        assert result["status"] == "ok", result
        dense, expanded = (result["peak_tensors"][kind] for kind in ("dense", "expanded"))
        # Gates, tokens, states, two gradients; and the incoming one.
        assert dense >= 6 and expanded >= 5 and dense >= expanded
        assert result["held_bytes"]["dense"] == pytest.approx((dense - 3) * TENSOR)


def test_both_layouts_are_measured_where_there_are_kernels() -> None:
    cases = paper_settings("memory", "h200").experiment.cases()
    assert {(case.dtype, case.dim) for case in cases} == {(d, dim) for d in ("float32", "bfloat16") for dim in (-1, -2)}
    assert all(case.mode == "forward_backward" and case.level == "api" for case in cases)


def test_who_cannot_be_asked_says_why() -> None:
    results = run(CASE, ("roofline", "jax_associative_scan", "warp"))["providers"]
    assert all(result["status"] == "unsupported" and result["reason"].endswith(".") for result in results.values())
    assert "PyTorch does not see" in results["jax_associative_scan"]["reason"]


def test_ours_has_no_number_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = PROVIDERS["ours"]
    assert isinstance(provider, AutogradProvider)
    monkeypatch.setattr(type(provider), "function", lambda *_: lambda gates, tokens: gates + tokens)
    result = run(CASE, ("ours",))["providers"]["ours"]
    assert result["status"] == "wrong" and "peak_tensors" not in result


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ours_holds_what_it_promises(dtype: str, dim: int) -> None:
    case = Case("memory", "api", "forward_backward", dtype, B=8, C=512, T=4096, dim=dim)
    result = run(case, ("ours",), "cuda")["providers"]["ours"]
    assert result["status"] == "ok"
    assert result["peak_tensors"]["dense"] <= 6.06 and result["peak_tensors"]["expanded"] <= 5.05
