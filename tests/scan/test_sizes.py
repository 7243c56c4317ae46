"""Sizes at which grids end and 32-bit offsets wrap around; all of it needs a GPU, some of it much memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scan import linear_scan

pytestmark = pytest.mark.gpu
MANY_ROWS = [((80_000,), 1), ((65_536,), 3), ((65_537,), 2), ((2**17, 2), 2), ((3, 70_001), 2), ((2**20,), 5)]


def _need(gib: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory / 2**30
    if total < gib + 2:
        pytest.skip(f"needs {gib} GiB of GPU memory, and there are {total:.0f}")
    torch.cuda.empty_cache()


def _draw(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device).manual_seed(0)
    return tuple(torch.rand(shape, device=device, dtype=dtype, generator=random) for _ in range(2))  # type: ignore[return-value]


def _by_hand(gates: Tensor, tokens: Tensor, dim: int, reverse: bool) -> Tensor:
    """The recurrence step by step, for a few steps of many rows."""
    steps = list(zip(gates.double().unbind(dim), tokens.double().unbind(dim), strict=True))
    state, states = torch.zeros_like(steps[0][1]), []
    for g, x in reversed(steps) if reverse else steps:
        state = g * state + x
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim)


def _run(gates: Tensor, tokens: Tensor, **keywords: object) -> list[Tensor]:
    """States and both gradients, with ones arriving."""
    leaves = [t.detach().requires_grad_() for t in (gates, tokens)]
    states = linear_scan(*leaves, **keywords).states  # type: ignore[arg-type]
    return [
        states.detach(),
        *torch.autograd.grad(states, leaves, torch.ones((), device=gates.device, dtype=states.dtype).expand_as(states)),
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize(("rows", "T"), MANY_ROWS)
def test_more_rows_than_a_grid_axis_holds(
    rows: tuple[int, ...], T: int, dim: int, reverse: bool, device: torch.device
) -> None:
    gates, tokens = _draw((*rows, T) if dim == -1 else (*rows[:-1], T, rows[-1]), device)
    states, d_gates, d_tokens = _run(gates, tokens, dim=dim, reverse=reverse)
    exact = [t.double().requires_grad_() for t in (gates, tokens)]
    wanted = _by_hand(*exact, dim, reverse)
    torch.testing.assert_close(states.double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    for actual, gradient in zip((d_gates, d_tokens), torch.autograd.grad(wanted.sum(), exact), strict=True):
        torch.testing.assert_close(actual.double(), gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("channels", [1, 3])
def test_more_sequences_than_a_grid_axis_holds(channels: int, dim: int, device: torch.device) -> None:
    cu_seqlens = (torch.arange(66_001, dtype=torch.int32) * 2).to(device)
    total = 132_000
    gates, tokens = _draw((channels, total) if dim == -1 else (total, channels), device)
    whole = _run(gates, tokens, dim=dim, cu_seqlens=cu_seqlens)
    for start in (0, total // 2):
        halves = [t.narrow(dim, start, total // 2) for t in (gates, tokens)]
        half = _run(*halves, dim=dim, cu_seqlens=cu_seqlens[:33_001])
        for a, b in zip(whole, half, strict=True):
            torch.testing.assert_close(a.narrow(dim, start, total // 2), b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("C", "T", "gib"),
    [(32_767, 65_536, 26), (32_769, 65_536, 26), (4100, 534_528, 27), (3, 2**30 + 7, 40)],
)
def test_last_row_beyond_2_to_the_31(C: int, T: int, gib: int, device: torch.device) -> None:
    _need(gib)
    gates, tokens = _draw((C, T), device, torch.bfloat16)
    together = _run(gates, tokens)
    alone = _run(gates[-1:], tokens[-1:])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[-1:], b, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("B", "T", "C", "gib"), [(1, 2**20 + 3, 2049, 27), (9, 2**14, 2**14, 30)])
def test_last_channel_beyond_2_to_the_31(B: int, T: int, C: int, gib: int, device: torch.device) -> None:
    _need(gib)
    gates, tokens = _draw((B, T, C), device, torch.bfloat16)
    together = _run(gates, tokens, dim=-2)
    alone = _run(gates[-1:, :, -16:].contiguous(), tokens[-1:, :, -16:].contiguous(), dim=-2)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[-1:, :, -16:], b, rtol=2e-2, atol=1e-3)


def test_packed_rows_beyond_2_to_the_31(device: torch.device) -> None:
    _need(27)
    gates, tokens = _draw((4100, 534_528), device, torch.bfloat16)
    cu_seqlens = torch.tensor([0, 100_000, 100_000, 334_567, 534_528], device=device)
    together = _run(gates, tokens, cu_seqlens=cu_seqlens)
    alone = _run(gates[-1:], tokens[-1:], cu_seqlens=cu_seqlens)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[-1:], b, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("T", "reverse"), [(2**31 - 1, False), (2**31 + 256, False), (2**31 + 256, True)])
def test_more_steps_than_32_bits_count(T: int, reverse: bool, device: torch.device) -> None:
    _need(18)
    tokens = torch.empty((1, T), dtype=torch.bfloat16, device=device).normal_()
    gates = torch.zeros_like(tokens)
    assert torch.equal(linear_scan(gates, tokens, reverse=reverse).states, tokens)


def test_packed_steps_beyond_32_bits(device: torch.device) -> None:
    _need(30)
    T = 2**31 + 256
    tokens = torch.empty((1, T), dtype=torch.bfloat16, device=device).normal_()
    cu_seqlens = torch.tensor([0, 5, 2**31 + 100, T - 3], device=device)
    states = linear_scan(torch.zeros_like(tokens), tokens, cu_seqlens=cu_seqlens).states
    assert torch.equal(states[:, :-3], tokens[:, :-3]) and (states[:, -3:] == 0).all()


def test_checkpoint_of_a_long_sequence(device: torch.device) -> None:
    gates, tokens = (t.requires_grad_() for t in _draw((512, 131_072), device))

    def loss(g: Tensor, x: Tensor) -> Tensor:
        return linear_scan(g, x).states.square().sum()

    plain = torch.autograd.grad(loss(gates, tokens), (gates, tokens))
    again = torch.autograd.grad(checkpoint(loss, gates, tokens, use_reentrant=False), (gates, tokens))
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
