"""What only a GPU shows of compiled functions: which kernels run, CUDA graphs of PyTorch's own, nothing that waits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from scan import linear_scan, scan_bidirectional_branched, scan_causal
from tests.scan.cases import Case, draw, grid
from tests.scan.contract import Function, offsets

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    # Poisoned memory is filled by kernels of its own.
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _kernels(call: Callable[[], object]) -> list[str]:
    """The names of everything that the GPU ran for a call, copies and fills included."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    # Regions that a compiler marks are drawn on the GPU's time line too.
    return [
        e.name for e in on_gpu if not (getattr(e, "is_user_annotation", False) or e.name.startswith(("#", "Torch-")))
    ]


def _copies(kernels: list[str]) -> list[str]:
    return [name for name in kernels if "copy" in name.lower() or "memcpy" in name.lower()]


def _step(function: Function, leaves: list[Tensor], upstream: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward."""

    def step() -> tuple[Tensor, ...]:
        outputs = tuple(function(*leaves))
        return *outputs, *torch.autograd.grad(outputs, leaves, upstream)

    return step


CASES = [
    *grid(T=(64,), rows=((2, 8),), dim=(-1, -2), reverse=(False, True), initial=(False, True)),
    *grid(T=(64,), rows=((2, 8),), dim=(-1, -2), lengths=((20, 0, 40),), initial=(False, True)),
    *grid(T=(64,), rows=((2, 8),), dtype=(torch.bfloat16,), dim=(-1, -2)),
    *grid(T=(61,), rows=((2, 7),), dim=(-1, -2), log=(True,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_runs_the_kernels_of_eager(case: Case, device: torch.device) -> None:
    i = draw(case, device)
    leaves = [t.requires_grad_() for t in (i.gates, i.tokens, i.initial_state) if t is not None]
    assert i.d_states is not None and i.d_final_state is not None

    def scan(*x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear_scan(*x, cu_seqlens=i.cu_seqlens, **case.keywords))

    upstream = [i.d_states, i.d_final_state]
    eager = _kernels(_step(scan, leaves, upstream))
    compiled = _kernels(_step(torch.compile(scan, fullgraph=True), leaves, upstream))
    assert compiled == eager
    if case.lengths is None:
        assert len(eager) == 2, "a kernel each way and nothing else"
    elif not case.initial:
        # Final states of packed sequences start as copies of initial ones, which are small.
        assert not _copies(eager)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["scan_causal", "scan_bidirectional_branched"])
def test_compiled_names_run_the_kernels_of_eager(name: str, packed: bool, device: torch.device) -> None:
    leaves = [torch.rand(8, 64, device=device, requires_grad=True) for _ in range(4)]
    cu_seqlens = torch.tensor([0, 20, 20, 60], device=device, dtype=torch.int32)
    args: dict[str, Any] = {"cu_seqlens": cu_seqlens} if packed else {}

    def causal(*x: Tensor) -> tuple[Tensor, ...]:
        return (scan_causal(x[0], x[1], args),)

    def branches(*x: Tensor) -> tuple[Tensor, ...]:
        return scan_bidirectional_branched(*x, args)

    function, used = (causal, leaves[:2]) if name == "scan_causal" else (branches, leaves)
    upstream = [torch.rand(8, 64, device=device) for _ in range(len(used) // 2)]
    eager = _kernels(_step(function, used, upstream))
    compiled = _kernels(_step(torch.compile(function, fullgraph=True), used, upstream))
    # The order of two independent branches is the compiler's.
    assert sorted(compiled) == sorted(eager)
    assert not _copies(eager)


class _Block(torch.nn.Module):
    """A gated recurrent layer: projection, gates, scan, projection."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        gates, tokens, shape = self.into(x).chunk(3, -1)
        states = linear_scan(gates.sigmoid(), tokens, dim=-2, cu_seqlens=cu_seqlens).states
        return self.out(states * torch.nn.functional.silu(shape))


def test_a_compiled_block_has_one_scan_kernel_each_way(device: torch.device) -> None:
    block = _Block().to(device)
    x = torch.randn(2, 64, 32, device=device)
    step = torch.compile(lambda x: block(x).square().sum(), fullgraph=True)
    kernels = _kernels(lambda: step(x).backward())
    assert (kernels.count("forward"), kernels.count("backward")) == (1, 1)
    # The chunks of a projection are views, which the scan reads where they lie.
    assert not _copies(kernels)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_the_compiler(mode: str, packed: bool, device: torch.device) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    block = _Block().to(device)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    # One buffer of offsets with new contents in each step: what is replayed must read them again.
    tables = [[0, 20, 64], [0, 1, 64], [0, 0, 50], [0, 64, 64], [0, 13, 14]]
    cu_seqlens = torch.zeros(3, dtype=torch.int32, device=device) if packed else None
    for table in tables:
        x = torch.randn(1, 64, 32, device=device)
        if cu_seqlens is not None:
            cu_seqlens.copy_(torch.tensor(table, dtype=torch.int32))
        torch.compiler.cudagraph_mark_step_begin()
        got = torch.autograd.grad(compiled(x, cu_seqlens).square().sum(), list(block.parameters()))
        got = [g.clone() for g in got]
        wanted = torch.autograd.grad(block(x, cu_seqlens).square().sum(), list(block.parameters()))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_graphed_callables_take_new_inputs_and_offsets(device: torch.device) -> None:
    block = _Block().to(device)
    x = torch.randn(1, 64, 32, device=device, requires_grad=True)
    cu_seqlens = torch.tensor([0, 20, 64], dtype=torch.int32, device=device)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(block), (x, cu_seqlens))
    for table in ([0, 1, 64], [0, 0, 50], [0, 64, 64]):
        x = torch.randn(1, 64, 32, device=device, requires_grad=True)
        cu_seqlens = torch.tensor(table, dtype=torch.int32, device=device)
        results = []
        for run in (graphed, block):
            y = run(x, cu_seqlens)
            results.append((y.detach().clone(), *torch.autograd.grad(y.square().sum(), (x, *run.parameters()))))
            results[-1] = tuple(t.clone() for t in results[-1])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_compiled_steps_wait_for_nothing(device: torch.device) -> None:
    block = _Block().to(device)
    compiled = torch.compile(block, fullgraph=True)
    x = torch.randn(1, 64, 32, device=device)
    cu_seqlens = offsets(Case(64, lengths=(20, 0, 40)), device)
    for _ in range(2):
        compiled(x, cu_seqlens).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled(x, cu_seqlens).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_backward_on_the_stream_of_forward(device: torch.device) -> None:
    # Autograd runs a node on the stream of its forward; a caller on another stream waits for it alone.
    gates, tokens = (torch.rand(64, 4096, device=device, requires_grad=True) for _ in range(2))
    wanted = torch.autograd.grad(linear_scan(gates, tokens).states.square().sum(), (gates, tokens))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for compiled in (False, True):
        scan = torch.compile(linear_scan, fullgraph=True) if compiled else linear_scan
        if compiled:
            scan(gates, tokens).states.square().sum().backward()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            loss = scan(gates, tokens).states.square().sum()
        torch.cuda.current_stream().wait_stream(stream)
        for a, b in zip(torch.autograd.grad(loss, (gates, tokens)), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_compiled_on_another_device_than_the_current_one(device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    second = torch.device("cuda", 1)
    leaves = [torch.rand(4, 64, device=second, requires_grad=True) for _ in range(2)]
    compiled = torch.compile(lambda *x: linear_scan(*x).states, fullgraph=True)
    for a, b in zip(
        torch.autograd.grad(compiled(*leaves).square().sum(), leaves),
        torch.autograd.grad(linear_scan(*leaves).states.square().sum(), leaves),
        strict=True,
    ):
        assert a.device == second
        torch.testing.assert_close(a, b)
    assert torch.cuda.current_device() == 0
