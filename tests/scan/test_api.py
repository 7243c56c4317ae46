"""The public functions as wholes: optional arguments, two directions, and the laws that every scan obeys."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from scan import BidirectionalOutput, ScanOutput, lengths_to_cu_seqlens, linear_scan, linear_scan_bidirectional
from scan.reference import final_state, sequential_scan
from tests.scan.cases import Case, bits, draw, grid

BOTH = {"dim": (-1, -2), "reverse": (False, True)}
OPTIONS = list(itertools.product((False, True), repeat=4))


@pytest.mark.parametrize(("initial", "packed", "log", "reverse"), OPTIONS)
def test_every_set_of_optional_arguments(
    initial: bool, packed: bool, log: bool, reverse: bool, device: torch.device
) -> None:
    case = Case(9, initial=initial, lengths=(4, 0, 5) if packed else None, log=log, reverse=reverse)
    inputs = draw(case, device)
    leaves = [t.requires_grad_() for t in (inputs.gates, inputs.tokens, inputs.initial_state) if t is not None]
    given: dict[str, Any] = {"cu_seqlens": inputs.cu_seqlens} if packed else {}
    given |= {"log_gates": True} if log else {}
    given |= {"reverse": True} if reverse else {}
    output = linear_scan(*leaves, **given)
    (output.states.sum() + output.final_state.sum()).backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("case", grid(T=(9,), lengths=(None, (4, 0, 5)), **BOTH), ids=str)
def test_no_initial_state_is_one_of_zeros(case: Case, device: torch.device) -> None:
    i = draw(case, device)
    none = linear_scan(i.gates, i.tokens, cu_seqlens=i.cu_seqlens, **case.keywords)
    zeros = torch.zeros(case.state_shape, device=device)
    zero = linear_scan(i.gates, i.tokens, zeros, cu_seqlens=i.cu_seqlens, **case.keywords)
    for a, b in zip(none, zero, strict=True):
        assert torch.equal(a, b)


def test_what_comes_back_has_names(device: torch.device) -> None:
    gates = torch.ones(2, 5, device=device)
    output = linear_scan(gates, gates)
    assert isinstance(output, ScanOutput) and output._fields == ("states", "final_state")
    both = linear_scan_bidirectional(gates, gates)
    assert isinstance(both, BidirectionalOutput)
    assert both._fields == ("states", "states_reverse", "final_state", "final_state_reverse")


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("dim", [-1, -2])
def test_shortest_outputs_share_no_memory_with_inputs(T: int, dim: int, device: torch.device) -> None:
    case = Case(T, dim=dim, initial=True)
    i = draw(case, device)
    inputs = [i.gates, i.tokens, i.initial_state]
    owned = {t.untyped_storage().data_ptr() for t in inputs if t is not None}
    for output in linear_scan(i.gates.zero_(), i.tokens, i.initial_state, dim=dim):
        assert output.untyped_storage().data_ptr() not in owned


@pytest.mark.parametrize("dim", [-1, -2])
def test_decoding_step_by_step_is_one_scan(dim: int, device: torch.device) -> None:
    i = draw(Case(7, dim=dim, initial=True), device)
    gates, tokens = i.gates.requires_grad_(), i.tokens.requires_grad_()
    states, state = [], i.initial_state
    for t in range(7):
        step = linear_scan(gates.narrow(dim, t, 1), tokens.narrow(dim, t, 1), state, dim=dim)
        states.append(step.states)
        state = step.final_state
    whole = linear_scan(gates, tokens, i.initial_state, dim=dim)
    joined = torch.cat(states, dim)
    torch.testing.assert_close(joined, whole.states)
    upstream = torch.randn_like(joined)
    for a, b in zip(
        torch.autograd.grad(joined, (gates, tokens), upstream),
        torch.autograd.grad(whole.states, (gates, tokens), upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def _branches(case: Case, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Two branches with different contents: gates, tokens, initial state, gradient of the states."""
    branches = []
    for reverse in (False, True):
        i = draw(Case(**{**vars(case), "reverse": reverse}), device)
        assert i.initial_state is not None and i.d_states is not None
        branches.append([i.gates, i.tokens, i.initial_state, i.d_states])
    return branches[0], branches[1]


