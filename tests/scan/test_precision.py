"""How exact results are, and that the budgets of the other tests would notice if they were not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scan import cpu, linear_scan
from scan.reference import sequential_scan
from tests.conftest import INTERPRETING
from tests.scan.budget import assert_within, expected
from tests.scan.cases import DTYPES, Case, bits, draw, grid
from tests.scan.runs import Outputs, run, run_implementation

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
BOTH = {"dim": (-1, -2), "reverse": (False, True)}
HALF = (torch.float16, torch.bfloat16)
cuts_bfloat16 = pytest.mark.skipif(INTERPRETING, reason="the interpreter cuts bfloat16 off where hardware rounds it")


def _nudge(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Outputs], Outputs]:
    def plant(outputs: Outputs) -> Outputs:
        tensor = outputs[name]
        assert tensor is not None
        return outputs | {name: change(tensor.clone())}

    return plant


def _at(index: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(tensor: Tensor) -> Tensor:
        tensor[index] = change(tensor[index])
        return tensor

    return apply


# Mistakes that a scan could make, each in one element or one factor.
PLANTED = {
    "a state of 11 bits": _nudge("states", _at((0, 40), lambda h: h.half().float())),
    "a state of 16 bits": _nudge("states", _at((0, 40), lambda h: h * (1 + 2.0**-16))),
    "an unwritten state": _nudge("states", _at((1, 7), lambda h: h * torch.nan)),
    "a state of zero": _nudge("states", _at((2, 99), torch.zeros_like)),
    "a tile that forgot its carry": _nudge("states", _at((0, 64), lambda h: h - 0.01)),
    "an infinite state": _nudge("states", _at((0, 3), lambda h: h * torch.inf)),
    "states shifted by a step": _nudge("states", lambda h: h.roll(1, -1)),
    "the other row": _nudge("states", lambda h: h.roll(1, 0)),
    "a final state before the last": _nudge("final_state", lambda h: h + 1e-4),
    "a gradient that lost one step": _nudge("d_tokens", _at((0, 5), lambda d: d + 1e-4)),
    "a gate gradient with the wrong state": _nudge("d_gates", lambda d: d.roll(1, -1)),
    "a gate gradient with its sign turned": _nudge("d_gates", _at((1, 20), torch.neg)),
    "an initial gradient without its gate": _nudge("d_initial_state", lambda d: d + 1e-5),
    "no gradient": lambda outputs: outputs | {"d_gates": None},
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_budgets_notice(plant: Callable[[Outputs], Outputs]) -> None:
    case = Case(100, initial=True)
    inputs = draw(case)
    wanted, outputs = expected(case, inputs), run_implementation(cpu, case, inputs)
    assert_within(outputs, wanted)
    with pytest.raises(AssertionError, match=r"off by more than rounding|missing"):
        assert_within(plant(outputs), wanted)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_budgets_notice_a_16_bit_carry(dtype: torch.dtype) -> None:
    case = Case(60, dtype)
    inputs = draw(case)
    state, states = torch.zeros(3, dtype=dtype), []
    for g, x in zip(inputs.gates.unbind(-1), inputs.tokens.unbind(-1), strict=True):
        state = g * state + x
        states.append(state)
    with pytest.raises(AssertionError, match="states: "):
        assert_within({"states": torch.stack(states, -1)}, {"states": expected(case, inputs)["states"]})


def test_budgets_notice_16_bit_arithmetic_in_a_gate_gradient() -> None:
    case = Case(200, torch.float16, rows=(64,))
    inputs = draw(case)
    wanted, outputs = expected(case, inputs), run_implementation(cpu, case, inputs)
    states, d_tokens = outputs["states"], outputs["d_tokens"]
    assert states is not None and d_tokens is not None
    rounded_twice = d_tokens * torch.nn.functional.pad(states, (1, -1))
    with pytest.raises(AssertionError, match="d_gates: "):
        assert_within(outputs | {"d_gates": rounded_twice}, wanted)


@pytest.mark.parametrize("dim", [-1, -2])
def test_state_is_wider_than_16_bits(dim: int, device: torch.device) -> None:
    # A carry of 16 bits would stay at 128: from there a step of 1 is less than half a unit in the last place.
    shape = (1, 8192) if dim == -1 else (8192, 1)
    gates = torch.full(shape, 255 / 256, dtype=torch.bfloat16, device=device)
    states, final = linear_scan(gates, torch.ones_like(gates), dim=dim)
    assert abs(final.item() - 256) < 0.01
    assert states.flatten()[-1].item() == (255 if INTERPRETING else 256)


@pytest.mark.parametrize("case", grid(T=(3, 40, 300), dtype=HALF, initial=(True,), **BOTH), ids=str)
def test_16_bit_integers_are_exact(case: Case, device: torch.device) -> None:
    # Small integers are exact in every order of combination and in every cast: all bits must be right.
    inputs = draw(case, device)
    random = torch.Generator().manual_seed(2)
    for name, low, high in (("gates", -1, 2), ("tokens", -2, 3), ("initial_state", -2, 3), ("d_states", -1, 2)):
        tensor = getattr(inputs, name)
        # Now and then a gate of 0 keeps sums, and products of two of them, below 2**8.
        drawn = torch.randint(low, high, tensor.shape, generator=random)
        tensor.copy_(drawn)
    inputs.d_final_state = None
    inputs.gates.select(case.dim, case.T // 2).zero_()
    inputs.gates *= torch.rand(inputs.gates.shape, generator=random).to(device) > 0.3
    outputs, wanted = run(dataclasses.replace(case, upstream="states"), inputs), expected(case, inputs)
    for name, (value, _) in wanted.items():
        assert value.abs().max() <= 256
        result = outputs[name]
        assert result is not None and torch.equal(result.cpu().double(), value), name


@cuts_bfloat16
@pytest.mark.parametrize("case", grid(T=(1, 13, 512, 700), dtype=HALF, **BOTH), ids=str)
def test_16_bit_states_are_the_float32_state_rounded_once(case: Case, device: torch.device) -> None:
    outputs = run(case, draw(case, device))
    states, final = outputs["states"], outputs["final_state"]
    assert states is not None and final is not None
    last = states.select(case.dim, 0 if case.reverse else -1)
    assert torch.equal(bits(last), bits(final.to(case.dtype)))


@cuts_bfloat16
@pytest.mark.parametrize(
    "T", [128, 512, pytest.param(2048, marks=pytest.mark.gpu), pytest.param(8192, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_error_is_that_of_rounding_once(dtype: torch.dtype, T: int, device: torch.device) -> None:
    # Gates in [0, 1), 32 draws of 4 channels: error over the error of the exact result rounded once to the dtype.
    case = Case(T, dtype, rows=(32, 4), upstream="states")
    inputs = draw(case)
    inputs.gates.copy_(torch.rand(inputs.gates.shape, generator=torch.Generator().manual_seed(3)))
    wanted = expected(case, inputs)
    for name, tensor in vars(inputs).items():
        setattr(inputs, name, None if tensor is None else tensor.to(device))
    outputs = run(case, inputs)
    limits = {torch.float32: (2.1, 3.0, 3.0), torch.float16: (1.02, 1.02, 1.45), torch.bfloat16: (1.02, 1.02, 1.45)}
    for name, limit in zip(("states", "d_tokens", "d_gates"), limits[dtype], strict=True):
        result, exact = outputs[name], wanted[name][0]
        assert result is not None
        error = (result.cpu().double() - exact).square().mean((1, 2)).sqrt()
        once = (exact.to(dtype).double() - exact).square().mean((1, 2)).sqrt()
        # The factor of d_gates is a state that was rounded to 16 bits already.
        assert (error / once).mean() <= limit, name


def test_a_product_through_zero_gates_by_hand(device: torch.device) -> None:
    gates = torch.tensor([0.5, 0.0, 0.5, 0.0], device=device, requires_grad=True)
    tokens = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device, requires_grad=True)
    states = linear_scan(gates, tokens).states
    states.sum().backward()
    assert gates.grad is not None and tokens.grad is not None
    assert states.tolist() == [1, 2, 4, 4]
    assert gates.grad.tolist() == [0, 1.5, 2, 4] and tokens.grad.tolist() == [1, 1.5, 1, 1]


def test_reverse_by_hand(device: torch.device) -> None:
    gates, tokens = torch.tensor([0.5, 2.0, 3.0], device=device), torch.tensor([1.0, 2.0, 4.0], device=device)
    assert linear_scan(gates, tokens, reverse=True).states.tolist() == [6, 10, 4]


@pytest.mark.parametrize("dim", [-1, -2])
def test_gates_of_one_add_up(dim: int, device: torch.device) -> None:
    tokens = torch.randint(-9, 9, (3, 300), generator=torch.Generator().manual_seed(4)).float().to(device)
    along = tokens if dim == -1 else tokens.t().contiguous()
    assert torch.equal(linear_scan(torch.ones_like(along), along, dim=dim).states, along.cumsum(dim))


@pytest.mark.parametrize("gates", [[1.0, 0.5], [1.0, 0.0], [1e-30, 0.9], [-1.2, 1.1], [0.0, 0.0]], ids=str)
@pytest.mark.parametrize("case", grid(T=(64,), initial=(True,), **BOTH), ids=str)
def test_gates_that_ask_for_trouble(gates: list[float], case: Case, device: torch.device) -> None:
    inputs = draw(case, device)
    inputs.gates.copy_(torch.tensor(gates).repeat(32).view((-1,) if case.dim == -1 else (-1, 1)))
    outputs = run(case, inputs)
    assert all(o is not None and o.isfinite().all() for o in outputs.values())
    assert_within(outputs, expected(case, inputs))


def growing(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States under gates of 1.5 over a front of zeros; the exact ones, and the bound on the error."""
    inputs = draw(case, device)
    inputs.gates.fill_(1.5)
    front = (10, case.T - 10) if case.reverse else (0, case.T - 10)
    inputs.tokens.narrow(case.dim, *front).zero_()
    states = run(case, inputs)["states"]
    assert states is not None
    return states.cpu(), *expected(case, inputs)["states"]


