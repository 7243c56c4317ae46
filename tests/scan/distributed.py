"""One scan on several ranks, started as `torchrun` would start it: `python -m tests.scan.distributed RANK STORE`.

Each rank holds its shards of tensors that all ranks draw alike, so that every rank knows the whole result.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from scan import linear_scan, linear_scan_bidirectional, scan_causal
from tests.scan.cases import Case, draw

RANKS = 2
CASES = [
    Case(7, rows=rows, dim=dim, reverse=reverse, lengths=lengths, initial=initial)
    for rows, dim, reverse, lengths, initial in itertools.product(
        ((4, 6), (2, 4, 6)), (-1, -2), (False, True), (None, (3, 0, 2)), (False, True)
    )
]


def placements(case: Case) -> Iterator[tuple[Any, Any]]:
    """How tensors with a time axis may lie, and states without: each row axis sharded, evenly or not, or none."""
    rank = len(case.shape)
    time = rank + case.dim
    packed = int(case.lengths is not None)
    yield Replicate(), Replicate()
    for axis in range(rank):
        if axis != time:
            yield Shard(axis), Shard(axis - int(axis > time) + packed)


def scan_is_local(case: Case, mesh: DeviceMesh) -> None:
    """States and gradients of every sharding equal those of one device, and nothing is sent for them."""
    from torch.distributed.tensor.debug import CommDebugMode

    i = draw(case, mesh.device_type)
    plain = [None if t is None else t.clone().requires_grad_() for t in (i.gates, i.tokens, i.initial_state)]
    wanted = linear_scan(*plain, cu_seqlens=i.cu_seqlens, **case.keywords)
    upstream = (i.d_states, i.d_final_state)
    leaves = [t for t in plain if t is not None]
    wanted_gradients = torch.autograd.grad(wanted, leaves, upstream)
    for rows, state in placements(case):
        kinds = (rows, rows, state)
        own = [
            None if t is None else distribute_tensor(t.detach(), mesh, [p]).requires_grad_()
            for t, p in zip(plain, kinds, strict=True)
        ]
        d_own = [distribute_tensor(t, mesh, [p]) for t, p in zip(upstream, (rows, state), strict=True)]  # type: ignore[arg-type]
        cu_seqlens = None if i.cu_seqlens is None else distribute_tensor(i.cu_seqlens, mesh, [Replicate()])
        with CommDebugMode() as sent:
            got = linear_scan(*own, cu_seqlens=cu_seqlens, **case.keywords)
            gradients = torch.autograd.grad(got, [t for t in own if t is not None], d_own)
        assert sent.get_total_counts() == 0, f"{case} {rows}: {sent.get_comm_counts()}"
        assert [o.placements for o in got] == [(rows,), (state,)]  # type: ignore[attr-defined]
        assert [g.placements for g in gradients] == [(k,) for k, t in zip(kinds, own, strict=True) if t is not None]  # type: ignore[attr-defined]
        for a, b in zip((*got, *gradients), (*wanted, *wanted_gradients), strict=True):
            assert isinstance(a, DTensor)
            torch.testing.assert_close(a.full_tensor(), b)


def what_is_sharded_along_time_is_brought_together(mesh: DeviceMesh) -> None:
    """Right, though not for free."""
    gates, tokens = torch.rand(2, 4, 6, device=mesh.device_type).unbind(0)
    own = [distribute_tensor(t, mesh, [Shard(1)]).requires_grad_() for t in (gates, tokens)]
    states = linear_scan(*own).states
    assert isinstance(states, DTensor)
    torch.testing.assert_close(states.full_tensor(), linear_scan(gates, tokens).states)
    states.sum().backward()
    plain = [t.clone().requires_grad_() for t in (gates, tokens)]
    linear_scan(*plain).states.sum().backward()
    for a, b in zip(own, plain, strict=True):
        assert isinstance(a.grad, DTensor)
        torch.testing.assert_close(a.grad.full_tensor(), b.grad)


def gradients_do_not_mix(mesh: DeviceMesh) -> None:
    """Calls that differ only in which gradient arrives, where states with a time axis and without have one shape."""
    gates, tokens = torch.rand(2, 4, 4, device=mesh.device_type).unbind(0)
    cu_seqlens = torch.arange(5, device=mesh.device_type)
    for k in (0, 1, 0, 1):
        plain = [t.clone().requires_grad_() for t in (gates, tokens)]
        own = [distribute_tensor(t, mesh, [Shard(0)]).requires_grad_() for t in (gates, tokens)]
        table = distribute_tensor(cu_seqlens, mesh, [Replicate()])
        wanted = torch.autograd.grad(linear_scan(*plain, cu_seqlens=cu_seqlens)[k].square().sum(), plain)
        for a, b in zip(
            torch.autograd.grad(linear_scan(*own, cu_seqlens=table)[k].square().sum(), own), wanted, strict=True
        ):
            assert isinstance(a, DTensor)
            torch.testing.assert_close(a.full_tensor(), b)


def what_is_refused(mesh: DeviceMesh) -> None:
    """Plain tensors among DTensors, and what no traced scan has."""
    gates = torch.rand(4, 6, device=mesh.device_type)
    own = distribute_tensor(gates, mesh, [Shard(0)]).requires_grad_()
    for pair in ((own, gates), (gates, own)):
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
            linear_scan(*pair)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        linear_scan(own, own, cu_seqlens=torch.tensor([0, 6], device=mesh.device_type))
    first = torch.autograd.grad(linear_scan(own, own).states.square().sum(), own, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiate twice outside"):
        torch.autograd.grad(first.sum(), own)


def other_names_and_two_dimensions(mesh: DeviceMesh) -> None:
    """Both other public functions; batch and channels sharded at once on a mesh of two dimensions; no rows at all."""
    gates, tokens = torch.rand(2, 2, 4, 6, device=mesh.device_type).unbind(0)
    square = init_device_mesh(mesh.device_type, (RANKS, 1), mesh_dim_names=("data", "model"))
    both = [distribute_tensor(t, square, [Shard(0), Shard(1)]) for t in (gates, tokens)]
    pair = linear_scan_bidirectional(*both, reduce="sum").states
    assert isinstance(pair, DTensor) and pair.placements == (Shard(0), Shard(1))
    torch.testing.assert_close(pair.full_tensor(), linear_scan_bidirectional(gates, tokens, reduce="sum").states)
    causal = scan_causal(*both)
    assert isinstance(causal, DTensor)
    torch.testing.assert_close(causal.full_tensor(), scan_causal(gates, tokens))
    # Three rows on two ranks, and one row, of which a rank has none.
    for rows in (3, 1):
        uneven = [distribute_tensor(t[0, :rows], mesh, [Shard(0)]) for t in (gates, tokens)]
        states = linear_scan(*uneven).states
        assert isinstance(states, DTensor)
        torch.testing.assert_close(states.full_tensor(), linear_scan(gates[0, :rows], tokens[0, :rows]).states)


def compiled_too(mesh: DeviceMesh) -> None:
    """One graph, also where the first scan that this process sees of DTensors is a compiled one."""
    compiled = torch.compile(lambda g, x: linear_scan(g, x).states, fullgraph=True, backend="aot_eager")
    plain = [t.clone().requires_grad_() for t in torch.rand(2, 4, 6, device=mesh.device_type).unbind(0)]
    own = [distribute_tensor(t.detach(), mesh, [Shard(0)]).requires_grad_() for t in plain]
    got, wanted = compiled(*own), linear_scan(*plain).states
    torch.testing.assert_close(got.full_tensor(), wanted)
    got.sum().backward()
    wanted.sum().backward()
    for a, b in zip(own, plain, strict=True):
        assert isinstance(a.grad, DTensor)
        torch.testing.assert_close(a.grad.full_tensor(), b.grad)


class Layer(torch.nn.Module):
    """Gates and an initial state that are parameters themselves, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.gate, self.start = torch.nn.Parameter(torch.rand(4)), torch.nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x)
        start = self.start.expand(x.shape[0], -1)
        return linear_scan(self.gate.sigmoid().expand_as(tokens), tokens, start, dim=-2).states


