"""How launches are put together: addresses, kept plans, configurations; and what only a GPU can show of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from scan import configure, cpu, launch, linear_scan, ops, repeat, tuning
from tests.scan.budget import assert_within, expected
from tests.scan.cases import Case, Inputs, bits, draw, grid, laid_out
from tests.scan.runs import run
from tests.scan.stand_ins import Kernel

BOTH = {"dim": (-1, -2), "lengths": (None, (9, 0, 20))}


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Tensors of up to five axes, permuted, cut and expanded."""
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=5))
    tensor = torch.arange(4.0 ** len(shape)).view([4] * len(shape))
    tensor = tensor[tuple(slice(0, size) for size in shape)]
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        tensor = tensor.contiguous()
    if draw(st.booleans()):
        axis = draw(st.integers(0, tensor.ndim - 1))
        tensor = tensor.narrow(axis, 0, 1).expand_as(tensor)
    return tensor


@hypothesis.given(tensor=views(), dim=st.sampled_from((-1, -2)))
@hypothesis.settings(max_examples=200)
def test_addresses_reach_every_element(tensor: Tensor, dim: int) -> None:
    axes, sizes = configure.Axes.of(tensor, dim), configure.Sizes.of(tensor, dim)
    assert axes.tensor is tensor or not tensor.is_contiguous()
    flat = axes.tensor.as_strided((sizes.B, sizes.C, sizes.T), (axes.b, axes.c, axes.t), axes.tensor.storage_offset())
    wanted = tensor if dim == -1 else tensor.transpose(-1, -2)
    assert torch.equal(flat, wanted.reshape(sizes.B, sizes.C, sizes.T))


def test_foldable_axes_are_never_copied() -> None:
    x = torch.rand(2, 3, 4, 5)
    for view in (
        x,
        x.transpose(-1, -2),
        x[0],
        x[:, 1],
        x[..., :2],
        x.flatten(0, 1).transpose(0, 1),
        x[0, 0],
        x[0, 0, 0],
    ):
        assert configure.Axes.of(view, -1).tensor is view
    crossed = x.transpose(0, 1)
    assert configure.Axes.of(crossed, -1).tensor is not crossed


def _launches(case: Case, inputs: Inputs, needs: tuple[bool, bool, bool] = (True, True, True)) -> None:
    i = inputs
    states, _ = launch.forward(i.gates, i.tokens, i.initial_state, i.cu_seqlens, case.dim, case.reverse, case.log, True)
    launch.backward(
        i.gates, states, i.initial_state, i.cu_seqlens, i.d_states, i.d_final_state, case.dtype,
        case.dim, case.reverse, case.log, needs,
    )  # fmt: skip


# Few long rows, which programs share: each launch takes an exchange of its own.
SHARED = grid(T=(20_000,), rows=((2,),), lengths=(None, (9000, 0, 11_000)), initial=(True,))


@pytest.mark.parametrize(
    "case", grid(T=(32,), initial=(False, True), upstream=("both", "final"), **BOTH) + SHARED, ids=str
)
def test_a_kept_launch_passes_what_the_first_one_bound(case: Case, kernels: dict[str, Kernel]) -> None:
    inputs = draw(case)
    _launches(case, inputs)
    _launches(case, inputs)
    used = {name: k for name, k in kernels.items() if k.bound}
    assert set(used) == {"forward", "backward"} | ({"mark_sequences"} if case.lengths is not None else set())
    for name, kernel in used.items():
        # One binding; packing makes the table once for each direction.
        ((bound_grid, bound),) = kernel.bound
        again = kernel.compiled[0].calls
        assert len(again) == (3 if name == "mark_sequences" else 1)
        for called_grid, arguments in again:
            assert called_grid == bound_grid
            for argument, wanted in zip(arguments, bound.values(), strict=True):
                if isinstance(wanted, Tensor):
                    # Outputs and tables are new ones.
                    assert type(argument) is int and argument % wanted.element_size() == 0
                else:
                    assert type(argument) is type(wanted) and argument == wanted


