"""Packing: lengths and offsets, the sequence of a step, shifts that stay inside their sequence, grids."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor

from scan.packing import (
    cu_seqlens_to_lengths,
    get_grid,
    get_static_grid,
    lengths_to_cu_seqlens,
    next_power_of_2,
    sequence_index,
    shift_pad,
    shift_states,
)

LENGTHS = [2, 0, 0, 3, 1, 0]
SLACK = 2
TOTAL = sum(LENGTHS) + SLACK


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_lengths_to_offsets_and_back(dtype: torch.dtype) -> None:
    lengths = torch.tensor(LENGTHS, dtype=dtype)
    cu_seqlens = lengths_to_cu_seqlens(lengths)
    assert cu_seqlens.dtype == dtype and cu_seqlens.tolist() == [0, 2, 2, 2, 5, 6, 6]
    assert torch.equal(cu_seqlens_to_lengths(cu_seqlens), lengths)


def test_no_sequences() -> None:
    assert lengths_to_cu_seqlens([]).tolist() == [0]
    assert cu_seqlens_to_lengths(torch.tensor([0])).tolist() == []


def test_lengths_in_a_list_never_wrap() -> None:
    assert lengths_to_cu_seqlens([2**31, 2**31]).tolist() == [0, 2**31, 2**32]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sequence_index(dtype: torch.dtype) -> None:
    cu_seqlens = lengths_to_cu_seqlens(torch.tensor([0, *LENGTHS], dtype=dtype))
    assert sequence_index(cu_seqlens, TOTAL).tolist() == [1, 1, 4, 4, 4, 5, 7, 7]
    assert sequence_index(torch.tensor([0], dtype=dtype), 2).tolist() == [0, 0]
    assert sequence_index(cu_seqlens, 0).tolist() == []


def test_offsets_may_be_a_column_of_a_table() -> None:
    cu_seqlens = torch.tensor([[0, 9], [2, 9], [3, 9]])[:, 0]
    assert sequence_index(cu_seqlens, 3).tolist() == [0, 0, 1]
    assert shift_pad(torch.tensor([1.0, 2.0, 3.0]), cu_seqlens).tolist() == [0, 1, 0]


def _shifted_by_loop(
    states: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> Tensor:
    """The definition of `shift_states`, one step after the other."""
    steps = states.unbind(dim)
    offsets = [0, len(steps)] if cu_seqlens is None else cu_seqlens.tolist()
    previous = [torch.zeros_like(step) for step in steps]
    for n in range(len(offsets) - 1):
        order = list(range(offsets[n], offsets[n + 1]))
        if reverse:
            order.reverse()
        for place, t in enumerate(order):
            if place > 0:
                previous[t] = steps[order[place - 1]]
            elif initial_state is not None:
                previous[t] = initial_state if cu_seqlens is None else initial_state[n]
    return torch.stack(previous, dim) if previous else states


def _operands(dim: int, packed: bool, total: int = TOTAL) -> tuple[Tensor, Tensor, Tensor | None]:
    """States of 2 rows, 3 channels and `total` steps, initial states, and offsets if packed."""
    states = torch.randn((2, 3, total) if dim == -1 else (2, total, 3), dtype=torch.float64)
    initial = torch.randn((len(LENGTHS), 2, 3) if packed else (2, 3), dtype=torch.float64)
    return states, initial, lengths_to_cu_seqlens(LENGTHS) if packed else None


LAYOUTS = [
    pytest.mark.parametrize("dim", [-1, -2], ids=["channels_first", "channels_last"]),
    pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"]),
    pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"]),
    pytest.mark.parametrize("with_initial", [False, True], ids=["zeros", "initial"]),
]


def over_layouts(test: Callable[..., None]) -> Callable[..., None]:
    for mark in LAYOUTS:
        test = mark(test)
    return test


def test_shift_states_by_hand() -> None:
    states, cu_seqlens = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]), torch.tensor([0, 1, 1, 4])
    initial = torch.tensor([7.0, 8.0, 9.0])
    assert shift_states(states, initial, cu_seqlens, -1, False).tolist() == [7, 9, 2, 3, 0]
    assert shift_states(states, initial, cu_seqlens, -1, True).tolist() == [7, 3, 4, 9, 0]
    assert shift_states(states, None, None, -1, False).tolist() == [0, 1, 2, 3, 4]
    assert shift_states(states, None, None, -1, True).tolist() == [2, 3, 4, 0, 0]


@over_layouts
def test_shift_states_equals_the_loop(dim: int, reverse: bool, packed: bool, with_initial: bool) -> None:
    states, initial, cu_seqlens = _operands(dim, packed)
    chosen = initial if with_initial else None
    before = states.clone(), initial.clone()
    shifted = shift_states(states, chosen, cu_seqlens, dim, reverse)
    assert torch.equal(shifted, _shifted_by_loop(states, chosen, cu_seqlens, dim, reverse))
    assert torch.equal(states, before[0]) and torch.equal(initial, before[1])


@over_layouts
def test_shift_states_differentiates_twice(dim: int, reverse: bool, packed: bool, with_initial: bool) -> None:
    states, initial, cu_seqlens = _operands(dim, packed)
    inputs = (states.requires_grad_(), initial.requires_grad_())[: 1 + with_initial]

    def shifted(states: Tensor, initial: Tensor | None = None) -> Tensor:
        return shift_states(states, initial, cu_seqlens, dim, reverse)

    assert torch.autograd.gradcheck(shifted, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *tensors: shifted(*tensors).square(), inputs)


@over_layouts
def test_shift_states_under_vmap(dim: int, reverse: bool, packed: bool, with_initial: bool) -> None:
    states, initial, cu_seqlens = _operands(dim, packed)
    batch, initials = torch.stack((states, -states)), torch.stack((initial, 2 * initial))
    if not with_initial:
        initials = None

    def loss(states: Tensor, initial: Tensor | None) -> Tensor:
        return shift_states(states, initial, cu_seqlens, dim, reverse).square().sum()

    in_dims = (0, 0 if with_initial else None)
    together = torch.func.vmap(torch.func.grad(loss), in_dims)(batch, initials)
    for n in range(2):
        alone = torch.func.grad(loss)(batch[n], initials[n] if initials is not None else None)
        assert torch.equal(together[n], alone)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_shift_states_isolates_sequences(wrong: float, reverse: bool) -> None:
    states, initial, cu_seqlens = _operands(-1, packed=True)
    inside = torch.zeros(TOTAL, dtype=torch.bool)
    inside[2:5] = True
    spoilt = states.masked_fill(inside, wrong).requires_grad_()
    shifted = shift_states(spoilt, initial, cu_seqlens, -1, reverse)
    clean = shift_states(states, initial, cu_seqlens, -1, reverse)
    assert torch.equal(shifted[..., ~inside], clean[..., ~inside])
    # A gradient that is wrong where nothing was read from the states does not reach them either.
    (d_states,) = torch.autograd.grad(shifted, spoilt, torch.where(inside, 1.0, wrong).expand_as(states))
    assert d_states[..., inside].isfinite().all() and d_states[..., 6:].eq(0).all()


@pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"])
def test_shift_states_without_steps(packed: bool) -> None:
    cu_seqlens = torch.tensor([0, 0]) if packed else None
    assert shift_states(torch.empty(3, 0), None, cu_seqlens, -1, False).shape == (3, 0)


def test_shift_states_without_sequences() -> None:
    states = torch.full((3, 4), float("nan"))
    assert torch.equal(shift_states(states, torch.empty(0, 3), torch.tensor([0]), -1, False), torch.zeros(3, 4))


def test_shift_states_keeps_a_wider_initial_state() -> None:
    initial = torch.tensor([1 + 2**-20], dtype=torch.float32)
    states = torch.ones(1, 2, dtype=torch.bfloat16)
    for cu_seqlens in (None, torch.tensor([0, 2])):
        state = initial if cu_seqlens is None else initial.unsqueeze(0)
        assert shift_states(states, state, cu_seqlens, -1, False)[0, 0] == initial


def test_shift_pad_by_hand() -> None:
    data, cu_seqlens = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]), torch.tensor([0, 3, 3, 4])
    assert shift_pad(data, cu_seqlens).tolist() == [[0, 1, 2, 0], [0, 5, 6, 0]]
    assert shift_pad(data, cu_seqlens, pad_value=1.0).tolist() == [[1, 1, 2, 1], [1, 5, 6, 1]]
    assert shift_pad(data, cu_seqlens, backward=False).tolist() == [[2, 3, 0, 0], [6, 7, 0, 0]]
    assert shift_pad(data, torch.tensor([0, 2]), pad_value=9.0).tolist() == [[9, 1, 9, 9], [9, 5, 9, 9]]


@hypothesis.given(lengths=st.lists(st.integers(0, 5), max_size=6), slack=st.integers(0, 3), backward=st.booleans())
def test_shift_pad_equals_a_shift_of_each_sequence(lengths: list[int], slack: int, backward: bool) -> None:
    data = torch.randn(2, 3, sum(lengths) + slack)
    parts = []
    for part in data.split([*lengths, slack], dim=-1)[:-1]:
        pad = part.new_full((2, 3, 1), 7.0)[..., : part.shape[-1]]
        parts.append(torch.cat((pad, part[..., :-1]) if backward else (part[..., 1:], pad), dim=-1))
    parts.append(data.new_full((2, 3, slack), 7.0))
    shifted = shift_pad(data, lengths_to_cu_seqlens(lengths), pad_value=7.0, backward=backward)
    assert torch.equal(shifted, torch.cat(parts, dim=-1))


@pytest.mark.parametrize("backward", [True, False], ids=["right", "left"])
def test_shift_pad_differentiates(backward: bool) -> None:
    cu_seqlens = lengths_to_cu_seqlens(LENGTHS)
    data = torch.randn(3, TOTAL, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda data: shift_pad(data, cu_seqlens, 0.5, backward), data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_shift_pad_keeps_the_dtype(dtype: torch.dtype) -> None:
    assert shift_pad(torch.ones(1, 2, dtype=dtype), torch.tensor([0, 2])).dtype == dtype


def test_shift_pad_compiles_without_a_graph_break() -> None:
    compiled = torch.compile(shift_pad, fullgraph=True, backend="eager")
    data, cu_seqlens = torch.randn(3, TOTAL), lengths_to_cu_seqlens(LENGTHS)
    assert torch.equal(compiled(data, cu_seqlens), shift_pad(data, cu_seqlens))


@pytest.mark.parametrize("offsets", [[0, 9], [1, 3], [0, 4, 2, 6], [-1, 6]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_a_trace_cannot_read_becomes_nan(offsets: list[int], dtype: torch.dtype) -> None:
    data, cu_seqlens = torch.ones(2, 6, dtype=dtype), torch.tensor(offsets)
    shift = torch.compile(shift_pad, fullgraph=True, backend="aot_eager")
    assert shift(data, cu_seqlens).isnan().all()
    good = torch.tensor([0, 4, 6])
    assert torch.equal(shift(data, good), shift_pad(data, good))


def test_grids() -> None:
    assert get_grid(no_seq=4, max_seqlen=257, chunk_size=64, no_channels=6) == (3, 8, 6)
    assert get_grid(2, 128, 128, 4) == (1, 1, 4)
    assert get_grid(1, 0, 128, 4) == (0, 1, 4)
    assert get_static_grid(max_seqlen=257, chunk_size=64, no_channels=6) == (5, 6)
    assert [next_power_of_2(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
    # Numbers of NumPy would wrap around.
    found = get_grid(np.uint8(4), np.int16(257), np.uint8(64), np.int8(6))
    assert found == (3, 8, 6) and all(type(each) is int for each in found)
    assert get_static_grid(np.uint8(3), np.uint8(2), 4) == (2, 4) and next_power_of_2(np.uint8(200)) == 256
