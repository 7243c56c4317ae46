"""torch.compile, the registered operators and torch.export: one graph, the same numbers, few compilations."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from scan import (
    get_grid,
    linear_scan,
    linear_scan_bidirectional,
    scan_bidirectional_branched_compiled,
    scan_causal,
    scan_causal_compiled,
    shift_pad_compiled,
)
from tests.scan.cases import Case, Inputs, bits, draw, grid
from tests.scan.contract import PUBLIC, Function, arguments, every_function, every_setting, offsets, ours, scalar
from tests.scan.runs import run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_MATRIX = [
    *grid(T=(1, 40), dtype=(torch.float16, torch.bfloat16, torch.float32, torch.float64), dim=(-1, -2)),
    *grid(T=(40,), dim=(-1, -2), reverse=(False, True), lengths=(None, (17, 0, 20)), initial=(False, True)),
    *grid(T=(12,), rows=((2, 3),), gates_layout=("swapped", "gaps", "expanded"), tokens_layout=("turned", "strided")),
    *grid(T=(12,), log=(True,), gates_dtype=(torch.float16, torch.float64), upstream=("states", "final")),
]
MATRIX = list(dict.fromkeys(_MATRIX))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _run_compiled(case: Case, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, backend: str) -> dict[str, Any]:
    import tests.scan.runs as runs

    monkeypatch.setattr(runs, "linear_scan", torch.compile(linear_scan, fullgraph=True, backend=backend))
    return run(case, inputs)


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_compiled_is_eager(case: Case, contract_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(case, contract_device)
    eager = run(case, inputs)
    compiled = _run_compiled(case, inputs, monkeypatch, "aot_eager")
    for name, wanted in eager.items():
        result = compiled[name]
        assert result is not None and wanted is not None
        assert result.stride() == wanted.stride() and torch.equal(bits(result), bits(wanted)), name


@pytest.mark.parametrize("case", grid(T=(40,), lengths=(None, (17, 0, 20)), dim=(-1, -2), initial=(True,)), ids=str)
def test_inductor(case: Case, contract_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(case, contract_device)
    eager = run(case, inputs)
    for name, result in _run_compiled(case, inputs, monkeypatch, "inductor").items():
        torch.testing.assert_close(result, eager[name])


@every_function
def test_every_public_function_is_one_graph(function: Function, contract_device: torch.device) -> None:
    leaves = tuple(torch.rand(s, device=contract_device, requires_grad=True) for s in ((2, 6), (2, 6), (2,)))
    wanted = function(*leaves)
    got = torch.compile(lambda *x: tuple(function(*x)), fullgraph=True, backend="aot_eager")(*leaves)
    upstream = [torch.rand_like(o) for o in wanted]
    for a, b in zip(
        (*got, *torch.autograd.grad(got, leaves, upstream)),
        (*wanted, *torch.autograd.grad(wanted, leaves, upstream)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


class _Block(torch.nn.Module):
    """A gated recurrent layer: projection, gates, scan, projection."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        gates, tokens, shape = self.into(x).chunk(3, -1)
        states = linear_scan(gates.sigmoid(), tokens, dim=-2, cu_seqlens=cu_seqlens).states
        return self.out(states * torch.nn.functional.silu(shape))


