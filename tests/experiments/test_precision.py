"""Errors of known size come out as what they are."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import precision
from experiments.config import Case, Measure
from experiments.correctness import Exact, exact
from experiments.inputs import DTYPES, Inputs
from experiments.precision import run_case
from experiments.providers.base import Call, Provider
from experiments.providers.registry import PROVIDERS
from experiments.truth import take_inputs, truth_of

CASE = Case("precision", "", "forward_backward", "bfloat16", 1, 4, 64, draws=8)
NAMES = ("states", "d_gates", "d_tokens")


class Exactly(Provider):
    """The exact results, changed as told, rounded once to the dtype."""

    name = "exactly"
    devices = ("cpu",)

    def __init__(self, change: Callable[[str, Tensor], Tensor], rounded: bool = True) -> None:
        self.change, self.rounded = change, rounded

    def api_call(self, case: Case, inputs: Inputs) -> Call:
        rows = torch.arange(case.B * case.C)
        truth = truth_of(take_inputs(inputs, case, rows, False), case)

        def value(name: str) -> Tensor:
            changed = self.change(name, truth.of(name).t().reshape(case.B, case.C, case.T).clone())
            return changed.to(DTYPES[case.dtype]) if self.rounded else changed

        return Call(lambda: tuple(map(value, NAMES)), lambda outputs: dict(zip(NAMES, outputs, strict=True)))


@pytest.fixture(autouse=True)
def _no_draws_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_last", [])


def measured(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str, Tensor], Tensor], case: Case = CASE, rounded: bool = True
) -> dict[str, Any]:
    monkeypatch.setattr(precision, "PROVIDERS", {**PROVIDERS, "linrec": Exactly(change, rounded)})
    record = run_case(case, ("linrec",), Measure(), "cpu", lambda event, facts: None)
    json.dumps(record, allow_nan=False)
    return record["providers"]["linrec"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_once_has_the_factor_one(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(monkeypatch, lambda name, value: value, replace(CASE, dtype=dtype))
    assert result["status"] == "ok" and result["reason"] is None
    for name in NAMES:
        errors = result["errors"][name]
        assert errors["rmse"] == errors["rounding_rmse"] and len(errors["rmse"]) == 8
        assert all(0 < error < 0.02 for error in errors["rmse"])
        assert errors["nonfinite"] == [0] * 8


def test_an_error_of_known_size_is_found_in_its_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, value: Tensor) -> Tensor:
        if name == "d_gates":
            value[3, 2, 10] += 4.0
        return value

    result = measured(monkeypatch, change, rounded=False)
    errors = result["errors"]["d_gates"]
    assert errors["rmse"][3] == pytest.approx(4.0 / (4 * 64) ** 0.5)
    assert errors["max_abs_err"][3] == pytest.approx(4.0)
    assert [index for index, error in enumerate(errors["rmse"]) if error > 0] == [3]
    assert max(result["errors"]["states"]["rmse"]) == 0


@pytest.mark.parametrize(("dtype", "shift"), [("float32", 1e-3), ("bfloat16", 1.0)])
def test_an_error_that_no_rounding_explains_is_wrong_though_far_below_the_value(
    dtype: str, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a provider whose gradient misses a border: few elements, each off by much more than rounding."""

    def change(name: str, value: Tensor) -> Tensor:
        if name == "d_gates":
            value[[1, 6], 2, 10] += shift
        return value

    result = measured(monkeypatch, change, replace(CASE, dtype=dtype))
    assert result["status"] == "wrong"
    said = re.fullmatch(
        r"in 2 of 8 draws d_gates differs from the float64 scan by up to ([\d.e+]+) times its error budget\.",
        result["reason"],
    )
    assert said is not None
    of_budget = result["errors"]["d_gates"]["of_budget"]
    assert float(said[1]) == pytest.approx(max(of_budget), rel=1e-2)
    assert [index for index, each in enumerate(of_budget) if each > 1] == [1, 6]
    assert all(max(result["errors"][name]["of_budget"]) <= 1 for name in ("states", "d_tokens"))