def fully_sharded(mesh: DeviceMesh) -> None:
    """Two steps of training under FSDP equal two steps on the whole batch."""
    torch.manual_seed(0)
    plain, sharded = Layer().to(mesh.device_type), Layer().to(mesh.device_type)
    sharded.load_state_dict(plain.state_dict())
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, sharded)]
    for _ in range(2):
        batch = torch.randn(2 * RANKS, 9, 4, device=mesh.device_type)
        part = batch.chunk(RANKS)[mesh.get_rank()]
        for model, x, optimizer in zip((plain, sharded), (batch, part), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for (name, a), b in zip(sharded.named_parameters(), plain.parameters(), strict=True):
        assert isinstance(a, DTensor), name
        torch.testing.assert_close(a.full_tensor(), b)


def data_parallel(mesh: DeviceMesh) -> None:
    """Gradients under DDP are those of the whole batch."""
    torch.manual_seed(0)
    plain = Layer().to(mesh.device_type)
    parallel = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    batch = torch.randn(2 * RANKS, 9, 4, device=mesh.device_type)
    plain(batch).square().mean().backward()
    parallel(batch.chunk(RANKS)[mesh.get_rank()]).square().mean().backward()
    for a, b in zip(parallel.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def main(rank: int, store: str) -> None:
    """All of the above on one rank."""
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= RANKS
    if cuda:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cuda" if cuda else "cpu", (RANKS,))
    torch.manual_seed(0)
    compiled_too(mesh)
    for case in CASES:
        scan_is_local(case, mesh)
    what_is_sharded_along_time_is_brought_together(mesh)
    gradients_do_not_mix(mesh)
    what_is_refused(mesh)
    other_names_and_two_dimensions(mesh)
    fully_sharded(mesh)
    data_parallel(mesh)
    dist.barrier()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
