"""Both directions of the same gates and tokens: right, the bits of two scans of one row a warp, one launch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from scan import (
    configure,
    launch,
    launch_shared,
    linear_scan,
    linear_scan_bidirectional,
    repeat,
    scan_bidirectional_branched,
    shared,
    tuning,
)
from scan.reference import sequential_scan
from tests.conftest import INTERPRETING, ON_GPU
from tests.scan.cases import bits
from tests.scan.stand_ins import Kernel

LAUNCHED = pytest.mark.skipif(not (INTERPRETING or ON_GPU), reason="of kernels, which a CPU has none of")
# Whole tiles of one and of several warps, rows that end within a tile, within a group, and that begin within one.
LENGTHS = [1, 7, 101, 128, 200, 256, 500, 512]
CASES = [(T, dtype, dtype) for T in LENGTHS for dtype in (torch.float32, torch.bfloat16)]
CASES += [(101, torch.float16, torch.float16), (128, torch.float16, torch.float16)]
CASES += [(T, *each) for T in (101, 128) for each in itertools.permutations((torch.float32, torch.bfloat16))]
# Rows of which a thread holds many steps, in tiles that they fill or not, up to 512 groups where they end within one;
# rows of 4095 steps are two scans. Then rows that programs share. All on a GPU, some elsewhere.
LONG = list(itertools.product((1024, 2039, 3000, 4087, 4095, 4096, 6144, 8192), (torch.float32, torch.bfloat16)))
LONG += [(T, dtype) for T in (4104, 16_376, 65_536) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
SOME = [(6144, torch.float32), (4087, torch.bfloat16), (5000, torch.float32), (12_288, torch.bfloat16)]
CASES += [(T, dtype, dtype) for T, dtype in (LONG if ON_GPU else SOME)]


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter, as `tests/interpreter.py` replaces parts of it, lets programs wait for later ones."""
    if INTERPRETING:
        from tests.interpreter import waits

        monkeypatch.setattr(configure, "multiprocessors", lambda tensor: 132 if waits() else 0)


def _draw(
    T: int, dtypes: tuple[torch.dtype, torch.dtype], log: bool, device: torch.device, rows: tuple[int, int] = (2, 3)
) -> tuple[Tensor, Tensor]:
    gates, tokens = torch.rand(*rows, T), torch.randn(*rows, T)
    return (gates.log() if log else gates).to(device, dtypes[0]), tokens.to(device, dtypes[1])


