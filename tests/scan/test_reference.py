"""The reference scans: hand-computed values first, then each against the others and against jax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scan.reference import blelloch_scan, final_state, parallel_scan, sequential_scan

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 127]


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_sequential_by_hand() -> None:
    states = sequential_scan(torch.tensor([0.5, 0.0, 0.5, 0.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.equal(states, _double(1, 2, 4, 4))


def test_sequential_in_reverse_by_hand() -> None:
    states = sequential_scan(torch.tensor([0.5, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]), reverse=True)
    assert torch.equal(states, _double(6, 10, 4))


def test_sequential_with_initial_state_by_hand() -> None:
    gates, tokens = torch.tensor([[0.5, 2.0], [3.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, -1.0]])
    states = sequential_scan(gates, tokens, torch.tensor([4.0, 2.0]))
    assert torch.equal(states, torch.tensor([[3.0, 7.0], [6.0, 5.0]], dtype=torch.float64))
    assert torch.equal(final_state(states), _double(7, 5))


def test_sequential_packed_by_hand() -> None:
    # Sequences of 2, 0 and 1 steps, then one step that belongs to none.
    cu_seqlens = torch.tensor([0, 2, 2, 3])
    gates, tokens = torch.tensor([[2.0, 3.0, 5.0, 7.0]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    initial = torch.tensor([[1.0], [20.0], [0.5]])
    states = sequential_scan(gates, tokens, initial, cu_seqlens=cu_seqlens)
    assert torch.equal(states, torch.tensor([[3.0, 10.0, 3.5, 0.0]], dtype=torch.float64))
    final = final_state(states, initial, cu_seqlens=cu_seqlens)
    assert torch.equal(final, torch.tensor([[10.0], [20.0], [3.5]], dtype=torch.float64))
    states = sequential_scan(gates, tokens, initial, cu_seqlens=cu_seqlens, reverse=True)
    assert torch.equal(states, torch.tensor([[9.0, 4.0, 3.5, 0.0]], dtype=torch.float64))
    final = final_state(states, initial, cu_seqlens=cu_seqlens, reverse=True)
    assert torch.equal(final, torch.tensor([[9.0], [20.0], [3.5]], dtype=torch.float64))


def test_sequential_channels_last_by_hand() -> None:
    gates, tokens = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    states = sequential_scan(gates, tokens, torch.tensor([0.0, 1.0]), dim=-2)
    assert torch.equal(states, torch.tensor([[1.0, 3.0], [4.0, 13.0]], dtype=torch.float64))
    assert torch.equal(final_state(states, dim=-2), _double(4, 13))


def test_sequential_with_log_gates_by_hand() -> None:
    gates = torch.tensor([float("-inf"), 0.0, 0.0])
    states = sequential_scan(gates, torch.tensor([1.0, 2.0, 3.0]), torch.tensor(5.0), log_gates=True)
    assert torch.equal(states, _double(1, 3, 6))


def test_sequential_complex_by_hand() -> None:
    gates, tokens = torch.tensor([1j, 1j, 1 + 1j]), torch.tensor([1.0, 0.0, 1.0])
    states = sequential_scan(gates, tokens)
    assert torch.equal(states, torch.tensor([1, 1j, 1j], dtype=torch.complex128))


def test_sequential_gradients_by_hand() -> None:
    gates = torch.tensor([0.5, 0.0, 0.5, 0.0], requires_grad=True)
    tokens = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    sequential_scan(gates, tokens).sum().backward()
    assert torch.equal(gates.grad, torch.tensor([0.0, 1.5, 2.0, 4.0]))
    assert torch.equal(tokens.grad, torch.tensor([1.0, 1.5, 1.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_sequential_computes_in_double(dtype: torch.dtype) -> None:
    gates, tokens = torch.full((4096,), 1.0, dtype=dtype), torch.full((4096,), 1.0, dtype=dtype)
    tokens[0] = 2**-9
    states = sequential_scan(gates, tokens)
    assert states.dtype == torch.float64
    # Neither bfloat16 (sticks at 256) nor float32 (drops the 2**-9 from 2**15 on, float16 sooner) would end here.
    assert states[-1] == 4095 + 2**-9
    assert sequential_scan(gates, tokens.to(torch.complex64)).dtype == torch.complex128


def test_sequential_without_steps() -> None:
    empty, initial = torch.empty(3, 0), torch.tensor([1.0, 2.0, 3.0])
    states = sequential_scan(empty, empty, initial)
    assert states.shape == (3, 0) and states.dtype == torch.float64
    assert torch.equal(final_state(states, initial), initial.double())
    states = sequential_scan(empty, empty, cu_seqlens=torch.tensor([0]))
    assert final_state(states, cu_seqlens=torch.tensor([0])).shape == (0, 3)


def test_parallel_by_hand() -> None:
    a = torch.tensor([[[0.5], [0.5], [2.0]]])
    b = torch.tensor([[[1.0], [1.0], [1.0]]])
    assert torch.equal(parallel_scan(a, b), torch.tensor([[[1.0], [1.5], [4.0]]]))
    assert torch.equal(parallel_scan(a, b, torch.tensor([[2.0]])), torch.tensor([[[2.0], [2.0], [5.0]]]))


def test_blelloch_by_hand() -> None:
    gates, tokens = torch.tensor([[[0.5, 2.0, 3.0]]]), torch.tensor([[[1.0, 2.0, 4.0]]])
    assert torch.equal(blelloch_scan(gates, tokens), torch.tensor([[[1.0, 4.0, 16.0]]]))
    assert torch.equal(blelloch_scan(gates, tokens, reverse=True), torch.tensor([[[6.0, 10.0, 4.0]]]))


def _operands(time: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, tokens `(2, 3, time)` and an initial state `(2, 3)`."""
    gates = torch.rand(2, 3, time, dtype=dtype) * 1.2
    return gates, torch.randn(2, 3, time, dtype=dtype), torch.randn(2, 3, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("time", [0, *LENGTHS])
def test_parallel_equals_sequential(time: int, dtype: torch.dtype) -> None:
    gates, tokens, initial = _operands(time, dtype)
    a, b = gates.movedim(-1, 1), tokens.movedim(-1, 1)
    torch.testing.assert_close(parallel_scan(a, b), sequential_scan(gates, tokens).movedim(-1, 1))
    expected = sequential_scan(gates, tokens, initial).movedim(-1, 1)
    torch.testing.assert_close(parallel_scan(a, b, initial), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("time", LENGTHS)
def test_blelloch_equals_sequential(time: int, reverse: bool, dtype: torch.dtype) -> None:
    gates, tokens, _ = _operands(time, dtype)
    torch.testing.assert_close(blelloch_scan(gates, tokens, reverse), sequential_scan(gates, tokens, reverse=reverse))


@pytest.mark.parametrize("time", [1, 5, 8])
def test_gradients_of_the_parallel_scans_equal_those_of_the_sequential(time: int) -> None:
    gates, tokens, initial = (operand.requires_grad_() for operand in _operands(time))
    d_states = torch.randn(2, 3, time, dtype=torch.float64)

    def gradients(states: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(states, inputs, d_states, materialize_grads=True)

    truth = gradients(sequential_scan(gates, tokens, initial), gates, tokens, initial)
    states = parallel_scan(gates.movedim(-1, 1), tokens.movedim(-1, 1), initial).movedim(1, -1)
    torch.testing.assert_close(gradients(states, gates, tokens, initial), truth)
    # The tree never uses the first gate, so without an initial state its gradient is 0 by either way.
    truth = gradients(sequential_scan(gates, tokens), gates, tokens)
    torch.testing.assert_close(gradients(blelloch_scan(gates, tokens), gates, tokens), truth)


@pytest.mark.parametrize("time", [0, 1])
def test_parallel_scans_return_memory_of_their_own(time: int) -> None:
    gates, tokens = torch.rand(1, 2, time), torch.rand(1, 2, time)
    for states in (parallel_scan(gates.mT, tokens.mT), blelloch_scan(gates, tokens)):
        states.fill_(7)
    assert (tokens <= 1).all()


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("time", [1, 9, 100])
def test_sequential_equals_jax(time: int, reverse: bool) -> None:
    jax = pytest.importorskip("jax", reason="jax, the independent witness, is not installed")
    gates, tokens, _ = _operands(time, torch.float32)

    def compose(first, second):  # type: ignore[no-untyped-def]
        return first[0] * second[0], second[0] * first[1] + second[1]

    operands = (jax.numpy.asarray(gates.numpy()), jax.numpy.asarray(tokens.numpy()))
    _, witness = jax.lax.associative_scan(compose, operands, axis=2, reverse=reverse)
    states = sequential_scan(gates, tokens, reverse=reverse)
    torch.testing.assert_close(torch.tensor(witness.tolist(), dtype=torch.float64), states, rtol=1e-5, atol=1e-5)