def _block(device: torch.device) -> _Block:
    torch.manual_seed(0)
    return _Block().to(device)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gated_block(dynamic: bool, contract_device: torch.device) -> None:
    block = _block(contract_device)
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    for T in (16, 24):
        x = torch.randn(2, T, 8, device=contract_device, requires_grad=True)
        leaves = (x, *block.parameters())
        wanted = torch.autograd.grad(block(x).square().sum(), leaves)
        got = torch.autograd.grad(compiled(x).square().sum(), leaves)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def _graphs(function: Callable[..., Any], *arguments: Tensor) -> list[torch.fx.GraphModule]:
    """The graphs of forward and backward that a compiler back end gets to see."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))(
        *arguments
    ).sum().backward()
    return graphs


@pytest.mark.parametrize("dim", [-1, -2])
def test_the_graph_holds_the_scan_and_no_copy(dim: int, contract_device: torch.device) -> None:
    leaves = [torch.rand(2, 6, device=contract_device, requires_grad=True) for _ in range(2)]
    graphs = _graphs(lambda g, x: linear_scan(g, x, dim=dim).states, *leaves)
    names = [[str(n.target) for n in graph.graph.nodes if n.op == "call_function"] for graph in graphs]
    # A detach is a view; autograd puts it on what it saves.
    called = [[name for name in graph if "getitem" not in name and "detach" not in name] for graph in names]
    assert called == [["linear_scan.scan.default"], ["linear_scan.scan_backward.default"]]


def test_no_warning_about_mutation(contract_device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        torch.compile(lambda g: linear_scan(g, g).states, fullgraph=True)(torch.rand(2, 6, device=contract_device))
    assert not [r for r in caplog.records if "mutated" in r.getMessage()]


def test_packed_batches_of_every_size_share_few_compilations(contract_device: torch.device) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    block = _block(contract_device)
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for lengths in ([8, 8], [5, 0, 13], [40], [1] * 9, [3, 60, 2, 2], [7, 7, 7], [100, 1], [13, 0, 0, 0, 0, 90]):
        x = torch.randn(1, sum(lengths), 8, device=contract_device)
        case = Case(sum(lengths), lengths=tuple(lengths))
        cu_seqlens = offsets(case, contract_device)
        torch.testing.assert_close(compiled(x, cu_seqlens), block(x, cu_seqlens), rtol=1e-4, atol=1e-4)
    # Static sizes, dynamic ones, and one sequence alone, whose states PyTorch tells apart by their axis of one.
    assert counter.frame_count <= 3


def test_grids_of_every_size_share_few_compilations(contract_device: torch.device) -> None:
    # Callers of the first interface pass a grid, which holds the longest length: integers that change with the batch.
    counter = CompileCounterWithBackend("aot_eager")

    def scans(gates: Tensor, tokens: Tensor, cu_seqlens: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, ...]:
        args = {"cu_seqlens": cu_seqlens, "chunk_size": 16, "grid": grid}
        return scan_causal_compiled(gates, tokens, args), *scan_bidirectional_branched_compiled(
            gates, tokens, gates, tokens, args
        )

    compiled = torch.compile(scans, fullgraph=True, backend=counter)
    for lengths in ([8, 8], [5, 0, 13], [3, 60, 2, 2], [7, 7, 7], [100, 1], [13, 0, 0, 0, 0, 90], [31, 1], [300, 20]):
        gates, tokens = torch.rand(2, 3, sum(lengths), device=contract_device).unbind(0)
        gates.requires_grad_()
        cu_seqlens = offsets(Case(sum(lengths), lengths=tuple(lengths)), contract_device)
        assert cu_seqlens is not None
        grid = get_grid(len(cu_seqlens), max(lengths), 16, 3)
        got, wanted = compiled(gates, tokens, cu_seqlens, grid), scans(gates, tokens, cu_seqlens, grid)
        for a, b in zip(got, wanted, strict=True):
            assert torch.equal(a, b)
        sum(o.sum() for o in got).backward()  # type: ignore[union-attr]
    assert counter.frame_count <= 3


def test_a_grid_that_is_made_inside_compiles_for_powers_of_two(contract_device: torch.device) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def scan(gates: Tensor, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        grid = get_grid(len(cu_seqlens), tokens.shape[-1], 128, tokens.shape[-2])
        return scan_causal(gates, tokens, {"cu_seqlens": cu_seqlens, "chunk_size": 128, "grid": grid})

    compiled = torch.compile(scan, fullgraph=True, dynamic=True, backend=counter)
    for T in range(1030, 4000, 270):  # 9 to 32 chunks
        gates, tokens = torch.rand(2, 3, T, device=contract_device).unbind(0)
        cu_seqlens = torch.tensor([0, 5, T], device=contract_device)
        assert torch.equal(compiled(gates, tokens, cu_seqlens), scan(gates, tokens, cu_seqlens))
    assert counter.frame_count <= 2


def test_padding_to_a_fixed_length_compiles_once(contract_device: torch.device) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda g, x, cu: linear_scan(g, x, cu_seqlens=cu).states, fullgraph=True, backend=counter)
    gates, tokens = torch.rand(2, 2, 4096, device=contract_device).unbind(0)
    for used in (1000, 2500, 4096):
        cu_seqlens = torch.tensor([0, 700, used], dtype=torch.int32, device=contract_device)
        states = compiled(gates, tokens, cu_seqlens)
        assert torch.equal(states, linear_scan(gates, tokens, cu_seqlens=cu_seqlens).states)
        assert (states[:, used:] == 0).all()
    assert counter.frame_count == 1


def test_modes_of_a_compiled_call(contract_device: torch.device) -> None:
    kind = contract_device.type
    leaf = torch.rand(2, 6, device=contract_device, requires_grad=True)
    layer = torch.nn.Linear(6, 6).to(contract_device)

    def scan(x: Tensor) -> Tensor:
        return linear_scan(x.sigmoid(), x, x[:, 0]).states

    def recomputed(x: Tensor) -> Tensor:
        return checkpoint(scan, x, use_reentrant=False)  # type: ignore[return-value]

    def mixed(x: Tensor) -> Tensor:
        with torch.autocast(kind, torch.bfloat16):
            return linear_scan(layer(x).sigmoid(), x).states

    for function in (scan, recomputed, mixed):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        got, wanted = compiled(leaf), function(leaf)
        torch.testing.assert_close(got, wanted)
        upstream = torch.rand_like(got)
        torch.testing.assert_close(
            torch.autograd.grad(got, leaf, upstream), torch.autograd.grad(wanted, leaf, upstream)
        )
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                quiet = compiled(leaf)
            assert not quiet.requires_grad
            torch.testing.assert_close(quiet, wanted)


def test_shift_pad_compiles_for_every_size(contract_device: torch.device) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(shift_pad_compiled, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ((2, 0, 3), (7, 1, 9, 2), (30, 5)):
        data = torch.rand(2, sum(lengths) + 2, device=contract_device, requires_grad=True)
        cu_seqlens = offsets(Case(sum(lengths), lengths=lengths), contract_device)
        assert torch.equal(compiled(data, cu_seqlens), shift_pad_compiled(data, cu_seqlens))
        compiled(data, cu_seqlens).sum().backward()
    assert counter.frame_count <= 3


@pytest.mark.parametrize("shape", [(3, 9), (2, 3, 9), (2, 2, 3, 9)], ids=str)
def test_dynamic_shapes(shape: tuple[int, ...], contract_device: torch.device) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda g, x: linear_scan(g, x).states, fullgraph=True, dynamic=True, backend=counter)
    for factor in (1, 2, 3):
        gates, tokens = (torch.rand(*(factor * s for s in shape), device=contract_device) for _ in range(2))
        gates.requires_grad_()
        states = compiled(gates, tokens)
        assert torch.equal(states, linear_scan(gates, tokens).states)
        states.sum().backward()
    assert counter.frame_count == 1


@pytest.mark.gpu
def test_many_more_rows_than_when_compiled(device: torch.device) -> None:
    compiled = torch.compile(lambda g, x: linear_scan(g, x).states, fullgraph=True, dynamic=True)
    for rows in (10, 70_000):
        gates, tokens = torch.rand(2, rows, 3, device=device).unbind(0)
        torch.testing.assert_close(compiled(gates, tokens), linear_scan(gates, tokens).states)


@pytest.mark.parametrize("used", [0, 1])
def test_one_branch_of_a_compiled_pair(used: int, contract_device: torch.device) -> None:
    leaves = [torch.rand(2, 6, device=contract_device, requires_grad=True) for _ in range(4)]
    for function in (scan_bidirectional_branched_compiled, torch.compile(scan_bidirectional_branched_compiled)):
        for leaf in leaves:
            leaf.grad = None
        function(*leaves)[used].sum().backward()
        gradients = [leaf.grad for leaf in leaves]
        assert all(g is not None for g in gradients[2 * used : 2 * used + 2])
        assert all(g is None or (g == 0).all() for g in gradients[2 - 2 * used : 4 - 2 * used])


@pytest.mark.parametrize("name", PUBLIC)
def test_compiled_backward_of_one_input(name: str, contract_device: torch.device) -> None:
    leaves = [torch.rand(s, device=contract_device) for s in ((2, 6), (2, 6), (2,))]

    def loss(*x: Tensor) -> Tensor:
        return sum(o.square().sum() for o in PUBLIC[name](*x))  # type: ignore[return-value]

    for k in range(3):
        own = [leaf.clone().requires_grad_(k == j) for j, leaf in enumerate(leaves)]
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        wanted = torch.autograd.grad(loss(*own), own[k])[0]
        torch.testing.assert_close(torch.autograd.grad(compiled(*own), own[k])[0], wanted)


# The operators themselves.


def _operands(case: Case, device: torch.device) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of `scan` and of `scan_backward`."""
    i = draw(case, device)
    tail = (case.dim, case.reverse, case.log)
    states = torch.ops.linear_scan.scan(i.gates, i.tokens, i.initial_state, i.cu_seqlens, *tail)[0]
    for leaf in (i.gates, i.tokens, i.initial_state):
        if leaf is not None:
            leaf.requires_grad_()
    gates = i.gates.detach()
    initial = None if i.initial_state is None else i.initial_state.detach()
    needs = (True, True, case.initial)
    return (i.gates, i.tokens, i.initial_state, i.cu_seqlens, *tail), (
        gates, states, initial, i.cu_seqlens, i.d_states, i.d_final_state, case.dtype, *tail, *needs,
    )  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        *grid(T=(6,), rows=((2, 3),), dim=(-1, -2), initial=(False, True), lengths=(None, (2, 0, 3))),
        *grid(T=(1, 5), rows=((1,), (3, 1)), dim=(-1, -2), tokens_layout=("odd",), gates_layout=("odd",)),
        *grid(T=(6,), rows=((2, 3),), tokens_layout=("swapped", "turned", "gaps", "strided", "expanded")),
        *grid(
            T=(6,), rows=((2, 3),), gates_layout=("swapped", "turned", "gaps", "strided"), upstream=("states", "final")
        ),
        *grid(T=(6,), dtype=(torch.float16, torch.bfloat16, torch.float64), gates_dtype=(torch.float32,), log=(True,)),
        *grid(T=(0,), rows=((2,), (0,)), dim=(-1, -2), lengths=(None, (), (0, 0)), initial=(True,)),
    ],
    ids=str,
)
def test_opcheck(case: Case, contract_device: torch.device) -> None:
    forward, backward = _operands(case, contract_device)
    opcheck(torch.ops.linear_scan.scan.default, forward)
    opcheck(torch.ops.linear_scan.scan_backward.default, backward)


