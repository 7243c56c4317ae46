"""What users of autograd do to an operator: partial and repeated backward, checkpoints, hooks, modes, autocast."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scan import cpu, launch, linear_scan, linear_scan_bidirectional
from tests.scan.cases import Case, draw
from tests.scan.contract import Function, arguments, every_function, every_setting, ours, reference, scalar


def _leaves(case: Case, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(t.requires_grad_() for t in arguments(case, device))


def _close(actual: Any, wanted: Any) -> None:
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("needed", list(itertools.product((False, True), repeat=3))[1:])
@every_setting
def test_only_what_requires_a_gradient_gets_one(
    needed: tuple[bool, ...], case: Case, contract_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    implementation = launch if contract_device.type == "cuda" else cpu
    original = implementation.backward
    monkeypatch.setattr(implementation, "backward", lambda *a: asked.append(a[-1]) or original(*a))

    def gradients(make: Callable[..., Function]) -> list[Tensor | None]:
        leaves = tuple(t.requires_grad_(n) for t, n in zip(arguments(case, contract_device), needed, strict=True))
        scalar(make(case, contract_device))(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    got = gradients(ours)
    assert asked == [needed]
    assert [g is not None for g in got] == list(needed)
    _close([g for g in got if g is not None], [g for g in gradients(reference) if g is not None])


@every_setting
def test_one_gradient_after_the_other(case: Case, contract_device: torch.device) -> None:
    leaves = _leaves(case, contract_device)
    wanted = torch.autograd.grad(scalar(reference(case, contract_device))(*leaves), leaves)
    loss = scalar(ours(case, contract_device))(*leaves)
    for leaf, gradient in zip(leaves, wanted, strict=True):
        _close(torch.autograd.grad(loss, leaf, retain_graph=True)[0], gradient)


def test_no_graph_where_nothing_asks(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device)
    output = linear_scan(gates, gates)
    assert not output.states.requires_grad and not output.final_state.requires_grad
    gates.requires_grad_()
    with torch.no_grad():
        assert not linear_scan(gates, gates).states.requires_grad
    with torch.inference_mode():
        states = linear_scan(gates, gates).states
    assert states.is_inference() and torch.equal(states, linear_scan(gates, gates).states)


def test_a_frozen_input_made_under_inference_mode(contract_device: torch.device) -> None:
    with torch.inference_mode():
        frozen = torch.rand(2, 5, device=contract_device)
    tokens = torch.rand(2, 5, device=contract_device, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        linear_scan(frozen, tokens)
    linear_scan(frozen.clone(), tokens).states.sum().backward()
    assert tokens.grad is not None


@every_setting
def test_backward_twice_through_one_graph(case: Case, contract_device: torch.device) -> None:
    leaves = _leaves(case, contract_device)
    states, final = ours(case, contract_device)(*leaves)
    upstream = (torch.randn_like(states), torch.randn_like(final))
    kept = [u.clone() for u in upstream]
    first = torch.autograd.grad((states, final), leaves, upstream, retain_graph=True)
    second = torch.autograd.grad((states, final), leaves, upstream)
    for a, b in zip((*first, *upstream), (*second, *kept), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad((states, final), leaves, upstream)


@every_setting
def test_one_output_is_enough(case: Case, contract_device: torch.device) -> None:
    leaves = _leaves(case, contract_device)
    for k in (0, 1):
        losses = [make(case, contract_device)(*leaves)[k].sin().sum() for make in (ours, reference)]
        got, wanted = (torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True) for loss in losses)
        _close(got, wanted)


@every_setting
def test_second_derivative_by_create_graph(case: Case, contract_device: torch.device) -> None:
    leaves = _leaves(case, contract_device)

    def penalty(make: Callable[..., Function]) -> tuple[Tensor, ...]:
        loss = scalar(make(case, contract_device))(*leaves)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)  # type: ignore[arg-type]

    _close(penalty(ours), penalty(reference))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_gradient_with_a_graph_is_the_same_gradient(dtype: torch.dtype, contract_device: torch.device) -> None:
    # The differentiable backward is another program than the fused one; they must agree.
    i = draw(Case(40, dtype, torch.float32, lengths=(17, 0, 20), initial=True), contract_device)
    assert i.initial_state is not None
    leaves = tuple(t.requires_grad_() for t in (i.gates, i.tokens, i.initial_state))
    states, final = linear_scan(*leaves, cu_seqlens=i.cu_seqlens)
    arguments = ((states, final), leaves, (i.d_states, i.d_final_state))
    fused = torch.autograd.grad(*arguments, retain_graph=True)  # type: ignore[arg-type]
    written_out = torch.autograd.grad(*arguments, create_graph=True)  # type: ignore[arg-type]
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    for a, b in zip(fused, written_out, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reentrant", [False, True])
@every_setting
def test_checkpoint(reentrant: bool, case: Case, contract_device: torch.device) -> None:
    leaves = _leaves(case, contract_device)
    loss = scalar(ours(case, contract_device))
    plain = torch.autograd.grad(loss(*leaves), leaves)
    checkpoint(loss, *leaves, use_reentrant=reentrant).backward()
    for leaf, wanted in zip(leaves, plain, strict=True):
        assert leaf.grad is not None and torch.equal(leaf.grad, wanted)


def test_gates_that_are_the_tokens(contract_device: torch.device) -> None:
    both = torch.rand(2, 6, dtype=torch.float64, device=contract_device, requires_grad=True)
    for function in (linear_scan, lambda g, x: linear_scan_bidirectional(g, x, reduce="cat")):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, x)[0], both)
    got, wanted = (scalar(make(Case(6, rows=(2,)), contract_device))(both, both) for make in (ours, reference))
    _close(torch.autograd.grad(got, both), torch.autograd.grad(wanted, both))


def test_hooks(contract_device: torch.device) -> None:
    gates, tokens = (torch.rand(2, 5, device=contract_device, requires_grad=True) for _ in range(2))
    states = linear_scan(gates, tokens).states
    plain = torch.autograd.grad(states.sum(), (gates, tokens), retain_graph=True)
    seen: list[str] = []
    states.register_hook(lambda d: seen.append("states") or 2 * d)
    gates.register_hook(lambda d: seen.append("gates") or 3 * d)
    gates.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    assert states.grad_fn is not None
    states.grad_fn.register_hook(lambda *_: seen.append("node") or None)
    states.sum().backward()
    assert seen[0] == "states" and sorted(seen) == ["accumulated", "gates", "node", "states"]
    assert gates.grad is not None and torch.equal(gates.grad, plain[0] * 6)
    assert tokens.grad is not None and torch.equal(tokens.grad, plain[1] * 2)


def test_saved_tensors_can_be_packed_away(contract_device: torch.device) -> None:
    gates, tokens = (torch.rand(2, 5, device=contract_device, requires_grad=True) for _ in range(2))
    plain = torch.autograd.grad(linear_scan(gates, tokens).states.sum(), (gates, tokens))
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.cpu(), lambda t: t.to(gates.device)):
        loss = linear_scan(gates, tokens).states.sum()
    assert len(packed) == 2, "gates and states are all that backward needs"
    for a, b in zip(torch.autograd.grad(loss, (gates, tokens)), plain, strict=True):
        assert torch.equal(a, b)


def test_anomaly_mode(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            linear_scan(gates, gates).states.sum().backward()
            bad = torch.full((2, 5), torch.nan, device=contract_device)
            with pytest.raises(RuntimeError, match="nan values"):
                linear_scan(gates, gates).states.backward(bad)


@pytest.mark.parametrize("spoiled", ["gates", "states", "initial"])
def test_a_saved_tensor_changed_in_place_is_noticed(spoiled: str, contract_device: torch.device) -> None:
    leaf = torch.rand(2, 5, device=contract_device, requires_grad=True)
    gates, initial = leaf * 1, leaf[:, 0] * 1
    states = linear_scan(gates, leaf, initial).states
    {"gates": gates, "states": states, "initial": initial}[spoiled].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


def test_tokens_are_free_to_change(contract_device: torch.device) -> None:
    leaf = torch.rand(2, 5, device=contract_device, requires_grad=True)
    tokens = leaf * 1
    states = linear_scan(leaf, tokens).states
    tokens.zero_()
    states.sum().backward()


@every_function
def test_parameters_give_plain_tensors(function: Function, contract_device: torch.device) -> None:
    gates, tokens = (torch.nn.Parameter(torch.rand(2, 3, device=contract_device)) for _ in range(2))
    initial = torch.nn.Parameter(torch.rand(2, device=contract_device))
    plain = function(gates.detach(), tokens.detach(), initial.detach())
    for a, b in zip(function(gates, tokens, initial), plain, strict=True):
        assert torch.equal(a, b) and type(a) is Tensor


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_and_scaled_gradients(dtype: torch.dtype, contract_device: torch.device) -> None:
    kind = contract_device.type
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).to(contract_device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, enabled=dtype == torch.float16)
    x = torch.rand(2, 9, 4, device=contract_device)
    before = layer.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype):
            gates = layer(x).sigmoid()
            # One operand stays in float32, as where an operator outside the autocast made it.
            states, final = linear_scan(gates, x, dim=-2)
            narrow = linear_scan(gates, layer(x), dim=-2).states
        assert gates.dtype == narrow.dtype == dtype and states.dtype == final.dtype == torch.float32
        # Backward runs outside the autocast.
        scaler.scale(states.sum() + final.sum() + narrow.float().sum()).backward()
        scaler.unscale_(optimizer)
        for parameter in layer.parameters():
            assert parameter.grad is not None and parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all() and (parameter.grad != 0).any()
        scaler.step(optimizer)
        scaler.update()
    assert not torch.equal(layer.weight, before)


def test_training_with_empty_sequences(contract_device: torch.device) -> None:
    losses = []
    for offsets in ([0, 4, 4, 9], [0, 4, 9]):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 6).to(contract_device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
        x, target = torch.rand(9, 3, device=contract_device), torch.rand(9, 3, device=contract_device)
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=contract_device)
        for _ in range(20):
            optimizer.zero_grad()
            gates, tokens = layer(x).chunk(2, -1)
            states = linear_scan(gates.sigmoid(), tokens, dim=-2, cu_seqlens=cu_seqlens).states
            loss = (states - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    assert torch.equal(*losses) and losses[0].isfinite()


def test_under_a_dispatch_mode(contract_device: torch.device) -> None:
    # A counter of operations sees one for the scan and one for its gradient, and changes nothing.
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(function.name())
            return function(*args, **(kwargs or {}))

    gates, tokens = (torch.rand(2, 5, device=contract_device, requires_grad=True) for _ in range(2))
    plain = torch.autograd.grad(linear_scan(gates, tokens).states.sum(), (gates, tokens))
    with Count() as count:
        counted = torch.autograd.grad(linear_scan(gates, tokens).states.sum(), (gates, tokens))
    assert [n for n in count.names if n.startswith("linear_scan")] == [
        "linear_scan::scan",
        "linear_scan::scan_backward",
    ]
    for a, b in zip(plain, counted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lengths", [None, (2, 3)], ids=["", "packed"])
def test_a_final_state_may_be_changed_in_place(lengths: tuple[int, ...] | None, device: torch.device) -> None:
    gates, tokens = (torch.rand(2, 5, device=device, requires_grad=True) for _ in range(2))
    offsets = None if lengths is None else torch.tensor([0, 2, 5], device=device)
    wanted = torch.autograd.grad(3 * linear_scan(gates, tokens, cu_seqlens=offsets).final_state.sum(), (gates, tokens))
    final = linear_scan(gates, tokens, cu_seqlens=offsets).final_state.mul_(3)
    for a, b in zip(torch.autograd.grad(final.sum(), (gates, tokens)), wanted, strict=True):
        torch.testing.assert_close(a, b)
