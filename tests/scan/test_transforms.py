"""Derivatives of any order and function transforms: each equals the same of the sequential scan, or raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from scan import linear_scan, scan_causal
from tests.scan.cases import Case
from tests.scan.contract import (
    Function,
    arguments,
    every_function,
    every_setting,
    ours,
    reference,
    scalar,
    some_settings,
)

ALL = (0, 1, 2)


def _directions(arguments: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(a.shape, generator=random, dtype=a.dtype).to(a.device) for a in arguments)


def _forward_over_reverse(f: Function, a: tuple[Tensor, ...]) -> Any:
    return jvp(grad(scalar(f), ALL), a, _directions(a))


def _reverse_over_forward(f: Function, a: tuple[Tensor, ...]) -> Any:
    return grad(lambda *x: jvp(scalar(f), x, _directions(a))[1], ALL)(*a)


def _forward_over_forward(f: Function, a: tuple[Tensor, ...]) -> Any:
    inner = _directions(a, 1)
    return jvp(lambda *x: jvp(lambda *y: tuple(f(*y)), x, inner)[1], a, _directions(a))


def _third(f: Function, a: tuple[Tensor, ...]) -> Any:
    v, w = _directions(a, 1), _directions(a, 2)

    def along(g: Callable[..., Any], d: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        return lambda *x: sum((p * q).sum() for p, q in zip(g(*x), d, strict=True))  # type: ignore[return-value]

    return grad(along(grad(along(grad(scalar(f), ALL), v), ALL), w), ALL)(*a)


def _vjp(f: Function, a: tuple[Tensor, ...]) -> Any:
    outputs, pull = vjp(lambda *x: tuple(f(*x)), *a)
    return outputs, pull(_directions(outputs))


TRANSFORMS: dict[str, Callable[[Function, tuple[Tensor, ...]], Any]] = {
    "grad": lambda f, a: grad(scalar(f), ALL)(*a),
    "grad_of_gates_alone": lambda f, a: grad(scalar(f), 0)(*a),
    "grad_of_initial_state_alone": lambda f, a: grad(scalar(f), 2)(*a),
    "vjp": _vjp,
    "jvp": lambda f, a: jvp(lambda *x: tuple(f(*x)), a, _directions(a)),
    "jvp_in_gates_alone": lambda f, a: jvp(lambda g: tuple(f(g, *a[1:])), a[:1], _directions(a[:1])),
    "jvp_in_initial_state_alone": lambda f, a: jvp(lambda h: tuple(f(*a[:2], h)), a[2:], _directions(a[2:])),
    "jvp_without_initial_state": lambda f, a: jvp(lambda *x: tuple(f(*x)), a[:2], _directions(a[:2])),
    "jacrev": lambda f, a: jacrev(lambda *x: tuple(f(*x)), ALL)(*a),
    "jacfwd": lambda f, a: jacfwd(lambda *x: tuple(f(*x)), ALL)(*a),
    "jacrev_in_chunks": lambda f, a: jacrev(lambda *x: tuple(f(*x)), 0, chunk_size=2)(*a),
    "hessian": lambda f, a: hessian(scalar(f), ALL)(*a),
    "jacrev_of_jacrev": lambda f, a: jacrev(jacrev(scalar(f), ALL), ALL)(*a),
    "jacfwd_of_jacfwd": lambda f, a: jacfwd(jacfwd(scalar(f), (0, 1)), (0, 1))(*a),
    "jacrev_of_jacfwd": lambda f, a: jacrev(jacfwd(scalar(f), (0, 1)), (0, 1))(*a),
    "forward_over_reverse": _forward_over_reverse,
    "reverse_over_forward": _reverse_over_forward,
    "forward_over_forward": _forward_over_forward,
    "third": _third,
}


def _assert_same(transform: Callable[[Function], Any], case: Case, device: torch.device) -> None:
    torch.testing.assert_close(transform(ours(case, device)), transform(reference(case, device)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@every_setting
def test_derivative(transform: Callable[..., Any], case: Case, contract_device: torch.device) -> None:
    a = arguments(case, contract_device)
    _assert_same(lambda f: transform(f, a), case, contract_device)


@pytest.mark.parametrize("which", [(True, False, False), (False, True, False), (False, False, True), (True,) * 3])
@every_setting
def test_vmap(which: tuple[bool, ...], case: Case, contract_device: torch.device) -> None:
    a = arguments(case, contract_device)
    for axis in (0, -1):
        batch = [
            torch.stack([t * s for s in (1.0, 0.5, -0.7)], axis) if b else t for t, b in zip(a, which, strict=True)
        ]
        in_dims = tuple(axis if b else None for b in which)
        _assert_same(lambda f, d=in_dims, x=batch: vmap(lambda *y: tuple(f(*y)), d)(*x), case, contract_device)
        _assert_same(lambda f, d=in_dims, x=batch: vmap(grad(scalar(f), ALL), d)(*x), case, contract_device)
        _assert_same(lambda f, d=in_dims, x=batch: vmap(lambda *y: tuple(f(*y)), d, 1)(*x), case, contract_device)


@some_settings
def test_vmap_around_and_inside_others(case: Case, contract_device: torch.device) -> None:
    a = arguments(case, contract_device)
    batch = tuple(torch.stack([t, t * 0.5]) for t in a)
    twice = tuple(torch.stack([t, t * 0.9, -t]) for t in batch)
    directions = _directions(batch)

    def pushed(f: Function) -> Callable[..., Any]:
        return lambda x, v: jvp(lambda *y: tuple(f(*y)), x, v)

    _assert_same(lambda f: vmap(vmap(lambda *y: tuple(f(*y))))(*twice), case, contract_device)
    _assert_same(lambda f: vmap(pushed(f))(batch, directions), case, contract_device)
    _assert_same(lambda f: vmap(hessian(scalar(f)))(*batch), case, contract_device)
    _assert_same(lambda f: vmap(jacrev(jacrev(scalar(f))))(*batch), case, contract_device)
    _assert_same(lambda f: grad(lambda *x: vmap(scalar(f))(*x).square().sum(), ALL)(*batch), case, contract_device)
    _assert_same(lambda f: jacfwd(lambda g: vmap(scalar(f))(g, *batch[1:]))(batch[0]), case, contract_device)


def test_vmap_is_a_loop(contract_device: torch.device) -> None:
    gates, tokens = torch.rand(2, 4, 3, 5, device=contract_device).unbind(0)
    together = vmap(grad(lambda g, x: linear_scan(g, x).states.square().sum()))(gates, tokens)
    for n in range(4):
        alone = grad(lambda g, x: linear_scan(g, x).states.square().sum())(gates[n], tokens[n])
        torch.testing.assert_close(together[n], alone)


def test_vmap_over_offsets_raises(contract_device: torch.device) -> None:
    gates = torch.rand(2, 5, device=contract_device)
    tables = torch.tensor([[0, 2, 5], [0, 3, 5]], device=contract_device)
    with pytest.raises(ValueError, match="expected one cu_seqlens for all entries under vmap, but it came batched: "):
        vmap(lambda t: linear_scan(gates, gates, cu_seqlens=t).states)(tables)


@every_setting
def test_gradcheck(case: Case, contract_device: torch.device) -> None:
    a = tuple(t.requires_grad_() for t in arguments(case, contract_device))
    f = ours(case, contract_device)
    assert torch.autograd.gradcheck(
        lambda *x: tuple(f(*x)), a, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: tuple(f(*x)), a, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


@every_function
def test_gradcheck_of_every_public_function(function: Function, contract_device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    shapes = ((2, 3), (2, 3), (2,))
    a = tuple(
        torch.randn(s, generator=random, dtype=torch.float64).to(contract_device).requires_grad_() for s in shapes
    )
    assert torch.autograd.gradcheck(lambda *x: tuple(function(*x)), a, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *x: tuple(function(*x)), a, check_fwd_over_rev=True)


@every_setting
def test_gradients_in_batches(case: Case, contract_device: torch.device) -> None:
    a = tuple(t.requires_grad_() for t in arguments(case, contract_device))

    def transform(f: Function) -> Any:
        states, final = f(*a)
        upstream = tuple(torch.stack([torch.ones_like(o), torch.full_like(o, 0.3)]) for o in (states, final))
        first = torch.autograd.grad((states, final), a, upstream, is_grads_batched=True, retain_graph=True)
        return first, torch.autograd.grad(states, a[:1], upstream[0], is_grads_batched=True)

    _assert_same(transform, case, contract_device)
    f = ours(case, contract_device)
    vectorized = torch.autograd.functional.jacobian(lambda g: f(g, *a[1:])[0], a[0], vectorize=True)
    looped = torch.autograd.functional.jacobian(lambda g: f(g, *a[1:])[0], a[0])
    torch.testing.assert_close(vectorized, looped)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "public", [lambda g, x: linear_scan(g, x).states, scan_causal], ids=["linear_scan", "scan_causal"]
)
def test_tangents_have_the_dtype_of_states(public: Any, dtype: torch.dtype, contract_device: torch.device) -> None:
    gates, tokens, gates_t = (torch.rand(3, 9, device=contract_device).to(dtype) for _ in range(3))
    states, states_t = jvp(lambda g: public(g, tokens), (gates,), (gates_t,))
    assert states.dtype == states_t.dtype == dtype
    wide = [t.double() for t in (gates, tokens, gates_t)]
    wanted = jvp(lambda g: public(g, wide[1]), (wide[0],), (wide[2],))[1]
    torch.testing.assert_close(states_t.double(), wanted, rtol=1e-2, atol=1e-2)
    with forward_ad.dual_level():
        dual = public(forward_ad.make_dual(gates, gates_t), tokens)
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, states_t)


@pytest.mark.parametrize("offsets", [None, [0, 2, 5]], ids=["", "packed"])
def test_tangents_of_final_states_where_the_initial_state_is_wider(
    offsets: list[int] | None, contract_device: torch.device
) -> None:
    gates, tokens = torch.rand(2, 5, device=contract_device), torch.randn(2, 5, device=contract_device)
    cu_seqlens = None if offsets is None else torch.tensor(offsets, device=contract_device)
    state = torch.randn((2,) if offsets is None else (2, 2), dtype=torch.float64, device=contract_device)

    def final(gates: Tensor) -> Tensor:
        return linear_scan(gates, tokens, state, cu_seqlens=cu_seqlens).final_state

    final_state, tangent = jvp(final, (gates,), (gates,))
    assert final_state.dtype == tangent.dtype == torch.float32


@pytest.mark.parametrize("offsets", [None, [0, 2, 5]], ids=["", "packed"])
def test_reverse_over_forward_of_a_real_state_and_complex_tokens(
    offsets: list[int] | None, contract_device: torch.device
) -> None:
    gates, tokens = (
        torch.rand(2, 5, device=contract_device),
        torch.randn(2, 5, dtype=torch.complex64).to(contract_device),
    )
    cu_seqlens = None if offsets is None else torch.tensor(offsets, device=contract_device)
    state = torch.randn((2,) if offsets is None else (2, 2)).to(contract_device)

    def loop(gates: Tensor, tokens: Tensor, state: Tensor) -> Tensor:
        h, states = state, []
        for t in range(5):
            if offsets is not None and t in offsets:
                h = state[offsets.index(t)]
            h = gates[:, t] * h + tokens[:, t]
            states.append(h)
        return torch.stack(states, -1)

    def loss(scan: Callable[..., Tensor], state: Tensor) -> Tensor:
        return jvp(scan, (gates, tokens, state), (gates, tokens, state))[1].abs().sum()

    found = grad(lambda h: loss(lambda *inputs: linear_scan(*inputs, cu_seqlens=cu_seqlens).states, h))(state)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, grad(lambda h: loss(loop, h))(state))


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.token = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return linear_scan(self.gate(x).sigmoid(), self.token(x), dim=-2).states


def test_gradients_per_sample(contract_device: torch.device) -> None:
    torch.manual_seed(0)
    layer = _Layer().to(contract_device).double()
    samples = torch.randn(4, 6, 3, dtype=torch.float64, device=contract_device)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layer, parameters, (sample,)).square().sum()

    together = vmap(grad(loss), (None, 0))(parameters, samples)
    for n, sample in enumerate(samples):
        layer.zero_grad()
        layer(sample).square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(together[name][n], parameter.grad)


@pytest.mark.parametrize("name", ["vjp", "jacrev"])
@pytest.mark.parametrize("dim", [-1, -2])
def test_packed_rows_through_kernels(dim: int, name: str, device: torch.device) -> None:
    # What is pulled back when a transform has ended is wrapped in a level that is gone, offsets too, of which kernels
    # take the address.
    case = Case(6, torch.float64, rows=(2,), lengths=(2, 0, 3), dim=dim)
    a = arguments(case, device)
    _assert_same(lambda f: TRANSFORMS[name](f, a), case, device)