def _exact(gates: Tensor, tokens: Tensor, log: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves in float64, and states of both directions."""
    leaves = [t.detach().cpu().double().requires_grad_() for t in (gates, tokens)]
    factors = leaves[0].exp() if log else leaves[0]
    return leaves, [sequential_scan(factors, leaves[1], reverse=reverse) for reverse in (False, True)]


def _assert_rounded_once(got: Tensor, wanted: Tensor) -> None:
    """Within a rounding to the dtype, beside those of arithmetic in float32. Triton's interpreter cuts bfloat16 off."""
    roundings = 2 if INTERPRETING else 1
    largest = max(1.0, wanted.abs().max().item())
    error = (got.cpu().double() - wanted).abs()
    bound = wanted.abs() * roundings * torch.finfo(got.dtype).eps / 2 + largest * 1e-5
    assert got.isfinite().all() and (error <= bound).all(), (error - bound).max()


@pytest.mark.parametrize("log", [False, True], ids=["gates", "log"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(each).removeprefix("torch.") for each in case))
def test_states_their_sum_and_gradients(
    case: tuple[int, torch.dtype, torch.dtype], log: bool, device: torch.device
) -> None:
    T, *dtypes = case
    if log and T not in (101, 128):
        pytest.skip("of logarithms two lengths tell")
    # Beyond 16384 steps fewer rows than 384 are two scans.
    rows = (2, 3) if T <= 512 else (1, 2) if T <= 16_384 else (2, 192)
    gates, tokens = (t.requires_grad_() for t in _draw(T, (dtypes[0], dtypes[1]), log, device, rows))
    leaves, (ahead, back) = _exact(gates, tokens, log)
    for reduce in (None, "sum"):
        output = linear_scan_bidirectional(gates, tokens, log_gates=log, reduce=reduce)  # type: ignore[arg-type]
        _assert_rounded_once(output.final_state, ahead[..., -1])
        _assert_rounded_once(output.final_state_reverse, back[..., 0])
        if reduce is None:
            assert output.states_reverse is not None
            got, wanted = [output.states, output.states_reverse], [ahead, back]
        else:
            # On the CPU, and where there are two scans, each state is rounded before they are added.
            got, wanted = [output.states], [ahead + back]
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == tokens.dtype
            if reduce is None or (T != 4095 and (INTERPRETING or ON_GPU)):
                _assert_rounded_once(a, b)
        upstream = [torch.randn_like(a) for a in got]
        gradients = torch.autograd.grad(got, (gates, tokens), upstream)
        exact = torch.autograd.grad(wanted, leaves, [d.cpu().double() for d in upstream], retain_graph=True)
        for a, b, leaf in zip(gradients, exact, (gates, tokens), strict=True):
            assert a.dtype == leaf.dtype and a.shape == leaf.shape
            # Gradients of gates are products with states that were rounded.
            error = (a.cpu().double() - b).abs().max() / max(1.0, b.abs().max())
            assert error <= 4 * max(torch.finfo(d).eps for d in dtypes) + 1e-5


@LAUNCHED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("T", [64, 128, 256, 512, 2048, 8192, 10_240])
def test_the_bits_of_two_scans(T: int, dtype: torch.dtype, kernel_device: torch.device) -> None:
    gates, tokens = _draw(T, (dtype, dtype), False, kernel_device)
    # A gate and a token that are no numbers reach what is behind them, and nothing before.
    gates[0, 0, 0], gates[0, 1, T // 2], tokens[0, 2, T - 2], gates[1, 0, -1] = *[float("nan")] * 3, float("inf")
    ahead, back = (linear_scan(gates, tokens, reverse=reverse) for reverse in (False, True))
    for added, apart in ((False, True), (True, True)):
        outputs, _ = launch_shared.forward(gates, tokens, False, True, added, apart)
        got = (outputs.states, outputs.states_reverse, outputs.final, outputs.final_reverse)
        wanted = (ahead.states, back.states, ahead.final_state, back.final_state)
        for a, b in zip(got, wanted, strict=True):
            assert a is not None and torch.equal(a.isnan(), b.isnan())
            # Of other lengths a program of one direction has several rows, or warps, or tiles: it does not compose the
            # maps of groups in strips.
            equal = T == (256 if dtype == torch.float32 else 512)
            rtol = 0 if equal else max(1e-5, torch.finfo(a.dtype).eps)
            torch.testing.assert_close(a.nan_to_num(), b.nan_to_num(), rtol=rtol, atol=0 if equal else 1e-5)


@LAUNCHED
def test_a_sum_is_rounded_once(kernel_device: torch.device) -> None:
    gates, tokens = _draw(128, (torch.float16, torch.float16), False, kernel_device)
    (_, (ahead, back)) = _exact(gates, tokens, False)
    error = (linear_scan_bidirectional(gates, tokens, reduce="sum").states.cpu().double() - ahead - back).abs()
    apart = linear_scan_bidirectional(gates, tokens)
    twice = (apart.states + apart.states_reverse).cpu().double() - ahead - back  # type: ignore[operator]
    assert error.mean() < 0.8 * twice.abs().mean()


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "dense":
        return tensor
    if layout == "every other":
        return torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2]
    if layout == "odd":
        return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)
    if layout == "padded":
        return torch.cat((tensor, tensor[..., :3]), -1)[..., :-3]
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@LAUNCHED
@pytest.mark.parametrize("T", [48, 51])
@pytest.mark.parametrize("layout", ["every other", "odd", "padded", "swapped"])
@pytest.mark.parametrize("which", ["gates", "tokens", "d_states"])
def test_where_tensors_lie_is_no_matter(which: str, layout: str, T: int, kernel_device: torch.device) -> None:
    dtype = torch.float32
    given = dict(zip(("gates", "tokens"), _draw(T, (dtype, dtype), False, kernel_device), strict=True))
    given["d_states"] = torch.randn_like(given["tokens"])

    def step(tensors: dict[str, Tensor], reduce: Any) -> list[Tensor]:
        leaves = [tensors[name].detach().requires_grad_() for name in ("gates", "tokens")]
        states = linear_scan_bidirectional(*leaves, reduce=reduce)[: 1 if reduce else 2]
        return [*states, *torch.autograd.grad(states, leaves, [tensors["d_states"]] * len(states))]  # type: ignore[list-item]

    for reduce in (None, "sum"):
        moved = given | {which: _laid_out(given[which], layout)}
        for a, b in zip(step(moved, reduce), step(given, reduce), strict=True):
            torch.testing.assert_close(a, b)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    run = launch._run

    def named(key: Any, pointers: Any, made: Any) -> None:
        found.append(made.kernel.fn.__name__ if hasattr(made.kernel, "fn") else made.kernel.__name__)
        run(key, pointers, made)

    monkeypatch.setattr(launch, "_plans", {})
    monkeypatch.setattr(shared, "_calls", repeat.Known(9))
    monkeypatch.setattr(launch, "_run", named)
    return found


