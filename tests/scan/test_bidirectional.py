"""Both directions at once: the bits of two scans, from one launch each way where the tensors lie alike."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from scan import bidirectional, cpu, launch, linear_scan, linear_scan_bidirectional, repeat, tuning
from tests.conftest import INTERPRETING, ON_GPU
from tests.scan.stand_ins import Kernel

LENGTHS = [0, 37, 37, 90]


def _branch(
    T: int, dtype: torch.dtype, dim: int, packed: bool, states: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    shape = (2, 3, T) if dim == -1 else (2, T, 3)
    initial = torch.randn((len(LENGTHS) - 1, 2, 3) if packed else (2, 3)).to(device) if states else None
    return torch.rand(shape).to(device, dtype), torch.randn(shape).to(device, dtype), initial


def _outputs_and_gradients(run: Any, branches: tuple[Any, Any], upstream: list[Tensor | None]) -> list[Tensor | None]:
    leaves = [None if t is None else t.detach().clone().requires_grad_() for branch in branches for t in branch]
    outputs = run(leaves[:3], leaves[3:])
    used = [(o, g) for o, g in zip(outputs, upstream, strict=True) if g is not None]
    gradients = torch.autograd.grad(
        [o for o, _ in used], [t for t in leaves if t is not None], [g for _, g in used], allow_unused=True
    )
    return [*outputs, *gradients]


@pytest.mark.parametrize("states", [False, True], ids=["plain", "states"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("dim", [-1, -2], ids=["first", "last"])
@pytest.mark.parametrize(("T", "dtype"), [(101, torch.float32), (96, torch.bfloat16)], ids=["101-f32", "96-bf16"])
def test_the_bits_of_two_scans(
    T: int, dtype: torch.dtype, dim: int, packed: bool, states: bool, device: torch.device
) -> None:
    branches = tuple(_branch(T, dtype, dim, packed, states, device) for _ in range(2))
    cu_seqlens = torch.tensor(LENGTHS, device=device) if packed else None

    def at_once(ahead: Any, back: Any) -> Any:
        return linear_scan_bidirectional(*ahead[:2], *back[:2], ahead[2], back[2], dim=dim, cu_seqlens=cu_seqlens)

    def apart(ahead: Any, back: Any) -> Any:
        a = linear_scan(*ahead, dim=dim, cu_seqlens=cu_seqlens)
        b = linear_scan(*back, dim=dim, cu_seqlens=cu_seqlens, reverse=True)
        return a.states, b.states, a.final_state, b.final_state

    finals = [torch.randn_like(t) for t in at_once(*branches)[2:]]
    d_states = [torch.randn_like(branch[1]) for branch in branches]
    for upstream in ([*d_states, *finals], [d_states[0], None, None, None], [None, d_states[1], None, finals[1]]):
        got = _outputs_and_gradients(at_once, branches, upstream)
        want = _outputs_and_gradients(apart, branches, upstream)
        for a, b in zip(got, want, strict=True):
            if a is None or b is None:
                assert (a is None or not a.any()) and (b is None or not b.any())
            else:
                assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is launched: the name of each kernel."""
    found: list[str] = []
    run, kept = launch._run, launch._plan

    def first(key: Any, pointers: Any, made: Any) -> None:
        found.append(made.kernel.fn.__name__ if hasattr(made.kernel, "fn") else made.kernel.__name__)
        run(key, pointers, made)

    def plan(*arguments: Any) -> launch.Plan:
        made = kept(*arguments)

        def again(*addresses: Any) -> None:
            found.append("again")
            made(*addresses)

        return again

    monkeypatch.setattr(launch, "_plans", {})
    monkeypatch.setattr(launch, "_run", first)
    monkeypatch.setattr(launch, "_plan", plan)
    return found


@pytest.mark.skipif(not (INTERPRETING or ON_GPU), reason="counts launches of kernels, which a CPU has none of")
def test_one_launch_each_way(launches: list[str], device: torch.device) -> None:
    ahead, back = (_branch(96, torch.float32, -1, False, False, device) for _ in range(2))
    leaves = [t.requires_grad_() for branch in (ahead, back) for t in branch[:2] if t is not None]
    output = linear_scan_bidirectional(*leaves)
    assert output.states_reverse is not None
    (output.states.sum() + output.states_reverse.sum()).backward()
    assert launches == ["forward_both", "backward_both"]