@pytest.mark.parametrize("case", grid(T=(150,), **BOTH), ids=str)
def test_growing_gates_over_a_padded_front(case: Case, device: torch.device) -> None:
    states, exact, bound = growing(case, device)
    assert_within({"states": states}, {"states": (exact, bound)})


@pytest.mark.parametrize("case", grid(T=(300,), **BOTH), ids=str)
def test_a_product_of_gates_that_overflows_is_never_a_plausible_number(case: Case, device: torch.device) -> None:
    # The limit that linear_scan documents: the truth stays finite, a product of gates within a tile does not.
    states, exact, bound = growing(case, device)
    told = states.isfinite()
    assert_within({"states": states.where(told, 0)}, {"states": (exact.where(told, 0), bound)})


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [-1, -2])
def test_long_sums_stay_accurate(dim: int, device: torch.device) -> None:
    tokens = 0.1 + 0.01 * torch.randn(2**20, 2, generator=torch.Generator().manual_seed(5))
    exact = tokens.double().cumsum(0)
    along = tokens.to(device) if dim == -2 else tokens.t().contiguous().to(device)
    states = linear_scan(torch.ones_like(along), along, dim=dim).states.cpu()
    states = states if dim == -2 else states.t()
    assert ((states.double() - exact).abs() / exact.abs()).max() <= 1e-5


