"""The interface of the package that this one grew from: its README's code runs with other import lines only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import scan
from scan import (
    get_grid,
    get_static_grid,
    lengths_to_cu_seqlens,
    scan_bidirectional_branched,
    scan_bidirectional_branched_compiled,
    scan_causal,
    scan_causal_compiled,
)
from scan.reference import sequential_scan

# The three blocks as they stand there, but for `from scan` in the import lines.
QUICK_START = """
import torch
from scan import scan_causal, get_grid

# 4 channels, single sequence of length 128
C, T = 4, 128
device = "cuda"

gates = torch.rand(C, T, device=device, requires_grad=True)
tokens = torch.randn(C, T, device=device, requires_grad=True)
cu_seqlens = torch.tensor([0, T], device=device, dtype=torch.int32)

grid = get_grid(len(cu_seqlens), T, chunk_size=128, no_channels=C)
args = {"cu_seqlens": cu_seqlens, "chunk_size": 128, "grid": grid}

# forward scan: h[t] = gates[t] * h[t-1] + tokens[t]
output = scan_causal(gates, tokens, args)
output.sum().backward()  # gradients flow through
"""
TWO_BRANCHES = """
from scan import scan_bidirectional_branched

y_fwd, y_bwd = scan_bidirectional_branched(
    gates_fwd, tokens_fwd, gates_bwd, tokens_bwd, args
)
"""
COMPILED = """
from scan import scan_bidirectional_branched_compiled