def test_opcheck_without_a_final_state(contract_device: torch.device) -> None:
    forward, _ = _operands(Case(6, rows=(2, 3), lengths=(2, 0, 3)), contract_device)
    opcheck(torch.ops.linear_scan.scan.default, (*forward, False))


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_opcheck_of_a_partial_gradient(needs: tuple[bool, ...], contract_device: torch.device) -> None:
    _, backward = _operands(Case(6, rows=(2, 3), initial=True), contract_device)
    opcheck(torch.ops.linear_scan.scan_backward.default, (*backward[:-3], *needs))


@pytest.mark.parametrize(
    "case", grid(T=(6,), rows=((2, 3),), dim=(-1, -2), lengths=(None, (2, 0, 3)), initial=(True,)), ids=str
)
def test_opcheck_of_a_state_with_other_strides(case: Case, contract_device: torch.device) -> None:
    forward, backward = _operands(case, contract_device)

    def turned(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        gates, x, state, *rest = arguments
        swapped = state.detach().mT.contiguous().mT.requires_grad_(state.requires_grad)
        assert swapped.stride() != state.stride()
        return gates, x, swapped, *rest

    opcheck(torch.ops.linear_scan.scan.default, turned(forward))
    opcheck(torch.ops.linear_scan.scan_backward.default, turned(backward))


@every_setting
def test_the_operator_is_the_function(case: Case, contract_device: torch.device) -> None:
    gates, tokens, initial = arguments(case, contract_device)
    wanted = ours(case, contract_device)(gates, tokens, initial)
    tail = (offsets(case, contract_device), case.dim, case.reverse, case.log)
    for a, b in zip(torch.ops.linear_scan.scan(gates, tokens, initial, *tail), wanted, strict=True):
        assert torch.equal(a, b)


# Export.


class _Scan(torch.nn.Module):
    def forward(self, gates: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        both = linear_scan_bidirectional(gates, tokens, reduce="sum")
        return both.states, scan_causal_compiled(gates, tokens), both.final_state


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_dynamic_length(strict: bool, contract_device: torch.device) -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    gates, tokens = torch.rand(2, 3, 16, device=contract_device).unbind(0)
    shapes = {"gates": {1: length}, "tokens": {1: length}}
    program = torch.export.export(_Scan(), (gates, tokens), dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for T in (16, 7, 1000):
        gates, tokens = torch.rand(2, 3, T, device=contract_device).unbind(0)
        # A traced call of both directions is two scans, an eager one of the same tensors scans both in one tile.
        for a, b in zip(loaded(gates, tokens), _Scan()(gates, tokens), strict=True):
            torch.testing.assert_close(a, b)


def test_export_of_packed_batches(contract_device: torch.device) -> None:
    class Packed(torch.nn.Module):
        def forward(self, gates: Tensor, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
            return linear_scan(gates, tokens, cu_seqlens=cu_seqlens).states

    gates, tokens = torch.rand(2, 3, 16, device=contract_device).unbind(0)
    # From 2 sequences on: PyTorch tells an axis of one, here that of the states, from every other.
    entries, length = torch.export.Dim("entries", min=3), torch.export.Dim("length", min=2)
    program = torch.export.export(
        Packed(), (gates, tokens, torch.tensor([0, 4, 9], device=contract_device)),
        dynamic_shapes={"gates": {1: length}, "tokens": {1: length}, "cu_seqlens": {0: entries}},
    )  # fmt: skip
    cu_seqlens = torch.tensor([0, 0, 3, 3, 11], device=contract_device)
    wanted = linear_scan(gates[:, :12], tokens[:, :12], cu_seqlens=cu_seqlens).states
    assert torch.equal(program.module()(gates[:, :12], tokens[:, :12], cu_seqlens), wanted)


# What raises by design: never a wrong number instead.


@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")
def test_forward_mode_under_compile_raises(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device)
    states_t = jvp(lambda g: linear_scan(g, g).states, (gates,), (gates,))[1]
    whole = torch.compile(lambda g: linear_scan(g, g).states, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"compute forward-mode derivatives outside|Unsupported functorch tracing"):
        jvp(whole, (gates,), (gates,))
    with forward_ad.dual_level(), pytest.raises(Exception, match="forward-mode derivatives outside the compiled"):
        whole(forward_ad.make_dual(gates, gates))
    # Where graphs may break, the call falls back to the eager one.
    broken = torch.compile(lambda g: linear_scan(g, g).states, backend="aot_eager")
    assert torch.equal(jvp(broken, (gates,), (gates,))[1], states_t)
    with forward_ad.dual_level():
        dual = broken(forward_ad.make_dual(gates, gates))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, states_t)


def test_second_derivative_under_compile_raises(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device, requires_grad=True)
    compiled = torch.compile(lambda g: linear_scan(g, g).states, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"double backward|differentiate twice outside the compiled function"):
        first = torch.autograd.grad(compiled(gates).square().sum(), gates, create_graph=True)[0]
        torch.autograd.grad(first.sum(), gates)


def test_second_derivative_of_the_operator_raises(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device, requires_grad=True)
    states, _ = torch.ops.linear_scan.scan(gates, gates, None, None, -1, False, False)
    first = torch.autograd.grad(states.square().sum(), gates, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiate twice outside the compiled function"):
        torch.autograd.grad(first.sum(), gates)


def test_transforms_compiled_or_refused(contract_device: torch.device) -> None:
    # Transforms inside a compiled function: right numbers or an exception, whichever this PyTorch does.
    case = Case(5, torch.float64, rows=(2,))
    gates, tokens, initial = arguments(case, contract_device)
    loss = scalar(ours(case, contract_device))
    batch = [torch.stack([t, t * 0.5]) for t in (gates, tokens, initial)]
    tasks: list[tuple[Callable[..., Any], Any]] = [
        (grad(loss), (gates, tokens, initial)),
        (vmap(loss), batch),
        (vmap(grad(loss)), batch),
        (grad(lambda *x: grad(loss)(*x).sum()), (gates, tokens, initial)),
        (lambda *x: jvp(lambda g: loss(g, *x[1:]), x[:1], x[:1])[1], (gates, tokens, initial)),
    ]
    for function, x in tasks:
        wanted = function(*x)
        try:
            got = torch.compile(function, backend="aot_eager")(*x)
        except Exception:
            continue
        torch.testing.assert_close(got, wanted)


def test_invalid_offsets_raise_when_compiled_too(contract_device: torch.device) -> None:
    # On the CPU, whether there is a GPU or not.
    compiled = torch.compile(lambda g, cu: linear_scan(g, g, cu_seqlens=cu).states, backend="aot_eager")
    with pytest.raises(ValueError, match="cu_seqlens must end within the time axis of 5 steps, but ends at 9"):
        compiled(torch.rand(2, 5), torch.tensor([0, 3, 9]))


def test_cases_are_checked_while_tracing(contract_device: torch.device) -> None:
    compiled = torch.compile(lambda g, x: linear_scan(g, x).states, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="must have the same shape"):
        compiled(torch.rand(2, 5, device=contract_device), torch.rand(2, 6, device=contract_device))