@pytest.mark.parametrize("gates", ["uniform_0_1", "uniform_099_1"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sound_methods_stay_within_the_budget(gates: str, dtype: str) -> None:
    case = replace(CASE, dtype=dtype, gates=gates, T=300, draws=4)
    names = ("ours", "blelloch", "hillis_steele", "sequential")
    for name, result in run_case(case, names, Measure(), "cpu", lambda event, facts: None)["providers"].items():
        if name == "ours" and dtype == "bfloat16" and os.environ.get("TRITON_INTERPRET") == "1":
            continue
        assert result["status"] == "ok", result["reason"]
        assert all(0 < max(result["errors"][each]["of_budget"]) <= 1 for each in NAMES)


def test_numbers_that_are_not_finite_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, value: Tensor) -> Tensor:
        if name == "states":
            value[1, 0, :3] = float("inf")
            value[5, 1, 7] = float("nan")
        return value

    result = measured(monkeypatch, change)
    assert result["status"] == "diverged"
    assert result["reason"] == "4 of 2048 elements of states are not finite."
    assert result["errors"]["states"]["nonfinite"] == [0, 3, 0, 0, 0, 1, 0, 0]
    assert result["errors"]["states"]["rmse"][1] is None and result["errors"]["states"]["max_abs_err"][5] is None
    assert result["errors"]["states"]["rmse"][0] == result["errors"]["states"]["rounding_rmse"][0]


def test_an_error_larger_than_the_result_has_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, value: Tensor) -> Tensor:
        if name == "d_tokens":
            value[2] *= 1e10
        return value

    result = measured(monkeypatch, change)
    assert result["status"] == "overflowed"
    assert result["reason"] == "in 1 of 8 draws the error of d_tokens is larger than d_tokens."


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_real_providers_from_end_to_end(dtype: str) -> None:
    names = ("ours", "roofline", "blelloch", "sequential", "warp")
    events: list[tuple[str, dict[str, Any]]] = []
    case = replace(CASE, dtype=dtype, draws=2, T=32)
    record = run_case(case, names, Measure(), "cpu", lambda event, facts: events.append((event, facts)))
    results = record["providers"]
    assert tuple(results) == names
    assert [facts["provider"] for event, facts in events if event == "comparing"] == list(names)
    for name in ("ours", "blelloch", "sequential"):
        assert results[name]["status"] == "ok"
        for quantity in NAMES:
            assert len(results[name]["errors"][quantity]["rmse"]) == 2
    # The truth itself, rounded once to the dtype.
    for errors in results["sequential"]["errors"].values():
        assert errors["rmse"] == pytest.approx(errors["rounding_rmse"], rel=1e-3)
    assert set(record["protocol"]["elapsed_s"]) == {"case", "inputs", *names}
    assert results["ours"]["detail"] == {"level": "api", "strategy": "time_loop"}
    assert results["roofline"] == {"status": "unsupported", "reason": "roofline computes nothing."}
    assert results["warp"]["reason"] == "warp runs on cuda, and this device is cpu."
    json.dumps(record, allow_nan=False)


def test_a_provider_that_raises_leaves_a_sentence_and_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, value: Tensor) -> Tensor:
        raise RuntimeError("the launch failed")

    monkeypatch.setattr(precision, "PROVIDERS", {**PROVIDERS, "linrec": Exactly(change)})
    events: list[tuple[str, dict[str, Any]]] = []
    record = run_case(
        CASE, ("linrec", "blelloch"), Measure(), "cpu", lambda event, facts: events.append((event, facts))
    )
    assert record["providers"]["linrec"] == {"status": "error", "reason": "RuntimeError: the launch failed."}
    assert record["providers"]["blelloch"]["status"] == "ok"
    assert [facts["provider"] for event, facts in events if event == "traceback"] == ["linrec"]


def test_both_layouts_are_measured_on_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("hillis_steele", "sequential", "blelloch")
    found = {}
    for dim in (-1, -2):
        monkeypatch.setattr(precision, "exact", lambda *given, dim=dim: counted(dim, *given))
        record = run_case(replace(CASE, dim=dim), names, Measure(), "cpu", lambda event, facts: None)
        found[dim] = record["providers"]
    for name in ("hillis_steele", "sequential"):
        assert found[-1][name]["status"] == "ok" and found[-1][name]["errors"] == found[-2][name]["errors"]
    assert found[-2]["blelloch"] == {
        "status": "unsupported",
        "reason": "blelloch takes channels first, time contiguous, and the case holds channels last.",
    }
    assert scanned == [-1], "the exact results of one layout serve the other"


scanned: list[int] = []


def counted(dim: int, *given: Any) -> Exact:
    scanned.append(dim)
    return exact(*given)