# Where a row ends within a group, of 512 groups at most; else of any length up to 2**17.
TAKEN = [(96, torch.float32), (2045, torch.float32), (4089, torch.bfloat16)]
TAKEN += [(T, dtype) for T in (4096, 4104, 6144, 8192, 8200, 16_384) for dtype in (torch.float32, torch.bfloat16)]
NOT_TAKEN = [(T, torch.float32) for T in (2046, 4095, 4102, 6145, 8191, 16_385)]
NOT_TAKEN += [(T, torch.bfloat16) for T in (4090, 4095, 4108, 6145, 8191, 16_388)]


@LAUNCHED
@pytest.mark.parametrize("reduce", [None, "sum"])
@pytest.mark.parametrize(("T", "dtype"), TAKEN)
def test_one_launch_each_way(
    T: int, dtype: torch.dtype, reduce: Any, launches: list[str], kernel_device: torch.device
) -> None:
    leaves = [t.requires_grad_() for t in _draw(T, (dtype, dtype), False, kernel_device, (1, 2))]
    states = linear_scan_bidirectional(*leaves, reduce=reduce)[: 1 if reduce else 2]
    torch.autograd.grad(states, leaves, [torch.ones_like(leaves[1])] * len(states))  # type: ignore[arg-type]
    assert launches == ["forward_shared", "backward_shared"]


@LAUNCHED
@pytest.mark.parametrize(("T", "dtype"), NOT_TAKEN)
def test_rows_that_end_within_many_groups_are_two_scans(
    T: int, dtype: torch.dtype, launches: list[str], kernel_device: torch.device
) -> None:
    gates, tokens = (t.requires_grad_() for t in _draw(T, (dtype, dtype), False, kernel_device, (1, 1)))
    linear_scan_bidirectional(gates, tokens, reduce="sum").states.sum().backward()
    assert launches and not any(name.endswith("_shared") for name in launches)


