"""The operator's contract where every public function meets every derivative, and what users' modes do to it.

docs/contract.md lists the items of the contract with the tests of each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scan import cpu, launch, linear_scan, shift_pad
from scan.reference import sequential_scan
from tests.scan.contract import Function, every_function
from tests.scan.items import ITEMS

ROOT = Path(__file__).parents[2]
ALL = (0, 1, 2)


def _arguments(device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return tuple(torch.rand(s, dtype=dtype).to(device) for s in ((2, 4), (2, 4), (2,)))


def _loss(function: Function) -> Callable[..., Tensor]:
    return lambda *x: sum((o.sin() + o.square()).sum() for o in function(*x))  # type: ignore[return-value]


# Every public function (gradcheck and gradgradcheck in test_transforms.py hold its derivatives to numerical ones).


@every_function
def test_jacobians_and_hessians_agree(function: Function, contract_device: torch.device) -> None:
    a, f, loss = _arguments(contract_device), lambda *x: tuple(function(*x)), _loss(function)
    leaves = tuple(t.clone().requires_grad_() for t in a)
    gradients = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(grad(loss, ALL)(*a), gradients)
    torch.testing.assert_close(vjp(loss, *a)[1](torch.ones_like(loss(*a))), gradients)
    jacobian = jacrev(f, ALL)(*a)
    torch.testing.assert_close(jacfwd(f, ALL)(*a), jacobian)
    directions = tuple(torch.randn_like(t) for t in a)
    along = [
        sum((d.flatten(-t.dim()) * t.flatten()).sum(-1) for d, t in zip(of_output, directions, strict=True))
        for of_output in jacobian
    ]
    torch.testing.assert_close(list(jvp(f, a, directions)[1]), along)
    second = hessian(loss, ALL)(*a)
    torch.testing.assert_close(jacrev(jacrev(loss, ALL), ALL)(*a), second)
    torch.testing.assert_close(jacrev(jacfwd(loss, ALL), ALL)(*a), second)


@every_function
def test_vmap_over_any_argument_and_axis(function: Function, contract_device: torch.device) -> None:
    a, f, loss = _arguments(contract_device), lambda *x: tuple(function(*x)), _loss(function)
    scales = (1.0, 0.5, -0.7)
    for in_dims in ((0, None, None), (None, 1, None), (None, None, 1), (2, 0, 0), (-1, -2, -1)):
        batch = [t if d is None else torch.stack([s * t for s in scales], d) for t, d in zip(a, in_dims, strict=True)]
        alone = [
            tuple(t if d is None else t.select(d, n) for t, d in zip(batch, in_dims, strict=True)) for n in range(3)
        ]
        for task in (f, grad(loss, ALL)):
            looped = [torch.stack(each) for each in zip(*(task(*x) for x in alone), strict=True)]
            torch.testing.assert_close(list(vmap(task, in_dims)(*batch)), looped)
        chunked = vmap(f, in_dims, chunk_size=2)(*batch)
        torch.testing.assert_close(chunked, vmap(f, in_dims)(*batch))


@every_function
def test_partial_and_repeated_gradients(function: Function, contract_device: torch.device) -> None:
    a, loss = _arguments(contract_device), _loss(function)
    leaves = tuple(t.clone().requires_grad_() for t in a)
    value = loss(*leaves)
    together = torch.autograd.grad(value, leaves, retain_graph=True)
    for k in ALL:
        torch.testing.assert_close(torch.autograd.grad(value, leaves[k], retain_graph=True)[0], together[k])
        own = [t.clone().requires_grad_(j == k) for j, t in enumerate(a)]
        loss(*own).backward()
        for j, leaf in enumerate(own):
            assert (leaf.grad is not None) == (j == k)
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad, together[k])
    for k, output in enumerate(function(*leaves)):
        got = torch.autograd.grad(
            output.square().sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        one = grad(lambda *x, k=k: function(*x)[k].square().sum(), ALL)(*a)
        torch.testing.assert_close(got, one)


@pytest.mark.parametrize("reentrant", [False, True])
@every_function
def test_checkpointed_functions(reentrant: bool, function: Function, contract_device: torch.device) -> None:
    leaves = tuple(t.requires_grad_() for t in _arguments(contract_device, torch.float32))
    plain = torch.autograd.grad(_loss(function)(*leaves), leaves)
    checkpoint(_loss(function), *leaves, use_reentrant=reentrant).backward()
    for leaf, wanted in zip(leaves, plain, strict=True):
        assert leaf.grad is not None and torch.equal(leaf.grad, wanted)


@pytest.mark.parametrize("saved", [True, False])
def test_selective_checkpoint(saved: bool, contract_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    # A policy names the operator; what it saves is not scanned again.
    implementation = launch if contract_device.type == "cuda" else cpu
    scans: list[bool] = []
    original = implementation.forward
    monkeypatch.setattr(implementation, "forward", lambda *a: scans.append(True) or original(*a))

    def policy(context: Any, function: Any, *args: Any, **keywords: Any) -> CheckpointPolicy:
        if function is not torch.ops.linear_scan.scan.default:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.MUST_RECOMPUTE

    leaves = [torch.rand(2, 6, device=contract_device, requires_grad=True) for _ in range(2)]
    loss = lambda g, x: linear_scan(g.sigmoid(), x.tanh()).states.sin().sum()  # noqa: E731
    plain = torch.autograd.grad(loss(*leaves), leaves)
    scans.clear()
    value = checkpoint(
        loss, *leaves, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
    )
    for a, b in zip(torch.autograd.grad(value, leaves), plain, strict=True):
        assert torch.equal(a, b)
    assert len(scans) == (1 if saved else 2)


@pytest.mark.parametrize("log_gates", [False, True])
@pytest.mark.parametrize("real", ["", "gates", "tokens"])
def test_complex_derivatives(real: str, log_gates: bool, contract_device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)

    def drawn(name: str, *shape: int) -> Tensor:
        dtype = torch.float64 if name == real else torch.complex128
        return (0.7 * torch.randn(*shape, dtype=dtype, generator=random)).to(contract_device).requires_grad_()

    leaves = drawn("gates", 2, 4), drawn("tokens", 2, 4), drawn("initial_state", 2)
    cu_seqlens = torch.tensor([0, 4], device=contract_device)
    for packed in (False, True):

        def scan(g: Tensor, x: Tensor, h: Tensor, packed: bool = packed) -> tuple[Tensor, ...]:
            table, start = (cu_seqlens, h[None]) if packed else (None, h)
            return tuple(linear_scan(g, x, start, cu_seqlens=table, reverse=packed, log_gates=log_gates))

        assert torch.autograd.gradcheck(scan, leaves, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(scan, leaves)


@pytest.mark.parametrize("backward", [False, True])
def test_shift_pad_to_any_order(backward: bool, contract_device: torch.device) -> None:
    data = torch.randn(2, 6, dtype=torch.float64, device=contract_device).requires_grad_()
    cu_seqlens = torch.tensor([0, 2, 2, 5], device=contract_device)
    shift = lambda x: shift_pad(x, cu_seqlens, 0.5, backward)  # noqa: E731
    assert torch.autograd.gradcheck(shift, data, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(shift, data, check_fwd_over_rev=True)
    batch = torch.stack([data.detach(), 2 * data.detach()])
    assert torch.equal(vmap(shift)(batch), torch.stack([shift(batch[0]), shift(batch[1])]))


# Modes of PyTorch that reach the registered operator: each derivative is right there, or raises.


class _Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def _by_double_backward(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    leaves = [t.clone().requires_grad_() for t in a]
    first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)  # type: ignore[arg-type]


def _by_dual_numbers(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(a[0], a[1]), *a[1:])).tangent


def _reverse_inside_dual_numbers(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    leaf = a[0].clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf, a[1])
        value = f(dual, *a[1:])
        # Neither asks for a graph, and both gradients have tangents of their own.
        gradient = torch.autograd.grad(value, dual, retain_graph=True)[0]
        of_tangent = torch.autograd.grad(forward_ad.unpack_dual(value).tangent, leaf)[0]
        return tuple(forward_ad.unpack_dual(gradient)), forward_ad.unpack_dual(of_tangent).primal


def _dual_upstream(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    leaves = [t.clone().requires_grad_() for t in a]
    value = f(*leaves)
    one = torch.ones_like(value)
    with forward_ad.dual_level():
        gradients = torch.autograd.grad(value, leaves, forward_ad.make_dual(one, 0.5 * one))
        return [tuple(forward_ad.unpack_dual(g)) for g in gradients]


def _in_batches(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    leaves = [t.clone().requires_grad_() for t in a]
    value = f(*leaves)
    return torch.autograd.grad(value, leaves, torch.ones(3, *value.shape).to(value), is_grads_batched=True)


def _plain(f: Callable[..., Tensor], a: tuple[Tensor, ...]) -> Any:
    leaves = [t.clone().requires_grad_() for t in a]
    return torch.autograd.grad(f(*leaves), leaves)


def _functional(name: str, **options: Any) -> Callable[..., Any]:
    return lambda f, a: getattr(torch.autograd.functional, name)(f, a, **options)


TASKS: dict[str, Callable[[Callable[..., Tensor], tuple[Tensor, ...]], Any]] = {
    "backward": _plain,
    "grad": lambda f, a: grad(f, ALL)(*a),
    "jvp": lambda f, a: jvp(f, a, (a[1], a[0], a[2])),
    "vmap": lambda f, a: vmap(f)(*(torch.stack([t, 0.5 * t]) for t in a)),
    "vmap_of_grad": lambda f, a: vmap(grad(f, ALL))(*(torch.stack([t, 0.5 * t]) for t in a)),
    "jacrev": lambda f, a: jacrev(f, ALL)(*a),
    "jacfwd": lambda f, a: jacfwd(f, ALL)(*a),
    "hessian": lambda f, a: hessian(f, ALL)(*a),
    "linearize": lambda f, a: linearize(f, *a)[1](*a),
    "double_backward": _by_double_backward,
    "dual_numbers": _by_dual_numbers,
    "reverse_inside_dual_numbers": _reverse_inside_dual_numbers,
    "dual_upstream": _dual_upstream,
    "gradients_in_batches": _in_batches,
    "functional_hessian": _functional("hessian"),
    "functional_vectorized_hessian": _functional("hessian", vectorize=True),
    "functional_forward_over_reverse": _functional("hessian", vectorize=True, outer_jacobian_strategy="forward-mode"),
    "functional_forward_jacobian": _functional("jacobian", vectorize=True, strategy="forward-mode"),
}
# The others raise; a version of PyTorch that can do more is welcome to.
RIGHT = {
    "function": set(TASKS) - {"linearize"},
    "function_under_a_mode": {"backward", "vmap", "gradients_in_batches"},
    "operator": {"backward", "vmap", "gradients_in_batches"},
    "exported": {"backward", "vmap", "gradients_in_batches"},
}


def _the_function(g: Tensor, x: Tensor, h: Tensor) -> Tensor:
    return linear_scan(g, x, h).states.sin().sum()


def _the_operator(g: Tensor, x: Tensor, h: Tensor) -> Tensor:
    return torch.ops.linear_scan.scan(g, x, h, None, -1, False, False)[0].sin().sum()


class _Module(torch.nn.Module):
    def forward(self, g: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return _the_function(g, x, h)


@pytest.mark.filterwarnings("ignore:.*performance drop:UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("way", RIGHT)
def test_right_or_refused(way: str, task: str, contract_device: torch.device) -> None:
    a = _arguments(contract_device)
    wanted = TASKS[task](lambda g, x, h: sequential_scan(g, x, h).sin().sum(), a)
    function: Callable[..., Tensor] = _the_operator if way == "operator" else _the_function
    if way == "exported":
        function = torch.export.export(_Module(), a).module()
    try:
        if way == "function_under_a_mode":
            with _Quiet():
                got = TASKS[task](function, a)
        else:
            got = TASKS[task](function, a)
    except (RuntimeError, NotImplementedError) as error:
        assert task not in RIGHT[way], error
        assert re.search(r"expected an eager call|functorch transforms|forward mode|vmap", str(error)), error
        return
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_compiled_autograd_keeps_the_fused_backward(contract_device: torch.device) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    leaves = [torch.rand(2, 5, device=contract_device, requires_grad=True) for _ in range(2)]
    plain = torch.autograd.grad(linear_scan(*leaves).states.sin().sum(), leaves)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=keep)):
        linear_scan(*leaves).states.sin().sum().backward()
    torch._dynamo.reset()
    for leaf, wanted in zip(leaves, plain, strict=True):
        torch.testing.assert_close(leaf.grad, wanted)
    called = [str(n.target) for graph in graphs for n in graph.graph.nodes if n.op == "call_function"]
    assert [name for name in called if "linear_scan" in name] == ["linear_scan.scan_backward"], called


def test_meta_tensors_have_shapes_alone() -> None:
    gates = torch.rand(2, 5, device="meta", requires_grad=True)
    states, final = linear_scan(gates, gates)
    assert states.is_meta and states.shape == (2, 5) and final.shape == (2,)
    states.sum().backward()
    assert gates.grad is not None and gates.grad.shape == (2, 5)


# The list of the contract itself.


def test_every_item_names_tests_that_exist() -> None:
    for item, names in ITEMS.items():
        assert names, item
        for name in names:
            file, _, function = name.partition("::")
            source = ast.parse((ROOT / "tests" / "scan" / file).read_text())
            assert function in {node.name for node in ast.walk(source) if isinstance(node, ast.FunctionDef)}, name


def test_every_test_of_the_contract_is_an_item() -> None:
    listed = {name for names in ITEMS.values() for name in names}
    for file in (
        "test_contract.py",
        "test_compile.py",
        "test_autograd.py",
        "test_transforms.py",
        "test_export.py",
        "test_gpu_contract.py",
    ):
        source = ast.parse((ROOT / "tests" / "scan" / file).read_text())
        for node in source.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert f"{file}::{node.name}" in listed, "docs/contract.md lists every test of the contract"