@pytest.mark.gpu
def test_long_odd_length_with_vanishing_gates(device: torch.device) -> None:
    gates = torch.rand(64, 43_884, generator=torch.Generator().manual_seed(6)).to(device)
    gates[:, ::97] = 1e-30
    tokens = torch.randn(64, 43_884, generator=torch.Generator().manual_seed(7)).to(device)
    states = linear_scan(gates, tokens).states
    torch.testing.assert_close(states.double().cpu(), sequential_scan(gates.cpu(), tokens.cpu()), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("dim", [-1, -2])
def test_complex(dtype: torch.dtype, dim: int, device: torch.device) -> None:
    random = torch.Generator().manual_seed(8)
    gates, tokens, initial = (
        torch.randn(shape, dtype=dtype, generator=random).mul(0.5).to(device).requires_grad_()
        for shape in ((3, 4, 9), (3, 4, 9), (3, 4) if dim == -1 else (3, 9))
    )
    states, final = linear_scan(gates, tokens, initial, dim=dim)
    again = [t.detach().cpu().to(torch.complex128).requires_grad_() for t in (gates, tokens, initial)]
    wanted = sequential_scan(*again, dim=dim)
    torch.testing.assert_close(states.cpu().to(wanted.dtype), wanted, rtol=2e-5, atol=2e-5)
    assert final.dtype == dtype
    upstream = torch.randn(states.shape, dtype=dtype, generator=random)
    mine = torch.autograd.grad(states, (gates, tokens, initial), upstream.to(device))
    theirs = torch.autograd.grad(wanted, again, upstream.to(wanted.dtype))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.cpu().to(b.dtype), b, rtol=2e-5, atol=2e-5)