@LAUNCHED
def test_rows_without_room_for_their_programs_are_two_scans(
    launches: list[str], kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row takes 40 programs; a multiprocessor has room for 8 forward and, of two warps each, 4 backward.
    two_warps = ((2**17, tuning.Tile(1, 256, 4, 2, registers=128, window=128)),)
    monkeypatch.setattr(tuning, "_SHARED_BACKWARD", {4: two_warps})
    monkeypatch.setattr(tuning, "_FEW_ROWS", 1)
    leaves = [t.requires_grad_() for t in _draw(40_000, (torch.float32,) * 2, False, kernel_device, (1, 1))]
    for multiprocessors, wanted in ((10, ["forward_shared", "backward_shared"]), (5, ["forward_shared"]), (4, [])):
        launches.clear()
        launch._plans.clear()
        monkeypatch.setattr(shared, "_calls", repeat.Known(9))
        monkeypatch.setattr(configure, "multiprocessors", lambda tensor, n=multiprocessors: n)
        linear_scan_bidirectional(*leaves, reduce="sum").states.sum().backward()
        assert [name for name in launches if name.endswith("shared")] == wanted


@LAUNCHED
def test_the_branched_name_of_one_branch(launches: list[str], kernel_device: torch.device) -> None:
    gates, tokens = _draw(96, (torch.float32,) * 2, False, kernel_device)
    ahead, back = scan_bidirectional_branched(gates, tokens, gates, tokens)
    assert launches == ["forward_shared"]
    torch.testing.assert_close(ahead, linear_scan(gates, tokens).states)
    torch.testing.assert_close(back, linear_scan(gates, tokens, reverse=True).states)


@LAUNCHED
def test_what_it_does_not_take(launches: list[str], kernel_device: torch.device) -> None:
    gates, tokens = _draw(96, (torch.float32,) * 2, False, kernel_device)
    initial, cu_seqlens = torch.ones(2, 3, device=kernel_device), torch.tensor([0, 96], device=kernel_device)
    linear_scan_bidirectional(gates, tokens, initial_state=initial)
    linear_scan_bidirectional(gates, tokens, cu_seqlens=cu_seqlens)
    linear_scan_bidirectional(gates.double(), tokens.double())
    linear_scan_bidirectional(gates, tokens, dim=-2)
    assert not any(name.endswith("_shared") for name in launches)
    empty = tokens[..., :0]
    assert linear_scan_bidirectional(empty, empty, reduce="sum").states.shape == (2, 3, 0)


@pytest.mark.parametrize("used", ["states", "states_reverse", "final_state", "both", "sum and final"])
def test_gradients_of_what_is_used(used: str, device: torch.device) -> None:
    gates, tokens = (t.requires_grad_() for t in _draw(37, (torch.float32,) * 2, False, device))
    leaves, (ahead, back) = _exact(gates, tokens, False)
    output = linear_scan_bidirectional(gates, tokens, reduce="sum" if "sum" in used else None)
    exact = {"states": ahead, "states_reverse": back, "final_state": ahead[..., -1]}
    if used == "both":
        got, wanted = [output.states, output.states_reverse, output.final_state], list(exact.values())
    elif used == "sum and final":
        got, wanted = [output.states, output.final_state_reverse], [ahead + back, back[..., 0]]
    else:
        got, wanted = [getattr(output, used)], [exact[used]]
    upstream = [torch.randn_like(a) for a in got]  # type: ignore[arg-type]
    gradients = torch.autograd.grad(got, (gates, tokens), upstream)  # type: ignore[arg-type]
    for a, b in zip(gradients, torch.autograd.grad(wanted, leaves, [d.cpu().double() for d in upstream]), strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", ["gates", "tokens"])
@pytest.mark.parametrize("reduce", [None, "sum"])
def test_gradient_of_one_input(reduce: Any, wanted: str, device: torch.device) -> None:
    given = dict(zip(("gates", "tokens"), _draw(40, (torch.float32,) * 2, False, device), strict=True))
    leaf = given[wanted].requires_grad_()
    states = linear_scan_bidirectional(**given, reduce=reduce)[: 1 if reduce else 2]
    (gradient,) = torch.autograd.grad(states, leaf, [torch.ones_like(leaf)] * len(states))  # type: ignore[arg-type]
    leaves, exact = _exact(given["gates"], given["tokens"], False)
    (other,) = torch.autograd.grad(sum(exact).sum(), leaves[wanted == "tokens"])  # type: ignore[union-attr]
    torch.testing.assert_close(gradient.cpu().double(), other, rtol=1e-5, atol=1e-5)


@LAUNCHED
@pytest.mark.parametrize("reduce", [None, "sum"])
def test_second_derivative(reduce: Any, kernel_device: torch.device) -> None:
    gates, tokens = (t.requires_grad_() for t in _draw(9, (torch.float32,) * 2, False, kernel_device))

    def second(leaves: list[Tensor], states: list[Tensor]) -> list[Tensor]:
        value = sum((s.sin() * k).sum() for k, s in enumerate(states, 1))
        first = torch.autograd.grad(value, leaves, create_graph=True)  # type: ignore[arg-type]
        return list(torch.autograd.grad(sum((g**2).sum() for g in first), leaves))  # type: ignore[arg-type]

    got = second([gates, tokens], list(linear_scan_bidirectional(gates, tokens, reduce=reduce)[: 1 if reduce else 2]))  # type: ignore[arg-type]
    leaves, (ahead, back) = _exact(gates, tokens, False)
    wanted = second(leaves, [ahead + back] if reduce else [ahead, back])
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("T", [32, 512, 1023])
def test_a_known_call_launches_what_an_unknown_one_does(
    T: int, kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_calls", repeat.Known(9))
    for want_final, (added, apart) in itertools.product((False, True), ((False, True), (True, True), (True, False))):
        options = shared.Options(False, want_final, added, apart)
        gates, tokens, d_states, d_reverse = (torch.rand(2, 3, T) for _ in range(4))
        for _ in range(2):
            # The first call binds, the second finds its launch kept.
            assert shared.known(gates, tokens, options) is None
            outputs = shared._first(gates, tokens, options)
        call = shared.known(gates, tokens, options)
        assert call is not None
        for one, other in zip(outputs, shared.forward(call, gates, tokens), strict=True):
            assert (one is None) is (other is None)
            if one is not None and other is not None:
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        if outputs.states is not None and outputs.states_reverse is not None:
            for needs in ((True, True), (True, False), (False, True)):
                for _ in range(3):
                    gradients = shared.backward(
                        call, gates, outputs.states, outputs.states_reverse, d_states,
                        None if added else d_reverse, needs,
                    )  # fmt: skip
                    assert gradients is not None and tuple(g is not None for g in gradients) == needs
        for name in ("forward_shared", "backward_shared"):
            for compiled in kernels[name].compiled:
                assert len(compiled.calls) == 2
                for one, other in zip(*(arguments for _, arguments in compiled.calls), strict=True):
                    # Inputs lie where they lay, outputs do not; all else is the same.
                    assert type(one) is type(other) and (one == other or one & 15 == other & 15 == 0)
            kernels[name].bound.clear()
            kernels[name].compiled.clear()
        assert not any(kernels[name].bound for name in kernels)
        # Odd addresses are another launch.
        odd = torch.rand(2 * 3 * T + 1)[1:].view(2, 3, T)
        assert shared.known(gates, odd, options) is call
        shared.forward(call, gates, odd)
        assert kernels["forward_shared"].bound[-1][1]["tokens_ptr"] is odd
        kernels["forward_shared"].bound.clear()
        kernels["forward_shared"].compiled.clear()
        # What is no such call: values that are not stored, another kind.
        assert shared.known(torch._neg_view(gates), tokens, options) is None
        assert shared.known(gates.double(), tokens, options) is None
        launch._plans.clear()


@LAUNCHED
def test_gradients_are_the_same_bits_again(kernel_device: torch.device) -> None:
    gates, tokens = (t.requires_grad_() for t in _draw(256, (torch.bfloat16,) * 2, False, kernel_device))
    once, again = (
        torch.autograd.grad(linear_scan_bidirectional(gates, tokens, reduce="sum").states.sum(), (gates, tokens))
        for _ in range(2)
    )
    for a, b in zip(once, again, strict=True):
        assert torch.equal(bits(a), bits(b))