@pytest.mark.skipif(not (INTERPRETING or ON_GPU), reason="counts launches of kernels, which a CPU has none of")
def test_tensors_that_lie_otherwise_take_two(launches: list[str], device: torch.device) -> None:
    gates, tokens, _ = _branch(96, torch.float32, -1, False, False, device)
    other = tokens.mT.contiguous().mT
    output = linear_scan_bidirectional(gates, tokens, gates, other)
    assert launches == ["forward", "forward"]
    assert torch.equal(output.states_reverse, linear_scan(gates, other, reverse=True).states)  # type: ignore[arg-type]


@pytest.mark.skipif(not (INTERPRETING or ON_GPU), reason="of kernels, which a CPU has none of")
@pytest.mark.parametrize("log", [False, True], ids=["gates", "log"])
@pytest.mark.parametrize(
    ("T", "dtype"), [(96, torch.float32), (100, torch.float32), (104, torch.bfloat16)], ids=["96", "100", "104-bf16"]
)
def test_rows_whose_loads_run_ahead(
    T: int, dtype: torch.dtype, log: bool, launches: list[str], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    # As of rows of many tiles: whole ones; those of which the last is not; rows that begin within a line of memory.
    tile = tuning.Tile(1, 8, 16 // dtype.itemsize, 1, 3)
    monkeypatch.setattr(tuning, "time_contiguous", lambda *_, **__: tile)
    branches = tuple(_branch(T, dtype, -1, False, True, device) for _ in range(2))
    if log:
        branches = tuple((gates.log(), *rest) for gates, *rest in branches)  # type: ignore[assignment]
    options = (None, -1, log)
    states, states_reverse, final, final_reverse = launch.forward_both(*branches, *options, True)
    needs, incoming = (True, True, False), [torch.randn_like(states) for _ in range(2)]
    saved = [(b[0], h, None, d, None) for b, h, d in zip(branches, (states, states_reverse), incoming, strict=True)]
    both = launch.backward_both(saved[0], saved[1], None, dtype, -1, log, (needs, needs))
    assert launches[0] == "forward_either" and len(launches) == 3
    for reverse, each, got in ((False, 0, (states, final)), (True, 1, (states_reverse, final_reverse))):
        wanted = launch.forward(*branches[each], None, -1, reverse, log, True)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))  # type: ignore[arg-type]
        gates, h, *_, d, _ = saved[each]
        gradients = launch.backward(gates, h, None, None, d, None, dtype, -1, reverse, log, needs)
        assert all(torch.equal(a, b) for a, b in zip(both[each][:2], gradients[:2], strict=True))  # type: ignore[arg-type]
    # Rows that end within a group, sequences, and gradients of one input are two launches, at every call.
    launches.clear()
    gates, tokens = (t[..., 1:].contiguous() for t in branches[0][:2])
    for _ in range(2):
        launch.forward_both((gates, tokens, None), (gates, tokens, None), *options, False)
    assert launches == ["forward"] * 4 or launches == ["forward"] * 2 + ["again"] * 2


def test_gradient_of_one_direction_alone(device: torch.device) -> None:
    ahead, back = (_branch(64, torch.float32, -1, False, False, device)[:2] for _ in range(2))
    leaves = [t.requires_grad_() for t in (*ahead, *back)]
    linear_scan_bidirectional(*leaves).states.sum().backward()
    assert leaves[2].grad is None and leaves[3].grad is None
    assert leaves[0].grad is not None and leaves[1].grad is not None
    gates, tokens = (t.detach().clone().requires_grad_() for t in ahead)
    linear_scan(gates, tokens).states.sum().backward()
    assert torch.equal(leaves[0].grad, gates.grad) and torch.equal(leaves[1].grad, tokens.grad)  # type: ignore[arg-type]


