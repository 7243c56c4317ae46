"""Truth and error budgets."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import scan
from experiments.config import DIRECTIONS, Case
from experiments.correctness import Known, budget, chosen_rows, exact, exact_of, judge, value
from experiments.inputs import DTYPES, Inputs, draw
from experiments.providers.base import Named, outputs_of
from experiments.truth import scan_lines, take, take_inputs, truth_of
from scan.reference import sequential_scan

CASE = Case("speed", "kernel", "forward_backward", "float32", 2, 3, 200)
LAYOUTS = {
    "plain": CASE,
    "reverse": replace(CASE, reverse=True),
    "channels_last": replace(CASE, dim=-2),
    "packed": replace(CASE, lengths="1x1+1x0+1x99+2x50"),
    "packed_reverse": replace(CASE, lengths="1x60+1x0+1x140", reverse=True),
}


def by_autograd(case: Case, inputs: Inputs, log_gates: bool = False) -> Named:
    gates, tokens = inputs.gates.double().requires_grad_(), inputs.tokens.double().requires_grad_()
    options = {"dim": case.dim, "reverse": case.reverse, "cu_seqlens": inputs.cu_seqlens, "log_gates": log_gates}
    states = sequential_scan(gates, tokens, **options)
    d_gates, d_tokens = torch.autograd.grad(states, (gates, tokens), inputs.d_states.double())
    return {"states": states.detach(), "d_gates": d_gates, "d_tokens": d_tokens}


def in_float32(case: Case, inputs: Inputs, carried: torch.dtype = torch.float32) -> Named:
    """States and gradients by a loop whose state is rounded to `carried` after every step."""
    gates, tokens, d_states = (t.to(carried) for t in (inputs.gates, inputs.tokens, inputs.d_states))
    states, d_tokens = torch.empty_like(tokens), torch.empty_like(tokens)
    state = torch.zeros_like(tokens[..., 0])
    for t in range(case.T):
        state = states[..., t] = gates[..., t] * state + tokens[..., t]
    flowing = torch.zeros_like(state)
    for t in reversed(range(case.T)):
        d_tokens[..., t] = d_states[..., t] + flowing
        flowing = gates[..., t] * d_tokens[..., t]
    stored = states.to(inputs.tokens.dtype)
    d_gates = d_tokens * torch.nn.functional.pad(stored[..., :-1], (1, 0)).to(carried)
    return {"states": stored, "d_gates": d_gates.to(stored.dtype), "d_tokens": d_tokens.to(stored.dtype)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_truth_is_what_autograd_finds(layout: str) -> None:
    case = LAYOUTS[layout]
    inputs = draw(case, "cpu")
    rows = torch.arange(case.B * case.C)
    truth = truth_of(take_inputs(inputs, case, rows, False), case)
    for name, expected in by_autograd(case, inputs).items():
        torch.testing.assert_close(truth.of(name), take(expected, case, rows), rtol=1e-12, atol=1e-12)


def test_truth_of_complex_numbers_is_what_autograd_finds() -> None:
    case = replace(CASE, dtype="complex64")
    inputs = draw(case, "cpu")
    rows = torch.arange(case.B * case.C)
    truth = truth_of(take_inputs(inputs, case, rows, False), case)
    gates, tokens = (each.to(torch.complex128).requires_grad_() for each in (inputs.gates, inputs.tokens))
    states = sequential_scan(gates, tokens)
    d_gates, d_tokens = torch.autograd.grad(states, (gates, tokens), inputs.d_states.to(torch.complex128))
    for name, expected in (("states", states.detach()), ("d_gates", d_gates), ("d_tokens", d_tokens)):
        torch.testing.assert_close(truth.of(name), take(expected, case, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("directions", DIRECTIONS[1:])
def test_truth_of_both_directions_is_what_autograd_finds(directions: str, dim: int, dtype: str) -> None:
    case = replace(CASE, directions=directions, dim=dim, dtype=dtype)
    inputs = draw(case, "cpu")
    leaves = {name: each.double() for name, each in inputs.shared().items() if not name.startswith("d_states")}
    for each in leaves.values():
        each.requires_grad_()
    states = sequential_scan(leaves["gates"], leaves["tokens"], dim=dim)
    second = leaves.get("gates_reverse", leaves["gates"]), leaves.get("tokens_reverse", leaves["tokens"])
    states_reverse = sequential_scan(*second, dim=dim, reverse=True)
    found = {"states": states + states_reverse} if directions == "shared_sum" else {
        "states": states, "states_reverse": states_reverse
    }  # fmt: skip
    upstream = [inputs.shared()[f"d_{name}"].double() for name in found]
    gradients = torch.autograd.grad(tuple(found.values()), tuple(leaves.values()), upstream)
    found |= {f"d_{name}": each for name, each in zip(leaves, gradients, strict=True)}
    assert set(found) == set(outputs_of(case))
    known = exact_of(case, inputs, chosen_rows(case))
    for name, each in found.items():
        expected = take(each.detach(), case, known.rows)
        torch.testing.assert_close(value(name, known), expected, rtol=1e-12, atol=1e-12)
    outputs = {name: each.detach().to(DTYPES[dtype]) for name, each in found.items()}
    assert judge(outputs, case, known, torch.float32).reason is None
    for name, each in outputs.items():
        each.flatten()[7] += each.abs().max() * (1e-3 if dtype == "float32" else 0.1)
        reason = judge({name: each}, case, known, torch.float32).reason
        assert reason is not None and reason.startswith(f"{name} differs from the float64 scan")


def test_truth_of_logarithms_is_what_autograd_finds() -> None:
    inputs = draw(CASE, "cpu")
    logs = replace(inputs, gates=inputs.gates.log())
    rows = torch.arange(CASE.B * CASE.C)
    truth = truth_of(take_inputs(inputs, CASE, rows, True), CASE)
    for name, expected in by_autograd(CASE, logs, log_gates=True).items():
        torch.testing.assert_close(truth.of(name), take(expected, CASE, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("T", [1, 2, 3, 16, 17, 200, 4097])
@pytest.mark.parametrize("low", [0.0, 0.99])
def test_blocks_change_the_truth_by_a_few_roundings(T: int, low: float) -> None:
    gates, tokens = (low + (1 - low) * torch.rand(T, 5)).double(), torch.randn(T, 5).double()
    gates[T // 2, 0] = 0
    one_loop = sequential_scan(gates, tokens, dim=-2)
    sizes = sequential_scan(gates, tokens.abs(), dim=-2)
    assert ((scan_lines(gates, tokens) - one_loop).abs() <= 1e-15 * sizes).all()


def test_rows_are_the_first_the_last_and_others() -> None:
    many = chosen_rows(replace(CASE, B=8, C=1536, T=128))
    assert many[0] == 0 and many[-1] == 8 * 1536 - 1
    assert len(many) == len(many.unique()) == 64
    assert len(chosen_rows(replace(CASE, B=8, C=1536, T=65536))) == 16
    assert chosen_rows(CASE).tolist() == [0, 1, 2, 3, 4, 5]
    assert chosen_rows(replace(CASE, B=1, C=1)).tolist() == [0]
    assert [len(chosen_rows(replace(CASE, B=1, C=C, T=T))) for C, T in ((1, 2**24), (64, 2**20))] == [1, 16]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("gates", ["uniform_0_1", "uniform_099_1"])
def test_a_right_result_is_inside_its_budget(dtype: str, gates: str) -> None:
    case = replace(CASE, dtype=dtype, gates=gates)
    inputs = draw(case, "cpu")
    known = exact(case, inputs, chosen_rows(case))
    verdict = judge(in_float32(case, inputs), case, known, torch.float32)
    assert verdict.reason is None
    assert all(error is not None and 0 < error < 0.01 for error in verdict.errors.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_state_carried_in_16_bits_is_inside_its_own_budget_alone(dtype: str) -> None:
    case = replace(CASE, dtype=dtype)
    inputs = draw(case, "cpu")
    known = exact(case, inputs, chosen_rows(case))
    outputs = in_float32(case, inputs, carried=DTYPES[dtype])
    assert judge(outputs, case, known, DTYPES[dtype]).reason is None
    reason = judge(outputs, case, known, torch.float32).reason
    assert reason is not None and "times its error budget" in reason


def test_rounding_the_exact_result_once_is_always_inside() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        case = replace(CASE, dtype=str(dtype).removeprefix("torch."))
        inputs = draw(case, "cpu")
        # Small enough for subnormal numbers of float16.
        inputs = replace(inputs, tokens=inputs.tokens * 1e-6)
        known = exact(case, inputs, chosen_rows(case))
        truth = known.truth.states
        error = (truth.to(dtype).double() - truth).abs()
        assert (error <= budget("states", known, dtype, torch.float32)).all()


def test_a_complex_result_is_inside_its_budget_and_a_wrong_one_is_not() -> None:
    case = replace(CASE, dtype="complex64")
    inputs = draw(case, "cpu")
    known = exact(case, inputs, chosen_rows(case))
    gates, tokens = inputs.gates.clone().requires_grad_(), inputs.tokens.clone().requires_grad_()
    states = scan.linear_scan(gates, tokens).states
    gradients = torch.autograd.grad(states, (gates, tokens), inputs.d_states)
    outputs = dict(zip(("states", "d_gates", "d_tokens"), (states.detach(), *gradients), strict=True))
    assert judge(outputs, case, known, torch.complex64).reason is None
    assert judge({"states": outputs["states"].conj()}, case, known, torch.complex64).reason is not None
    outputs["d_gates"][0, 0, 3] = complex(0, float("nan"))
    assert judge({"d_gates": outputs["d_gates"]}, case, known, torch.complex64).reason == (
        "1 of 1200 elements of d_gates are not finite."
    )


def forget_carry(outputs: Named) -> None:
    """The state that a second tile of 64 steps starts from is lost."""
    outputs["states"][1, 2, 64:] -= outputs["states"][1, 2, 63] * 0.5


def disturb_one(outputs: Named) -> None:
    outputs["d_tokens"][0, 0, 17] *= 1 + 1e-4


def shift_gates(outputs: Named) -> None:
    outputs["d_gates"].copy_(outputs["d_gates"].roll(1, -1))


def leave_hole(outputs: Named) -> None:
    outputs["states"][0, 1, 100] = float("nan")


@pytest.mark.parametrize("fault", [forget_carry, disturb_one, shift_gates, leave_hole])
def test_a_planted_error_is_found(fault: object) -> None:
    inputs = draw(CASE, "cpu")
    known = exact(CASE, inputs, chosen_rows(CASE))
    outputs = in_float32(CASE, inputs)
    assert callable(fault)
    fault(outputs)
    assert judge(outputs, CASE, known, torch.float32).reason is not None


def test_a_hole_is_found_in_rows_that_are_not_compared() -> None:
    inputs = draw(CASE, "cpu")
    known = exact(CASE, inputs, torch.tensor([0, 5]))
    outputs = in_float32(CASE, inputs)
    outputs["d_gates"][1, 0, 3] = float("inf")
    verdict = judge(outputs, CASE, known, torch.float32)
    assert verdict.reason == "1 of 1200 elements of d_gates are not finite."


def test_wording_says_where_and_how_far() -> None:
    inputs = draw(CASE, "cpu")
    known = exact(CASE, inputs, chosen_rows(CASE))
    outputs = in_float32(CASE, inputs)
    disturb_one(outputs)
    reason = judge(outputs, CASE, known, torch.float32).reason
    assert reason is not None
    assert reason.startswith("d_tokens differs from the float64 scan by ")
    assert reason.endswith(" times its error budget at row 0, t = 17.")
    wrong_shape: dict[str, Tensor] = {"states": outputs["states"][..., :-1]}
    assert judge(wrong_shape, CASE, known, torch.float32).reason == (
        "states has shape (2, 3, 199) where (2, 3, 200) was expected."
    )


def test_a_draw_that_returns_is_scanned_once() -> None:
    known = Known()
    inputs = draw(CASE, "cpu")
    first = known.exact(CASE, "cpu", inputs, False)
    assert known.exact(replace(CASE, mode="backward", level="api"), "cpu", inputs, False) is first
    assert known.exact(replace(CASE, seed=1), "cpu", inputs, False) is not first
    assert known.exact(CASE, "cpu", inputs, True) is not first
    for seed in range(2, 6):
        known.exact(replace(CASE, T=2, seed=seed), "cpu", draw(replace(CASE, T=2), "cpu"), False)
    assert known.exact(CASE, "cpu", inputs, False) is not first