BRANCHES = grid(T=(11,), rows=((1, 2),), lengths=(None, (4, 0, 5)), dim=(-1, -2), initial=(True,), log=(False, True))


@pytest.mark.parametrize("case", BRANCHES, ids=str)
@pytest.mark.parametrize("reduce", [None, "sum", "cat"])
def test_bidirectional(case: Case, reduce: str | None, device: torch.device) -> None:
    cu_seqlens = None if case.lengths is None else torch.tensor(case.offsets, device=device)
    forward, backward = _branches(case, device)
    leaves = [t.requires_grad_() for t in (*forward[:3], *backward[:3])]
    keywords: dict[str, Any] = {"cu_seqlens": cu_seqlens, "dim": case.dim, "log_gates": case.log}
    output = linear_scan_bidirectional(
        *leaves[:2], *leaves[3:5], initial_state=leaves[2], initial_state_reverse=leaves[5], reduce=reduce, **keywords
    )
    ahead = linear_scan(*leaves[:3], **keywords)
    back = linear_scan(*leaves[3:], reverse=True, **keywords)
    assert torch.equal(output.final_state, ahead.final_state)
    assert torch.equal(output.final_state_reverse, back.final_state)
    if reduce is None:
        assert output.states_reverse is not None
        got, wanted = (output.states, output.states_reverse), (ahead.states, back.states)
    elif reduce == "sum":
        got, wanted = (output.states,), (ahead.states + back.states,)
    else:
        channels = -2 if case.dim == -1 else -1
        got, wanted = (output.states,), (torch.cat((ahead.states, back.states), channels),)
        assert output.states.shape[channels] == 4
    assert (output.states_reverse is None) is (reduce is not None)
    upstream = [torch.randn_like(w) for w in wanted]
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(
        torch.autograd.grad(got, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream), strict=True
    ):
        assert torch.equal(bits(a), bits(b))