def test_second_derivative_of_both(contract_device: torch.device) -> None:
    leaves = [
        t.double().requires_grad_()
        for _ in range(2)
        for t in _branch(7, torch.float32, -1, False, False, contract_device)[:2]
    ]  # type: ignore[union-attr]
    assert torch.autograd.gradgradcheck(lambda *x: linear_scan_bidirectional(*x)[:2], leaves, fast_mode=True)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("final", [False, True], ids=["states", "final"])
def test_the_operators_are_well_made(packed: bool, final: bool, contract_device: torch.device) -> None:
    branches = [_branch(90, torch.float32, -1, packed, True, contract_device) for _ in range(2)]
    inputs = [None if t is None else t.requires_grad_() for branch in branches for t in branch]
    cu_seqlens = torch.tensor(LENGTHS, device=contract_device) if packed else None
    torch.library.opcheck(torch.ops.linear_scan.scan_both.default, (*inputs, cu_seqlens, -1, False, final))
    with torch.no_grad():
        states = [inputs[1].clone(), inputs[4].clone()]  # type: ignore[union-attr]
        d_final = None if inputs[2] is None else torch.randn_like(inputs[2])
        ahead, back = (
            (g, h, i, torch.randn_like(h), d_final) for g, h, i in zip(inputs[::3], states, inputs[2::3], strict=True)
        )
        saved = [None if t is None else t.detach() for t in (*ahead, *back)]
        for needs in ([True] * 6, [True, False, True, False, True, False]):
            torch.library.opcheck(
                torch.ops.linear_scan.scan_both_backward.default,
                (*saved, cu_seqlens, torch.float32, -1, False, needs),
                test_utils=("test_schema", "test_faketensor"),
            )


def test_a_known_call_launches_what_an_unknown_one_does(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeat, "_calls_of_both", repeat.Known(9))
    for dim, want_final in itertools.product((-1, -2), (False, True)):
        monkeypatch.setattr(launch, "_plans", {})
        options = repeat.Options(dim, False, False, want_final)
        gates, tokens, gates_reverse, tokens_reverse, d_states, d_reverse = (torch.rand(2, 3, 32) for _ in range(6))
        ahead, back = (gates, tokens), (gates_reverse, tokens_reverse)
        for _ in range(2):
            # The first call binds, the second finds its launch kept.
            assert repeat.known_both(ahead, back, options) is None
            states, states_reverse, final, final_reverse = repeat.first_both(ahead, back, options)
        call = repeat.known_both(ahead, back, options)
        assert call is not None
        again = repeat.forward_both(call, ahead, back)
        for one, other in zip((states, states_reverse, final, final_reverse), again, strict=True):
            assert (one is None) is (other is None)
            if one is not None and other is not None:
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        for _ in range(3):
            gradients = repeat.backward_both(
                call, (gates, states, d_states), (gates_reverse, states_reverse, d_reverse)
            )
            assert [len(each) for each in gradients] == [2, 2]
        for name in ("forward_both", "backward_both"):
            (compiled,) = kernels[name].compiled
            assert len(compiled.calls) == 2
            for one, other in zip(*(arguments for _, arguments in compiled.calls), strict=True):
                # Inputs lie where they lay, outputs do not; all else is the same.
                assert type(one) is type(other) and (one == other or one & 15 == other & 15 == 0)
            kernels[name].bound.clear()
            kernels[name].compiled.clear()
        assert not kernels["forward"].bound and not kernels["backward"].bound
        # What is no such call: directions that differ, values that are not stored.
        assert repeat.known_both(ahead, (gates_reverse, tokens.mT.contiguous().mT), options) is None
        assert repeat.known_both(ahead, (gates_reverse, tokens.double()), options) is None
        assert repeat.known_both((torch._neg_view(gates), tokens), back, options) is None
        # Odd addresses are another launch.
        odd = torch.rand(2 * 3 * 32 + 1)[1:].view(2, 3, 32)
        assert repeat.known_both(ahead, (gates_reverse, odd), options) is call
        repeat.forward_both(call, ahead, (gates_reverse, odd))
        assert kernels["forward_both"].bound[-1][1]["tokens_other_ptr"] is odd
        # Of one pair of tensors it is a call of its own, which `shared` may serve.
        assert repeat.known_both(ahead, ahead, options) is None
        for _ in range(2):
            repeat.first_both(ahead, ahead, options)
        of_one = repeat.known_both(ahead, ahead, options)
        assert of_one is not None and of_one is not repeat.known_both(ahead, back, options) is call
        # One gradient for both directions, as that of their sum is, and the same tensors: found by guards, too.
        same = (gates, states, d_states), (gates, states_reverse, d_states)
        for _ in range(3):
            repeat.backward_both(of_one, *same)
        with monkeypatch.context() as patch:
            patch.setattr(repeat, "_key", None)
            assert repeat.known_both(ahead, ahead, options) is of_one
            repeat.backward_both(of_one, *same)
        for kernel in kernels.values():
            kernel.bound.clear()
            kernel.compiled.clear()