def test_kernels_stand_in_where_the_public_function_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class KernelsOnly(Exactly):
        levels = ("kernel",)
        no_kernel = "exactly has no public function."

        def kernel_call(self, case: Case, inputs: Inputs) -> Call:
            assert case.level == "kernel"
            return super().api_call(case, inputs)

    monkeypatch.setattr(precision, "PROVIDERS", {"linrec": KernelsOnly(lambda name, value: value)})
    result = run_case(CASE, ("linrec",), Measure(), "cpu", lambda event, facts: None)["providers"]["linrec"]
    assert result["status"] == "ok" and result["detail"] == {"level": "kernel"}
    case = replace(CASE, dim=-2)
    result = run_case(case, ("linrec",), Measure(), "cpu", lambda event, facts: None)["providers"]["linrec"]
    assert result == {"status": "unsupported", "reason": "exactly has no public function."}


@pytest.mark.parametrize("dim", [-1, -2])
def test_a_provider_that_modifies_its_inputs_is_named_and_harms_nobody(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scribbles(Exactly):
        dims = (-1, -2)

        def api_call(self, case: Case, inputs: Inputs) -> Call:
            inputs.d_states.add_(1)
            inputs.tokens[0, 0, 0] = 5
            return Call(lambda: (inputs.tokens,) * 3, lambda outputs: dict(zip(NAMES, outputs, strict=True)))

    provider = Scribbles(lambda name, value: value)
    monkeypatch.setattr(precision, "PROVIDERS", {**PROVIDERS, "linrec": provider})
    case = replace(CASE, dim=dim)
    names = ("sequential", "linrec", "hillis_steele")
    spoilt = run_case(case, names, Measure(), "cpu", lambda event, facts: None)["providers"]
    assert spoilt["linrec"] == {"status": "wrong", "reason": "it modifies its inputs: tokens, d_states."}
    alone = run_case(case, ("sequential", "hillis_steele"), Measure(), "cpu", lambda event, facts: None)["providers"]
    assert {name: spoilt[name] for name in alone} == alone


def test_a_broken_context_is_blamed_on_whoever_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, value: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(precision, "PROVIDERS", {**PROVIDERS, "linrec": Exactly(change)})
    record = run_case(CASE, ("blelloch", "linrec", "ours"), Measure(), "cpu", lambda event, facts: None)
    results = record["providers"]
    assert results["blelloch"]["status"] == "ok" and record["protocol"]["context_broken_by"] == "linrec"
    assert results["ours"]["reason"] == (
        "linrec broke the CUDA context before this was measured "
        "(RuntimeError: CUDA error: an illegal memory access was encountered)."
    )


def test_the_values_of_16_bit_gates_are_told_where_they_are_few() -> None:
    harder = replace(CASE, gates="uniform_099_1")
    facts = run_case(harder, (), Measure(), "cpu", lambda event, facts: None)["protocol"]
    assert facts["gate_values"] == [0.98828125, 0.9921875, 0.99609375, 1.0] and facts["gate_value_count"] == 4
    assert facts["draws"] == 8
    half = run_case(replace(harder, dtype="float16"), (), Measure(), "cpu", lambda event, facts: None)["protocol"]
    assert half["gate_value_count"] == 21
    for other in (replace(harder, dtype="float32"), CASE):
        assert "gate_values" not in run_case(other, (), Measure(), "cpu", lambda event, facts: None)["protocol"]


def test_logarithms_are_compared_with_the_gates_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider given log gates in 16 bits must not be blamed for rounding them."""

    class Logs(Exactly):
        log_gates = True

        def api_call(self, case: Case, inputs: Inputs) -> Call:
            rows = torch.arange(case.B * case.C)
            truth = truth_of(take_inputs(inputs, case, rows, True), case)
            outputs = tuple(truth.of(name).t().reshape(case.B, case.C, case.T) for name in NAMES)
            return Call(lambda: outputs, lambda outputs: dict(zip(NAMES, outputs, strict=True)))

    monkeypatch.setattr(
        precision,
        "PROVIDERS",
        {"linrec": Logs(lambda name, value: value), "blelloch": Exactly(lambda name, value: value)},
    )
    results = run_case(CASE, ("linrec", "blelloch"), Measure(), "cpu", lambda event, facts: None)["providers"]
    assert all(max(results["linrec"]["errors"][name]["rmse"]) == 0 for name in NAMES)
    assert (
        results["linrec"]["errors"]["states"]["rounding_rmse"]
        != results["blelloch"]["errors"]["states"]["rounding_rmse"]
    )