def test_bidirectional_of_one_branch(device: torch.device) -> None:
    i = draw(Case(11), device)
    gates, tokens = i.gates.requires_grad_(), i.tokens.requires_grad_()
    states = linear_scan_bidirectional(gates, tokens, reduce="sum").states
    exact = [t.detach().cpu().double().requires_grad_() for t in (gates, tokens)]
    wanted = sequential_scan(*exact) + sequential_scan(*exact, reverse=True)
    torch.testing.assert_close(states.cpu().double(), wanted, rtol=2e-5, atol=2e-5)
    states.sum().backward()
    wanted.sum().backward()
    for leaf, other in zip((gates, tokens), exact, strict=True):
        assert leaf.grad is not None and other.grad is not None
        torch.testing.assert_close(leaf.grad.cpu().double(), other.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("used", ["states", "states_reverse"])
def test_unused_branch_gets_no_gradient(used: str, device: torch.device) -> None:
    forward, backward = _branches(Case(11, initial=True), device)
    leaves = [t.requires_grad_() for t in (*forward[:2], *backward[:2])]
    getattr(linear_scan_bidirectional(*leaves), used).sum().backward()
    idle = leaves[2:] if used == "states" else leaves[:2]
    assert all(leaf.grad is None or (leaf.grad == 0).all() for leaf in idle)
    assert all(leaf.grad is not None for leaf in leaves if not any(leaf is other for other in idle))


# What follows holds for every scan, so that no reference is needed.

lengths_of_packs = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def _random(shape: tuple[int, ...], seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    gates, tokens = torch.rand(shape, generator=random), torch.randn(shape, generator=random)
    return gates.to(device), tokens.to(device)


@hypothesis.given(lengths=lengths_of_packs, dim=st.sampled_from((-1, -2)), reverse=st.booleans())
@hypothesis.settings(max_examples=12)
def test_packing_is_scanning_each(lengths: list[int], dim: int, reverse: bool, device: torch.device) -> None:
    total = sum(lengths)
    gates, tokens = _random((2, total) if dim == -1 else (total, 2), total, device)
    cu_seqlens = lengths_to_cu_seqlens(lengths).to(device)
    packed, final = linear_scan(gates, tokens, dim=dim, reverse=reverse, cu_seqlens=cu_seqlens)
    starts = cu_seqlens.tolist()
    for n, length in enumerate(lengths):
        part = [t.narrow(dim, starts[n], length) for t in (gates, tokens)]
        alone = linear_scan(*part, dim=dim, reverse=reverse)
        torch.testing.assert_close(packed.narrow(dim, starts[n], length), alone.states, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(final[n], alone.final_state, rtol=2e-6, atol=2e-6)


@hypothesis.given(
    before=st.integers(0, 60), after=st.integers(1, 60), dim=st.sampled_from((-1, -2)), reverse=st.booleans()
)
@hypothesis.settings(max_examples=12)
def test_splitting_and_passing_the_state_on(
    before: int, after: int, dim: int, reverse: bool, device: torch.device
) -> None:
    T = before + after
    gates, tokens = _random((2, T) if dim == -1 else (T, 2), T, device)
    whole = linear_scan(gates, tokens, dim=dim, reverse=reverse)
    pieces = [(0, before), (before, after)]
    state, states = None, []
    for start, length in reversed(pieces) if reverse else pieces:
        part = [t.narrow(dim, start, length) for t in (gates, tokens)]
        output, state = linear_scan(*part, state, dim=dim, reverse=reverse)
        states.append(output)
    joined = torch.cat(states[::-1] if reverse else states, dim)
    torch.testing.assert_close(joined, whole.states, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(state, whole.final_state, rtol=2e-6, atol=2e-6)


@hypothesis.given(T=st.integers(1, 130), dim=st.sampled_from((-1, -2)), log=st.booleans())
@hypothesis.settings(max_examples=12)
def test_reverse_is_flip_scan_flip(T: int, dim: int, log: bool, device: torch.device) -> None:
    gates, tokens = _random((2, T) if dim == -1 else (T, 2), T, device)
    gates = gates.clamp_min(1e-3).log() if log else gates
    back = linear_scan(gates, tokens, dim=dim, reverse=True, log_gates=log).states
    flipped = linear_scan(gates.flip(dim), tokens.flip(dim), dim=dim, log_gates=log).states.flip(dim)
    torch.testing.assert_close(back, flipped, rtol=2e-6, atol=2e-6)


@hypothesis.given(T=st.integers(1, 130), dim=st.sampled_from((-1, -2)), exponent=st.integers(-20, 20))
@hypothesis.settings(max_examples=12)
def test_linear_in_tokens(T: int, dim: int, exponent: int, device: torch.device) -> None:
    gates, tokens = _random((2, T) if dim == -1 else (T, 2), T, device)
    states = linear_scan(gates, tokens, dim=dim).states
    # A power of two scales every rounding alike.
    scaled = linear_scan(gates, tokens * 2.0**exponent, dim=dim).states
    assert torch.equal(scaled, states * 2.0**exponent)


@hypothesis.given(T=st.integers(1, 130), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=12)
def test_time_last_and_channels_last_agree(T: int, seed: int, device: torch.device) -> None:
    gates, tokens = _random((3, T), seed, device)
    first = linear_scan(gates, tokens)
    last = linear_scan(gates.t().contiguous(), tokens.t().contiguous(), dim=-2)
    torch.testing.assert_close(first.states, last.states.t(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(first.final_state, last.final_state, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("case", grid(T=(9,), lengths=((3, 0, 6),), initial=(False, True), **BOTH), ids=str)
def test_final_state_of_the_reference(case: Case, device: torch.device) -> None:
    i = draw(case, device)
    output = linear_scan(i.gates, i.tokens, i.initial_state, cu_seqlens=i.cu_seqlens, **case.keywords)
    on_cpu = [None if t is None else t.cpu() for t in (i.gates, i.tokens, i.initial_state, i.cu_seqlens)]
    states = sequential_scan(*on_cpu[:3], cu_seqlens=on_cpu[3], **case.keywords)  # type: ignore[arg-type]
    wanted = final_state(states, on_cpu[2], dim=case.dim, reverse=case.reverse, cu_seqlens=on_cpu[3])
    torch.testing.assert_close(output.final_state.cpu().double(), wanted.double(), rtol=2e-5, atol=2e-5)