def test_a_known_call_has_every_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    options = repeat.Options(-1, False, False, True)

    def forward(call: repeat.Call, ahead: Any, back: Any) -> Any:
        a, b = cpu.forward(*ahead, None, None, *options), cpu.forward(*back, None, None, -1, True, False, True)
        return a[0], b[0], a[1], b[1]

    def backward(call: repeat.Call, ahead: Any, back: Any) -> Any:
        saved = [(g, h, None, d, None) for g, h, d in (ahead, back)]
        both = backward_both(*saved, None, torch.float64, -1, False, ((True, True, False),) * 2)
        return both[0][:2], both[1][:2]

    def backward_both(ahead: Any, back: Any, *options: Any) -> Any:
        return bidirectional._apart(cpu.backward, ahead, back, *options)

    monkeypatch.setattr(repeat, "forward_both", forward)
    monkeypatch.setattr(repeat, "backward_both", backward)
    monkeypatch.setattr(launch, "backward_both", backward_both)
    call: Any = repeat.Call(None, options, torch.float64, None, None, None)  # type: ignore[arg-type]
    leaves = [torch.rand(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    def scan(*x: Tensor) -> Any:
        return bidirectional._RepeatBoth.apply(*x, call)

    assert torch.autograd.gradcheck(scan, leaves)
    assert torch.autograd.gradgradcheck(scan, leaves)
    assert torch.autograd.gradcheck(lambda *x: scan(*x)[:2], leaves)
    for k in range(4):
        alone = [t if j == k else t.detach() for j, t in enumerate(leaves)]
        assert torch.autograd.gradcheck(lambda *x: scan(*x)[:2], alone)
    upstream = torch.eye(10).view(10, 2, 5).double()
    rows = torch.autograd.grad(scan(*leaves)[0], leaves[:2], upstream, is_grads_batched=True)
    wanted = torch.autograd.functional.jacobian(lambda *x: scan(*x)[0], tuple(leaves))
    for got, want in zip(rows, wanted, strict=False):
        torch.testing.assert_close(got, want.reshape(10, 2, 5))


def test_under_transforms_it_is_two_scans(contract_device: torch.device) -> None:
    leaves = [t for _ in range(2) for t in _branch(9, torch.float32, -1, False, False, contract_device)[:2]]
    wanted = linear_scan_bidirectional(*leaves, reduce="sum").states  # type: ignore[arg-type]
    got = torch.func.vmap(lambda *x: linear_scan_bidirectional(*x, reduce="sum").states)(*leaves)
    torch.testing.assert_close(got, wanted)


def test_compiled_is_eager(contract_device: torch.device) -> None:
    leaves = [
        t.requires_grad_() for _ in range(2) for t in _branch(64, torch.float32, -1, False, False, contract_device)[:2]
    ]  # type: ignore[union-attr]

    def step(function: Any) -> list[Tensor]:
        output = function(*leaves)
        return [*output[:2], *torch.autograd.grad(output[0].sin().sum() + output[1].cos().sum(), leaves)]

    for a, b in zip(
        step(torch.compile(linear_scan_bidirectional, fullgraph=True)), step(linear_scan_bidirectional), strict=True
    ):
        torch.testing.assert_close(a, b)
