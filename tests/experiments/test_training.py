"""The training experiment: the same network with every scan learns alike, and what does not is seen."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from experiments import store, training, training_model
from experiments.collect import paper_settings
from experiments.config import Case, Measure
from experiments.providers import accelerated_scan
from scan.reference import sequential_scan
from tests.conftest import ON_GPU

CASE = Case("training", "api", "forward_backward", "float32", B=4, C=16, T=24, dim=-2, draws=12)


def run(case: Case = CASE, providers: tuple[str, ...] = ("ours", "sequential", "hillis_steele"), device="cpu") -> Any:
    notes: list[Any] = []
    measured = training.run_case(case, providers, Measure(), device, lambda event, facts: notes.append((event, facts)))
    assert not [facts["text"] for event, facts in notes if event == "traceback"]
    return measured


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_curves_agree_and_every_step_is_kept(dtype: str) -> None:
    measured = run(dataclasses.replace(CASE, dtype=dtype))
    results, protocol = measured["providers"], measured["protocol"]
    assert list(results) == ["ours", "sequential", "hillis_steele"]
    assert protocol["steps"] == len(protocol["exact_losses"]) == CASE.draws
    assert [len(losses) for losses in protocol["rounded_losses"]] == [CASE.draws] * training.ROUNDED
    assert protocol["rounding"] > 0
    for result in results.values():
        assert result["status"] == "ok", result
        assert len(result["losses"]) == len(result["samples_ms"]) == CASE.draws
        assert result["losses"] == pytest.approx(protocol["exact_losses"], rel=1e-5 if dtype == "float32" else 0.1)
        assert result["errors"]["of_rounding"] <= training.ALLOWED
        assert result["detail"]["held_bytes"] > CASE.B * CASE.T * CASE.C
    assert results["sequential"]["losses"] == pytest.approx(
        protocol["exact_losses"], rel=1e-6 if dtype == "float32" else 0
    )


def test_it_learns() -> None:
    losses = run(dataclasses.replace(CASE, C=32, draws=150), ("ours",))["providers"]["ours"]["losses"]
    assert losses[0] == pytest.approx(math.log(training_model.KINDS), rel=0.1)
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


def test_two_runs_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # In 16 bits, where a rounding is seen in the loss.
    first, second = (run(dataclasses.replace(CASE, dtype="bfloat16"), ("ours",)) for _ in range(2))
    assert first["providers"]["ours"]["losses"] == second["providers"]["ours"]["losses"]
    assert first["protocol"]["rounded_losses"] == second["protocol"]["rounded_losses"]
    assert first["protocol"]["rounded_losses"][0] != first["protocol"]["exact_losses"]


def test_a_batch_asks_for_what_it_holds() -> None:
    symbols, kinds = training_model.batch(CASE, 3, "cpu")
    again, other = (training_model.batch(CASE, step, "cpu")[0] for step in (3, 4))
    assert torch.equal(symbols, again) and not torch.equal(symbols, other)
    assert symbols.shape == (CASE.B, CASE.T)
    for row, named in zip(symbols.tolist(), kinds.tolist(), strict=True):
        *held, asked = row[: -training_model.ITEMS], row[-training_model.ITEMS :]
        assert [symbol - 1 for symbol in held[0] if symbol] == named
        assert asked == list(range(1 + training_model.KINDS, 1 + training_model.KINDS + training_model.ITEMS))


def test_the_exact_states_are_those_of_the_sequential_scan() -> None:
    gates, tokens = torch.rand(2, 37, 3), torch.randn(2, 37, 3)
    expected = sequential_scan(gates, tokens, dim=-2)
    torch.testing.assert_close(training_model.exact(gates.double(), tokens.double()), expected)


def test_the_rounded_scan_errs_as_much_as_one_that_rounds_each_step() -> None:
    T, drawn = 300, torch.Generator().manual_seed(1)
    memory = torch.linspace(0, 5, 3)
    gates = torch.sigmoid(memory + 0.1 * torch.randn(2, T, 3, generator=drawn))
    tokens, d_states = ((1 - gates) * torch.randn(2, T, 3, generator=drawn) for _ in range(2))
    states = [torch.zeros(2, 3)]
    for step in range(T):
        states.append(gates[:, step] * states[-1] + tokens[:, step])
    leaves = [each.clone().requires_grad_() for each in (gates, tokens)]
    found = training_model.rounded(torch.Generator().manual_seed(0))(*leaves)
    exact = [each.double().requires_grad_() for each in (gates, tokens)]
    expected = training_model.exact(*exact)

    def off(each: torch.Tensor) -> float:
        return (each.detach().double() - expected.detach()).square().mean().sqrt().item()

    assert 0.5 < off(found) / off(torch.stack(states[1:], 1)) < 2
    unit = torch.finfo(torch.float32).eps
    for a, b in zip(
        torch.autograd.grad(found, leaves, d_states),
        torch.autograd.grad(expected, exact, d_states.double()),
        strict=True,
    ):
        assert 0.1 * unit < (a.double() - b).square().mean().sqrt() / b.square().mean().sqrt() < 10 * unit


def test_the_gradients_of_the_rounded_scan_without_errors_are_those_of_the_scan() -> None:
    leaves = [torch.rand(2, 9, 3, dtype=torch.float64).requires_grad_(), torch.randn(2, 9, 3, dtype=torch.float64)]
    leaves[1].requires_grad_()
    assert torch.autograd.gradcheck(lambda g, x: training_model._Rounded.apply(g, x, torch.zeros_like), leaves)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_wrong_is_seen_and_ours_then_has_no_number(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    scale = 1.001 if dtype == "float32" else 1.5

    def wrong(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return training_model.ours(gates, tokens) * scale

    monkeypatch.setitem(training_model.SCANS, "ours", wrong)
    monkeypatch.setitem(training_model.SCANS, "hillis_steele", wrong)
    results = run(dataclasses.replace(CASE, dtype=dtype))["providers"]
    assert results["sequential"]["status"] == "ok"
    for name in ("ours", "hillis_steele"):
        assert results[name]["status"] == "wrong" and len(results[name]["losses"]) == CASE.draws
        assert "times as far from the exact curve as rounding sets it." in results[name]["reason"]
    assert "samples_ms" not in results["ours"] and results["hillis_steele"]["samples_ms"]
    assert store.failures({"providers": results}) == ["ours"]


def test_a_loss_that_is_not_finite_is_named_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def overflowing(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        states = training_model.hillis_steele(gates, tokens)
        return states * math.inf if len(calls) > training_model.BLOCKS * 7 else states

    monkeypatch.setitem(training_model.SCANS, "hillis_steele", overflowing)
    result = run()["providers"]["hillis_steele"]
    assert (result["status"], result["reason"]) == ("wrong", "the loss is not finite from step 5 on.")
    assert all(math.isfinite(loss) for loss in result["losses"][:5]) and not math.isfinite(result["losses"][5])


def test_a_failure_is_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no scan today")

    def late(gates: torch.Tensor, tokens: torch.Tensor, calls: list[int] = []) -> torch.Tensor:  # noqa: B006
        calls.append(1)
        return broken(gates, tokens) if len(calls) > 20 else training_model.ours(gates, tokens)

    monkeypatch.setitem(training_model.SCANS, "hillis_steele", broken)
    monkeypatch.setitem(training_model.SCANS, "sequential", late)
    names = ("hillis_steele", "sequential", "ours")
    results = training.run_case(CASE, names, Measure(), "cpu", lambda *_: None)["providers"]
    assert [results[name]["status"] for name in names] == ["error", "error", "ok"]
    assert "no scan today" in results["sequential"]["reason"] and len(results["ours"]["losses"]) == CASE.draws


def test_without_the_exact_network_nothing_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(gates: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(training, "exact", too_large)
    result = training.run_case(CASE, ("ours",), Measure(), "cpu", lambda *_: None)["providers"]["ours"]
    assert result["status"] == "error" and result["reason"].endswith("CUDA out of memory.")
    assert result["reason"].startswith("the exact network could not be trained, and nothing else says what is right: ")


def test_who_cannot_run_a_case_says_why() -> None:
    results = run(providers=("warp", "scalar", "roofline", "hgrn"))["providers"]
    assert all(result["status"] == "unsupported" and result["reason"].endswith(".") for result in results.values())
    assert results["roofline"]["reason"] == "roofline is not among the scans that a network is trained with."
    long = dataclasses.replace(CASE, T=4096)
    assert "T <= 512 only" in str(training_model.refuses("sequential", long, "cuda"))
    assert "no multiple of 2048" in str(training_model.refuses("scalar", dataclasses.replace(CASE, T=256), "cuda"))
    short = run(dataclasses.replace(CASE, T=7), ("ours",))["providers"]["ours"]
    assert short["reason"] == "Selective copying needs T of at least 8, and the case has 7."


def test_warp_is_run_on_padded_memory_where_it_leaves_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that compute the scan, and look at the memory behind their tensors as the real ones do."""
    seen: list[torch.Tensor] = []

    def behind(tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() >= 2 * tensor.nbytes
        seen.append(tensor)

    def forward(gates: torch.Tensor, tokens: torch.Tensor, states: torch.Tensor, reverse: bool) -> None:
        assert not reverse
        for tensor in (gates, tokens, states):
            behind(tensor)
        states.copy_(sequential_scan(gates, tokens))

    def backward(*tensors: torch.Tensor) -> None:
        gates, states, d_states, d_gates, d_tokens = tensors
        for tensor in tensors:
            behind(tensor)
        after = torch.cat((gates[..., 1:], torch.zeros_like(gates[..., :1])), -1)
        d_tokens.copy_(sequential_scan(after, d_states, reverse=True))
        d_gates[..., 1:] = d_tokens[..., 1:] * states[..., :-1]

    package, module = ModuleType("accelerated_scan"), ModuleType("accelerated_scan.warp")
    vars(module).update(warpscan_forward=forward, warpscan_backward=backward, scan=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "accelerated_scan", package)
    monkeypatch.setitem(sys.modules, "accelerated_scan.warp", module)
    monkeypatch.setattr(accelerated_scan, "_WARP_OVERRUNS_FROM", 16)
    gates, tokens = (torch.rand(2, 32, 3, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    d_states = torch.randn(2, 32, 3).bfloat16()
    results = []
    for scan in (training_model.warp_or_its_kernels, training_model.exact):
        states = scan(gates, tokens)
        results.append((states, *torch.autograd.grad(states, (gates, tokens), d_states)))
    for own, exact in zip(*results, strict=True):
        torch.testing.assert_close(own, exact, rtol=0.02, atol=0.02)
    assert len(seen) == 8
    assert not accelerated_scan.overruns(torch.float32, 2**16)


def test_the_sweep_has_a_short_and_a_long_sequence() -> None:
    cases = paper_settings("training", "h200").experiment.cases()
    assert {(case.dtype, case.T) for case in cases} == {(d, T) for d in ("float32", "bfloat16") for T in (256, 4096)}
    assert min(case.T for case in cases) <= training_model.LONGEST_SEQUENTIAL
    assert accelerated_scan.overruns(torch.bfloat16, max(case.T for case in cases))
    assert len(paper_settings("training", "cpu").experiment.cases()) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_gpu(dtype: str) -> None:
    assert ON_GPU
    results = run(dataclasses.replace(CASE, dtype=dtype, C=64, T=256), device="cuda")["providers"]
    for result in results.values():
        assert result["status"] == "ok", result