def test_programs_share_few_long_rows(kernels: dict[str, Kernel]) -> None:
    for rows, T, shared in (((2,), 20_000, True), ((383,), 16_416, True), ((2, 192), 16_416, False)):
        x = torch.ones(()).expand(*rows, T)
        launch.forward(x, x, None, None, -1, False, False, False)
        launch.backward(x, x, None, None, x, None, x.dtype, -1, False, False, (True, False, False))
        for name in ("forward", "backward"):
            (programs, _, _), bound = kernels[name].bound[-1]
            n_rows = math.prod(rows)
            assert (bound["WINDOW"] > 0) is shared and (bound["exchange_ptr"] is not None) is shared
            if not shared:
                assert programs == n_rows
                continue
            tiles = programs // n_rows
            assert tiles == -(-T // (bound["N"] * bound["V"])) and programs % n_rows == 0
            exchange = bound["exchange_ptr"]
            assert exchange.dtype == torch.int64 and not exchange.any()
            assert len(exchange) == 16 + n_rows * (tiles + -(-tiles // bound["WINDOW"]))


def test_whatever_decides_a_launch_is_bound_anew(kernels: dict[str, Kernel]) -> None:
    base = Case(32, initial=True)
    variants = [
        (base, {}), (base, {"tokens_layout": "offset"}), (base, {"gates_layout": "swapped"}),
        (base, {"gates_layout": "expanded"}), (base, {"upstream_layout": "offset"}), (base, {"upstream": "states"}),
        (base, {"upstream": "final"}), (base, {"initial": False}), (base, {"dtype": torch.float16}),
        (base, {"gates_dtype": torch.float64}), (base, {"reverse": True}), (base, {"log": True}), (base, {"T": 36}),
        (base, {"rows": (4,)}), (base, {"rows": (1, 3)}),
    ]  # fmt: skip
    forward, backward = kernels["forward"], kernels["backward"]
    cases = [Case(**{**vars(case), **change}) for case, change in variants]
    for _ in range(2):
        for case in cases:
            _launches(case, draw(case))
    # Forward knows nothing of three upstream gradients, backward nothing of where the tokens lie.
    assert (len(forward.bound), len(backward.bound)) == (len(cases) - 3, len(cases) - 1)
    _launches(base, draw(base), (True, False, True))
    assert len(backward.bound) == len(cases)


@pytest.mark.parametrize("T", [32, 20_000])
def test_a_known_call_launches_what_an_unknown_one_does(
    T: int, kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeat, "_calls", repeat.Known(9))
    for dim, reverse, want_final in itertools.product((-1, -2), (False, True), (False, True)):
        options = repeat.Options(dim, reverse, False, want_final)
        shape = (2, 3, T) if dim == -1 else (2, T, 3)
        gates, tokens, d_states = (torch.rand(shape) for _ in range(3))
        for _ in range(2):
            # The first call binds, the second finds its launch kept.
            assert repeat.known(gates, tokens, options) is None
            states, final_state = repeat.first(gates, tokens, options)
        call = repeat.known(gates, tokens, options)
        assert call is not None
        states_again, final_again = repeat.forward(call, gates, tokens)
        assert (states_again.shape, states_again.stride()) == (states.shape, states.stride())
        assert (final_state is None) is (final_again is None) is (not want_final)
        for needs in ((True, True), (True, False), (False, True)):
            for _ in range(3):
                gradients = repeat.backward(call, gates, states, d_states, needs)
                assert tuple(g is not None for g in gradients) == needs
        for kernel in kernels.values():
            for bound, compiled in zip(kernel.bound, kernel.compiled, strict=True):
                calls = compiled.calls
                assert len(calls) == 2 and [c[0] for c in calls] == [bound[0]] * 2
                for one, other in zip(*(arguments for _, arguments in calls), strict=True):
                    # Inputs lie where they lay, outputs do not; all else is the same.
                    assert type(one) is type(other) and (one == other or one & 15 == other & 15 == 0)
            kernel.bound.clear()
            kernel.compiled.clear()
        # A call that could not be repeated, though of the kind, leaves what is known of backward.
        repeat.first(gates, tokens, options)
        assert repeat.known(gates, tokens, options) is call and len(call.backward.kept) == 3
        # What hooks on saved tensors give back may lie otherwise: that is another launch, which binds.
        launch._plans.clear()
        for moved in ((gates.mT.contiguous().mT, states), (gates, states.mT.contiguous().mT)):
            repeat.backward(call, *moved, d_states, (True, True))
        assert len(kernels["backward"].bound) == 2 and not any(k.calls for k in kernels["backward"].compiled)
        kernels["backward"].bound.clear()
        kernels["backward"].compiled.clear()
        # Odd addresses are another launch, too.
        odd = torch.rand(2 * 3 * T + 1)[1:].view(shape)
        assert repeat.known(gates, odd, options) is call
        repeat.forward(call, gates, odd)
        assert kernels["forward"].bound[-1][1]["tokens_ptr"].data_ptr() == odd.data_ptr()
        kernels["forward"].bound.clear()
        kernels["forward"].compiled.clear()
        # What is no such call: another kind, values that are not stored.
        assert repeat.known(gates.double(), tokens, options) is None
        assert repeat.known(gates, tokens, options._replace(log_gates=True)) is None
        assert repeat.known(gates, tokens[:1], options) is None
        assert repeat.known(gates, torch._neg_view(tokens), options) is None


def test_a_call_is_found_by_all_that_decides_it() -> None:
    calls, (x, y) = repeat.Known(9), (torch.rand(2, 3, 8) for _ in range(2))
    assert calls.find(1, x, y) is None
    calls.keep("call", 1, x, y)
    calls.keep("another", 1, x, y)
    leaf = x.clone().requires_grad_()
    for _ in range(2):
        # Each looks past the guard of the one before, which is kept.
        for alike in ((x, y), (y, x), (leaf, y), (leaf, leaf), (torch.nn.Parameter(x), y), (x * 2, y.detach())):
            assert calls.find(1, *alike) == "call"
    (guards,) = (guards for _, guards in calls.kept.values())
    assert len(guards) == 4
    for _ in range(2):
        for other in (x.double(), x[:1], x.mT.contiguous().mT, x.to("meta"), x.mT, torch.randn(2, 3, 16)[..., ::2],
                      x[:1].expand(2, 3, 8), torch._neg_view(x), torch._efficientzerotensor(2, 3, 8),
                      torch.randn(2, 3, 8, dtype=torch.complex64).conj().imag, x.view(torch.int32), x[0]):  # fmt: skip
            assert calls.find(1, x, y) == "call", "the guard that is looked at first"
            assert calls.find(1, other, y) is calls.find(1, x, other) is None
    assert calls.find(2, x, y) is None


def test_a_trace_finds_no_earlier_call() -> None:
    # It would keep what that call allocates and launches; what is not found is checked, and refused.
    calls, (x, y), found = repeat.Known(9), (torch.rand(2, 3, 8) for _ in range(2)), []
    calls.keep("call", 1, x, y)
    for _ in range(2):
        assert calls.find(1, x, y) == "call"

    def scan(gates: Tensor, tokens: Tensor) -> Tensor:
        found.append(calls.find(1, gates, tokens))
        return gates + tokens

    torch.jit.trace(scan, (x, y), check_trace=False)
    assert found == [None] and calls.find(1, x, y) == "call"


def test_shapes_that_take_turns_are_found_by_their_guards(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeat, "_calls", repeat.Known(9))
    options = repeat.Options(-1, False, False, True)
    shapes = [(torch.rand(2, T), torch.rand(2, T)) for T in (8, 16, 24)]
    for _ in range(2):
        for x, y in shapes:
            repeat.first(x, y, options)
    calls = [repeat.known(x, y, options) for x, y in shapes]
    assert len(set(map(id, calls))) == 3 and None not in calls
    monkeypatch.setattr(repeat, "_key", None)
    for (x, y), call in zip(shapes, calls, strict=True):
        assert repeat.known(x, y, options) is call


def test_a_conjugate_is_another_call() -> None:
    calls, (x, y) = repeat.Known(9), (torch.randn(2, 3, dtype=torch.complex64) for _ in range(2))
    calls.keep("call", 1, x, y)
    assert calls.find(1, x, y) == "call" and calls.find(1, x.conj(), y) is calls.find(1, x, y.conj()) is None


def test_tensors_are_made_as_empty_like_makes_them() -> None:
    for like in (torch.rand(2, 3, 8), torch.rand(2, 3, 8).mT, torch.rand(3, dtype=torch.bfloat16)):
        make = repeat.make_like(like)
        assert make is not None
        made, again = make(), make()
        assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)
        assert made.data_ptr() % 16 == 0 and made.data_ptr() != again.data_ptr() and not made.requires_grad
        with torch.inference_mode():
            assert make().is_inference()


def test_what_has_no_memory_is_no_known_call() -> None:
    x = torch.rand(2, 3)
    left: list[Tensor] = []
    torch.func.grad(lambda y: (left.append(y), y.sum())[1])(x)

    def batched(y: Tensor) -> Tensor:
        left.append(y)
        assert not repeat.have_memory((y, x[0])) and not repeat.have_memory((x[0], y))
        return y * 2

    z = x.clone().requires_grad_()
    torch.autograd.grad(_Seen.apply(z, batched), z, torch.rand(4, 2, 3), is_grads_batched=True)
    assert len(left) == 2
    for none in (left[0], torch._efficientzerotensor(2, 3)):
        assert not repeat.have_memory((none, x)) and not repeat.have_memory((x, none))
    assert repeat.have_memory((x, x))


class _Seen(torch.autograd.Function):
    """Shows what a backward is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, look: Any) -> Tensor:
        ctx.look = look
        return x * 2

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return ctx.look(d), None


OPTIONS = [repeat.Options(*each) for each in itertools.product((-1, -2), *[(False, True)] * 3)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_known_call_has_every_derivative(options: repeat.Options, monkeypatch: pytest.MonkeyPatch) -> None:
    dim, reverse, log_gates, _ = options

    def backward(call: repeat.Call, g: Tensor, h: Tensor, d: Tensor, needs: tuple[bool, bool]) -> tuple[Any, ...]:
        return cpu.backward(g, h, None, None, d, None, h.dtype, dim, reverse, log_gates, (*needs, False))[:2]

    monkeypatch.setattr(repeat, "forward", lambda call, g, x: cpu.forward(g, x, None, None, *options))
    monkeypatch.setattr(repeat, "backward", backward)
    monkeypatch.setattr(launch, "backward", cpu.backward)
    call: Any = repeat.Call(None, options, torch.float64, None, None, None)  # type: ignore[arg-type]
    gates, tokens = (torch.rand(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def scan(g: Tensor, x: Tensor) -> Any:
        outputs = ops._Repeat.apply(g, x, call)
        return tuple(o for o in outputs if o is not None)

    assert torch.autograd.gradcheck(scan, (gates, tokens))
    assert torch.autograd.gradgradcheck(scan, (gates, tokens))
    assert torch.autograd.gradcheck(lambda g: scan(g, tokens.detach()), (gates,))
    assert torch.autograd.gradcheck(lambda x: scan(gates.detach(), x), (tokens,))
    rows = torch.autograd.grad(scan(gates, tokens)[0], (gates, tokens), torch.eye(24).view(24, 2, 4, 3).double(),
                               is_grads_batched=True)  # fmt: skip
    for wanted, got in zip(torch.autograd.functional.jacobian(lambda g, x: scan(g, x)[0], (gates, tokens)), rows,
                           strict=True):  # fmt: skip
        torch.testing.assert_close(got, wanted.reshape(24, 2, 4, 3))


def test_the_calls_kept_are_bounded(kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "_calls", repeat.Known(3))
    monkeypatch.setattr(repeat, "_MOST_BACKWARD", 2)
    options = repeat.Options(-1, False, False, True)
    for T in range(4, 40, 4):
        x = torch.rand(3, T)
        for _ in range(2):
            repeat.first(x, x, options)
        assert 0 < len(repeat._calls.kept) <= 3
    call = repeat.known(x, x, options)
    assert call is not None
    for spread in range(1, 6):
        d_states = torch.rand(3, T * spread)[:, :T]
        for _ in range(2):
            repeat.backward(call, x, x, d_states, (True, True))
        assert 0 < len(call.backward.kept) <= 2


def test_hooks_of_triton_are_called(kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton", reason="has the hooks")
    case = Case(32)
    _launches(case, draw(case))
    monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [lambda metadata: None])
    _launches(case, draw(case))
    (compiled,) = kernels["forward"].compiled
    assert (len(compiled.calls), len(compiled.public)) == (0, 1)
    assert compiled.public[0][0] == kernels["forward"].bound[0][0]


def test_the_plans_kept_are_bounded(kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MOST_PLANS", 3)
    for T in range(1, 9):
        _launches(Case(T), draw(Case(T)))
        assert 0 < len(launch._plans) <= 3


@hypothesis.given(
    T=st.integers(1, 2**33), C=st.integers(1, 2**20), itemsize=st.sampled_from((2, 4, 8)),
    backward=st.booleans(), packed=st.booleans(),
)  # fmt: skip
@hypothesis.settings(max_examples=300)
def test_configurations_are_sound(T: int, C: int, itemsize: int, backward: bool, packed: bool) -> None:
    rows = tuning.time_contiguous(T, itemsize, backward=backward, packed=packed)
    assert rows == tuning.time_contiguous(T, itemsize, backward=backward, packed=packed)
    assert rows.width * itemsize == 16, "a group is one vector"
    for tile in (rows, tuning.channels_last(T, C, itemsize, backward=backward)):
        assert tile.groups * tile.width <= tuning.LARGEST_TILE
        for entry in (tile.rows, tile.groups, tile.width, tile.num_warps):
            assert entry > 0 and entry & (entry - 1) == 0, "blocks and warps are powers of two"
        assert tile.num_warps <= 32 and tile.stages >= 1


# What only a GPU shows.


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(64,), initial=(True,), **BOTH), ids=str)
def test_kept_launches_are_right(case: Case, device: torch.device) -> None:
    for layout in ("dense", "offset", "dense", "swapped", "gaps", "dense"):
        for change in ({}, {"dtype": torch.bfloat16}, {"upstream": "final"}, {"initial": False}):
            varied = Case(**{**vars(case), "gates_layout": layout, "tokens_layout": layout, **change})
            inputs = draw(varied, device)
            assert_within(run(varied, inputs), expected(varied, inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(1000,), rows=((8, 64),), **BOTH), ids=str)
def test_another_stream(case: Case, device: torch.device) -> None:
    inputs = draw(case, device)
    wanted = run(case, inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        # Whatever ran on the default stream would read these before they are there.
        late = Inputs(**{k: None if t is None else t.clone() for k, t in vars(inputs).items()})
        got = run(case, late)
    torch.cuda.current_stream().wait_stream(stream)
    for name, tensor in wanted.items():
        result = got[name]
        assert tensor is not None and result is not None and torch.equal(bits(result), bits(tensor))


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(100,), initial=(True,), **BOTH) + SHARED, ids=str)
def test_graph_capture_and_replay(case: Case, device: torch.device) -> None:
    inputs = draw(case, device)
    leaves = [t.requires_grad_() for t in (inputs.gates, inputs.tokens, inputs.initial_state) if t is not None]

    def step() -> tuple[Tensor, ...]:
        output = linear_scan(*leaves, cu_seqlens=inputs.cu_seqlens, **case.keywords)
        return (*output, *torch.autograd.grad(output, leaves, (inputs.d_states, inputs.d_final_state)))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for round_ in range(3):
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(-0.9)
            if inputs.cu_seqlens is not None:
                inputs.cu_seqlens.copy_(torch.tensor([0, round_, 4 * round_, 30 + round_], device=device))
        graph.replay()
        for a, b in zip(captured, step(), strict=True):
            assert torch.equal(bits(a), bits(b))


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(100,), initial=(True,), **BOTH) + SHARED, ids=str)
def test_nothing_waits_for_the_gpu(case: Case, device: torch.device) -> None:
    inputs = draw(case, device)
    invalid = torch.tensor([0, 7, 3, 10], dtype=torch.int32, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = run(case, inputs)
        if case.lengths is not None:
            inputs.cu_seqlens = invalid
            outputs = run(case, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if case.lengths is not None:
        assert all(o is not None and o.isnan().all() for o in outputs.values())


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(100,), initial=(True,), **BOTH), ids=str)
def test_another_device_than_the_current_one(case: Case) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    second = torch.device("cuda", 1)
    inputs = draw(case, second)
    assert torch.cuda.current_device() == 0
    outputs = run(case, inputs)
    assert torch.cuda.current_device() == 0 and all(o is None or o.device == second for o in outputs.values())
    assert_within(outputs, expected(case, inputs))
    # The same launch on the other device must not take the plan of this one.
    first = torch.device("cuda", 0)
    moved = Inputs(**{k: None if t is None else t.to(first) for k, t in vars(inputs).items()})
    assert_within(run(case, moved), expected(case, moved))


@pytest.mark.gpu
def test_layers_on_two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    gates = torch.rand(2, 50, device="cuda:0", requires_grad=True)
    first = linear_scan(gates, gates).states
    second = linear_scan(first.to("cuda:1"), first.to("cuda:1")).states
    second.sum().backward()
    again = gates.detach().clone().requires_grad_()
    inner = linear_scan(again, again).states
    linear_scan(inner, inner).states.sum().backward()
    assert gates.grad is not None and again.grad is not None
    torch.testing.assert_close(gates.grad, again.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [-1, -2])
def test_peak_memory(dim: int, device: torch.device) -> None:
    shape = (8, 512, 4096) if dim == -1 else (8, 4096, 512)
    gates, tokens = (torch.rand(shape, device=device, requires_grad=True) for _ in range(2))
    size = gates.numel() * 4
    others = torch.cuda.memory_allocated() - 2 * size
    for expanded in (False, True):
        gates.grad = tokens.grad = None
        torch.cuda.reset_peak_memory_stats()
        upstream = torch.ones((), device=device).expand(shape) if expanded else torch.rand(shape, device=device)
        linear_scan(gates, tokens, dim=dim).states.backward(upstream)
        # Gates, tokens, states, two gradients, and the incoming one where it is not expanded.
        assert torch.cuda.max_memory_allocated() - others <= 1.01 * (5 if expanded else 6) * size + 2**20
        del upstream


@pytest.mark.gpu
def test_no_gradient_of_the_gates_is_computed_where_none_is_asked_for(device: torch.device) -> None:
    gates, tokens = (torch.rand(8, 64, 512, device=device) for _ in range(2))
    tokens.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_scan(gates, tokens).states.backward(gates)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * 2 * gates.numel() * 4 + 2**20


def test_layouts_for_launches_differ_in_address() -> None:
    # The tests of kept launches rest on this.
    dense, moved = torch.rand(3, 32), laid_out(torch.rand(3, 32), "offset")
    assert dense.data_ptr() % 16 == 0 and moved.data_ptr() % 16 == 4
    assert list(itertools.islice(dense.stride(), 2)) == list(moved.stride())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [-1, -2])
def test_a_repeated_call_is_the_same_call(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    start = torch.zeros(2, 64, device=device)
    for _ in range(4):
        # All of one kind, save that some lie between multiples of 16 bytes and one is stored negated.
        for shift, negated in ((0, False), (1, False), (0, True), (8, False)):
            wide = torch.rand(3, 2, 64, 72, device=device).to(dtype)
            gates, tokens, d_states = wide[..., shift : shift + 64].unbind()
            if negated:
                tokens = torch._neg_view(tokens)
            leaves, again = [[t.detach().requires_grad_() for t in (gates, tokens)] for _ in range(2)]
            states, final = linear_scan(*leaves, dim=dim)
            # An initial state, though of zeros, is never repeated.
            wanted, wanted_final = linear_scan(*again, start, dim=dim)
            assert torch.equal(states, wanted) and torch.equal(final, wanted_final)
            assert torch.equal(linear_scan(gates, tokens, dim=dim).states, wanted)
            for got, exact in zip(
                torch.autograd.grad(states, leaves, d_states), torch.autograd.grad(wanted, again, d_states), strict=True
            ):
                assert torch.equal(got, exact)
    with pytest.raises(ValueError, match="same shape"):
        linear_scan(gates, tokens[..., :32], dim=dim)


@pytest.mark.gpu
def test_a_repeated_call_has_every_derivative(device: torch.device) -> None:
    gates, tokens = (torch.rand(2, 16, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    for _ in range(3):
        linear_scan(gates, tokens)[0].sum().backward()
    assert torch.autograd.gradcheck(lambda g, x: tuple(linear_scan(g, x)), (gates, tokens))
    assert torch.autograd.gradgradcheck(lambda g, x: tuple(linear_scan(g, x)), (gates, tokens))
    final = torch.autograd.grad(linear_scan(gates, tokens).final_state.sum(), (gates, tokens))
    last = torch.autograd.grad(linear_scan(gates, tokens).states[..., -1].sum(), (gates, tokens))
    for one, other in zip(final, last, strict=True):
        torch.testing.assert_close(one, other)