y_fwd, y_bwd = scan_bidirectional_branched_compiled(
    gates_fwd, tokens_fwd, gates_bwd, tokens_bwd, args
)
"""


def _close(actual: Tensor | None, wanted: Tensor) -> None:
    assert actual is not None
    torch.testing.assert_close(actual.detach().cpu().double(), wanted.detach(), rtol=2e-5, atol=2e-5)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().requires_grad_()


@pytest.mark.parametrize("block", [TWO_BRANCHES, COMPILED], ids=["eager", "compiled"])
def test_code_of_the_readme(block: str, device: torch.device) -> None:
    names: dict[str, Any] = {}
    exec(QUICK_START.replace('"cuda"', repr(device.type)), names)
    gates, tokens = _double(names["gates"]), _double(names["tokens"])
    wanted = sequential_scan(gates, tokens)
    wanted.sum().backward()
    _close(names["output"], wanted)
    assert gates.grad is not None and tokens.grad is not None
    _close(names["gates"].grad, gates.grad)
    _close(names["tokens"].grad, tokens.grad)

    C, T = names["C"], names["T"]
    for name in ("gates_fwd", "gates_bwd"):
        names[name] = torch.rand(C, T, device=device, requires_grad=True)
    for name in ("tokens_fwd", "tokens_bwd"):
        names[name] = torch.randn(C, T, device=device, requires_grad=True)
    exec(block, names)
    leaves = [names[name] for name in ("gates_fwd", "tokens_fwd", "gates_bwd", "tokens_bwd")]
    exact = [_double(leaf) for leaf in leaves]
    ahead, back = sequential_scan(*exact[:2]), sequential_scan(*exact[2:], reverse=True)
    _close(names["y_fwd"], ahead)
    _close(names["y_bwd"], back)
    (names["y_fwd"].sum() + 2 * names["y_bwd"].sum()).backward()
    (ahead.sum() + 2 * back.sum()).backward()
    for leaf, other in zip(leaves, exact, strict=True):
        assert other.grad is not None
        _close(leaf.grad, other.grad)


def _packed(device: torch.device) -> tuple[list[Tensor], Tensor]:
    random = torch.Generator().manual_seed(0)
    leaves = [torch.rand(2, 3, 40, generator=random).to(device) for _ in range(4)]
    return leaves, lengths_to_cu_seqlens(torch.tensor([7, 0, 29, 1], dtype=torch.int32)).to(device)


def test_one_tensor_and_a_pair_come_back(device: torch.device) -> None:
    (gates, tokens, _, _), _ = _packed(device)
    assert isinstance(scan_causal(gates, tokens), Tensor)
    pair = scan_bidirectional_branched(gates, tokens, gates, tokens)
    assert type(pair) is tuple and len(pair) == 2


def test_packed_batches(device: torch.device) -> None:
    leaves, cu_seqlens = _packed(device)
    args = {"cu_seqlens": cu_seqlens, "chunk_size": 16, "grid": get_grid(len(cu_seqlens), 29, 16, 3)}
    exact, offsets = [leaf.cpu() for leaf in leaves], cu_seqlens.cpu()
    ahead = sequential_scan(*exact[:2], cu_seqlens=offsets)
    back = sequential_scan(*exact[2:], cu_seqlens=offsets, reverse=True)
    _close(scan_causal(*leaves[:2], args), ahead)
    for actual, wanted in zip(scan_bidirectional_branched(*leaves, args), (ahead, back), strict=True):
        _close(actual, wanted)


@pytest.mark.parametrize("chunk_size", [None, 1, 16, 32, 64, 128])
def test_chunks_and_grids_never_change_a_result(chunk_size: int | None, device: torch.device) -> None:
    leaves, cu_seqlens = _packed(device)
    plain = scan_bidirectional_branched(*leaves, {"cu_seqlens": cu_seqlens})
    grids: list[Any] = [None]
    if chunk_size is not None:
        grids += [get_grid(len(cu_seqlens), 29, chunk_size, 3), get_static_grid(29, chunk_size, 3)]
    for grid in grids:
        args = {"cu_seqlens": cu_seqlens, "chunk_size": chunk_size, "grid": grid}
        for a, b in zip(scan_bidirectional_branched(*leaves, args), plain, strict=True):
            assert torch.equal(a, b)


def test_too_short_a_declared_length_is_refused_where_it_can_be_read() -> None:
    leaves, cu_seqlens = _packed(torch.device("cpu"))
    args = {"cu_seqlens": cu_seqlens, "chunk_size": 4, "grid": get_grid(len(cu_seqlens), 16, 4, 3)}
    with pytest.raises(ValueError, match="longest sequence has 29 steps"):
        scan_causal(*leaves[:2], args)


def test_arguments_may_be_named_and_left_out(device: torch.device) -> None:
    (gates, tokens, other_gates, other_tokens), _ = _packed(device)
    assert torch.equal(scan_causal(gates=gates, tokens=tokens), scan_causal(gates, tokens, {}))
    named = scan_bidirectional_branched(
        gates_fwd=gates, tokens_fwd=tokens, gates_bwd=other_gates, tokens_bwd=other_tokens, args=None
    )
    assert torch.equal(named[0], scan_causal(gates, tokens))


def test_compiled_names_are_the_same_functions() -> None:
    assert scan_causal_compiled is scan_causal
    assert scan_bidirectional_branched_compiled is scan_bidirectional_branched
    assert scan.shift_pad_compiled is scan.shift_pad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_states_have_the_dtype_of_tokens(dtype: torch.dtype, device: torch.device) -> None:
    (gates, tokens, _, _), _ = _packed(device)
    assert scan_causal(gates.to(dtype), tokens.to(dtype)).dtype == dtype


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("shift", [scan.shift_pad, scan.shift_pad_compiled], ids=["eager", "compiled"])
def test_shift_pad_on_the_device(shift: Any, backward: bool, device: torch.device) -> None:
    data = torch.arange(1.0, 7.0, device=device).expand(2, 6)
    cu_seqlens = torch.tensor([0, 2, 2, 5], dtype=torch.int32, device=device)
    wanted = [9.0, 1, 9, 3, 4, 9] if backward else [2.0, 9, 4, 5, 9, 9]
    assert shift(data, cu_seqlens, pad_value=9.0, backward=backward).tolist() == [wanted] * 2
