"""Every complaint, word for word, and that nothing which is allowed raises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from scan import checks, linear_scan, linear_scan_bidirectional, scan_bidirectional_branched, scan_causal
from scan.packing import (
    cu_seqlens_to_lengths,
    get_grid,
    get_static_grid,
    lengths_to_cu_seqlens,
    next_power_of_2,
    shift_pad,
)
from scan.reference import blelloch_scan, parallel_scan, sequential_scan

DTYPES = "float16, bfloat16, float32, float64, complex64 or complex128"
ROWS, CHANNELS, TIME = 2, 3, 10


def _scan(
    gates: Any = None, tokens: Any = None, initial_state: Any = None, dim: int = -1, cu_seqlens: Any = None
) -> None:
    """Check the arguments of a scan that is right except for what is given."""
    gates = torch.ones(ROWS, CHANNELS, TIME) if gates is None else gates
    tokens = torch.ones(ROWS, CHANNELS, TIME) if tokens is None else tokens
    checks.scan_arguments(gates, tokens, initial_state, dim, cu_seqlens)


def _offsets(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


COMPLAINTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "complex gates of 32 bits": (
        lambda: _scan(gates=torch.ones(2, 3, 10, dtype=torch.complex32)),
        TypeError,
        f"gates must be {DTYPES}, but came as torch.complex32: convert it, for example with gates.to(torch.complex64).",
    ),
    "no dim": (
        lambda: _scan(dim=None),  # type: ignore[arg-type]
        ValueError,
        "dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as None: "
        "pass one of the two.",
    ),
    "a sparse state": (
        lambda: _scan(initial_state=torch.ones(2, 3).to_sparse()),
        TypeError,
        "initial_state must be a dense tensor, but came as a torch.sparse_coo one: "
        "convert it with to_dense, or pack sequences along time and pass cu_seqlens.",
    ),
    "sparse offsets": (
        lambda: _scan(cu_seqlens=_offsets(0, 4).to_sparse()),
        TypeError,
        "cu_seqlens must be a dense tensor, but came as a torch.sparse_coo one: "
        "convert it with to_dense, or pack sequences along time and pass cu_seqlens.",
    ),
    "offsets without values": (
        lambda: linear_scan(
            torch.ones(1, 4, device="meta"), torch.ones(1, 4, device="meta"), cu_seqlens=_offsets(0, 4).to("meta")
        ),
        RuntimeError,
        "cu_seqlens must hold values where packed sequences are scanned, but came on the meta device: "
        "pack on a real device, or trace with FakeTensorMode or torch.export.",
    ),
    "a trace that would keep the offsets": (
        lambda: torch.jit.trace(
            lambda x, cu_seqlens: linear_scan(x, x, cu_seqlens=cu_seqlens).states, (torch.ones(1, 4), _offsets(0, 4))
        ),
        RuntimeError,
        "expected scans in torch.export or torch.compile, but torch.jit.trace would keep the length and the offsets of "
        "this call for every later one: export the module instead.",
    ),
    "a trace that would keep the length": (
        lambda: torch.jit.trace(lambda x: scan_causal(x, x), torch.ones(1, 2, 2048)),
        RuntimeError,
        "expected scans in torch.export or torch.compile, but torch.jit.trace would keep the length and the offsets of "
        "this call for every later one: export the module instead.",
    ),
    "a trace of a shift": (
        lambda: torch.jit.trace(shift_pad, (torch.ones(1, 4), _offsets(0, 4))),
        RuntimeError,
        "expected shift_pad in torch.export or torch.compile, but torch.jit.trace would keep the length and the "
        "offsets of this call for every later one: export the module instead.",
    ),
    "integer gates of the reverse branch": (
        lambda: linear_scan_bidirectional(torch.ones(1, 4), torch.ones(1, 4), torch.ones(1, 4, dtype=torch.int64)),
        TypeError,
        f"gates_reverse must be {DTYPES}, but came as torch.int64: convert it, for example with gates_reverse.float().",
    ),
    "a state of the reverse branch of another shape": (
        lambda: linear_scan_bidirectional(torch.ones(1, 4), torch.ones(1, 4), initial_state_reverse=torch.ones(2)),
        ValueError,
        "initial_state_reverse must have the shape of tokens_reverse without the time axis, (1,), but came as (2,): "
        "expand or reshape it to that shape.",
    ),
    "shorter gates of the second branch": (
        lambda: scan_bidirectional_branched(torch.ones(1, 4), torch.ones(1, 4), torch.ones(1, 3), torch.ones(1, 4)),
        ValueError,
        "gates_bwd and tokens_bwd must have the same shape, but came as (1, 3) and (1, 4): broadcast one with "
        "gates_bwd.expand_as(tokens_bwd) or tokens_bwd.expand_as(gates_bwd), which copies nothing.",
    ),
    "a longest that is no number": (
        lambda: checks.check_offsets(_offsets(0, 3), 3, "3"),  # type: ignore[arg-type]
        ValueError,
        "longest must be an int of at least 0, but came as '3': count it before the call.",
    ),
    "lengths that are no integers": (
        lambda: lengths_to_cu_seqlens([1.9, 2.9]),  # type: ignore[list-item]
        TypeError,
        "lengths must be int32 or int64, but came as torch.float32: convert them with lengths.long().",
    ),
    "lengths that are no numbers": (
        lambda: lengths_to_cu_seqlens("abc"),  # type: ignore[arg-type]
        TypeError,
        "lengths must be a torch.Tensor or a list of integers, but came as str: pass one integer for each sequence.",
    ),
    "lengths that add up to too much": (
        lambda: lengths_to_cu_seqlens(_offsets(2**31 - 1, 2)),
        ValueError,
        "lengths must add up to what torch.int32 holds, but add up to 2147483649: convert them with lengths.long().",
    ),
    "lengths of offsets that decrease": (
        lambda: cu_seqlens_to_lengths(_offsets(0, 5, 2)),
        ValueError,
        "cu_seqlens must not decrease, but goes from 5 to 2 at entry 2: "
        "build it from the lengths with lengths_to_cu_seqlens.",
    ),
    "a shift in no direction": (
        lambda: shift_pad(torch.ones(1, 2), _offsets(0, 2), 0.0, "no"),  # type: ignore[arg-type]
        TypeError,
        "backward must be True or False, but came as 'no': pass backward=True or backward=False.",
    ),
    "a pad that is no number": (
        lambda: shift_pad(torch.ones(1, 2), _offsets(0, 2), "x"),  # type: ignore[arg-type]
        TypeError,
        "pad_value must be a number that torch.float32 holds, but came as 'x': pass another one, or convert data.",
    ),
    "a pad that data cannot hold": (
        lambda: shift_pad(torch.ones(1, 2, dtype=torch.int64), _offsets(0, 2), 1.5),
        TypeError,
        "pad_value must be a number that torch.int64 holds, but came as 1.5: pass another one, or convert data.",
    ),
    "data that nothing fills": (
        lambda: shift_pad(torch.ones(1, 2).to(torch.float8_e4m3fn), _offsets(0, 2)),
        TypeError,
        "data must be of a dtype that torch.Tensor.masked_fill takes, but came as torch.float8_e4m3fn: convert it with "
        "data.float() or data.long().",
    ),
    "lengths that 64 bits do not add up": (
        lambda: lengths_to_cu_seqlens([2**62, 2**62]),
        ValueError,
        "lengths must add up to what torch.int64 holds, but add up to 9223372036854775808: pack fewer sequences.",
    ),
    "sparse data": (
        lambda: shift_pad(torch.ones(1, 2).to_sparse(), _offsets(0, 2)),
        TypeError,
        "data must be a dense tensor, but came as a torch.sparse_coo one: "
        "convert it with to_dense, or pack sequences along time and pass cu_seqlens.",
    ),
    "gates in a list": (
        lambda: _scan(gates=[1.0]),
        TypeError,
        "gates must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "tokens in a list": (
        lambda: _scan(tokens=[1.0]),
        TypeError,
        "tokens must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "integer gates": (
        lambda: _scan(gates=torch.ones(2, 3, 10, dtype=torch.int64)),
        TypeError,
        f"gates must be {DTYPES}, but came as torch.int64: convert it, for example with gates.float().",
    ),
    "boolean tokens": (
        lambda: _scan(tokens=torch.ones(2, 3, 10, dtype=torch.bool)),
        TypeError,
        f"tokens must be {DTYPES}, but came as torch.bool: convert it, for example with tokens.float().",
    ),
    "8-bit tokens": (
        lambda: _scan(tokens=torch.ones(2, 3, 10).to(torch.float8_e4m3fn)),
        TypeError,
        f"tokens must be {DTYPES}, but came as torch.float8_e4m3fn: convert it, for example with tokens.float().",
    ),
    "another axis": (
        lambda: _scan(dim=0),
        ValueError,
        "dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as 0: "
        "move the time axis there, for example with tokens.movedim(0, -1).",
    ),
    "a direction from a configuration file": (
        lambda: linear_scan(torch.ones(3), torch.ones(3), reverse="false"),
        TypeError,
        "reverse must be True or False, but came as 'false': pass reverse=True or reverse=False.",
    ),
    "logarithms or not": (
        lambda: linear_scan(torch.ones(3), torch.ones(3), log_gates=None),
        TypeError,
        "log_gates must be True or False, but came as None: pass log_gates=True or log_gates=False.",
    ),
    "the last axis counted from the front": (
        lambda: _scan(dim=2),
        ValueError,
        "dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as 2: "
        "move the time axis there, for example with tokens.movedim(2, -1).",
    ),
    "scalars": (
        lambda: _scan(torch.tensor(1.0), torch.tensor(1.0)),
        ValueError,
        "tokens must have at least one axis for dim=-1, but came with shape (): "
        "add the missing axes with tokens.unsqueeze.",
    ),
    "no channels axis": (
        lambda: _scan(torch.ones(4), torch.ones(4), dim=-2),
        ValueError,
        "tokens must have at least two axes for dim=-2, but came with shape (4,): "
        "add the missing axes with tokens.unsqueeze.",
    ),
    "gates of another shape": (
        lambda: _scan(gates=torch.ones(3, 1)),
        ValueError,
        "gates and tokens must have the same shape, but came as (3, 1) and (2, 3, 10): "
        "broadcast one with gates.expand_as(tokens) or tokens.expand_as(gates), which copies nothing.",
    ),
    "gates on another device": (
        lambda: _scan(gates=torch.ones(2, 3, 10, device="meta")),
        ValueError,
        "gates and tokens must be on the same device, but are on meta and cpu: move one with gates.to(tokens.device).",
    ),
    "initial state as a number": (
        lambda: _scan(initial_state=0.0),
        TypeError,
        "initial_state must be a torch.Tensor or None, but came as float: convert it with torch.as_tensor.",
    ),
    "integer initial state": (
        lambda: _scan(initial_state=torch.ones(2, 3, dtype=torch.int32)),
        TypeError,
        f"initial_state must be {DTYPES}, but came as torch.int32: convert it, for example with initial_state.float().",
    ),
    "complex initial state of a real scan": (
        lambda: _scan(initial_state=torch.ones(2, 3, dtype=torch.complex64)),
        TypeError,
        "initial_state must be real where gates and tokens are, but came as torch.complex64: "
        "make tokens complex to carry a complex state.",
    ),
    "initial state with a time axis": (
        lambda: _scan(initial_state=torch.ones(2, 3, 1)),
        ValueError,
        "initial_state must have the shape of tokens without the time axis, (2, 3), but came as (2, 3, 1): "
        "expand or reshape it to that shape.",
    ),
    "initial state of another layout": (
        lambda: _scan(initial_state=torch.ones(2, 3), dim=-2),
        ValueError,
        "initial_state must have the shape of tokens without the time axis, (2, 10), but came as (2, 3): "
        "expand or reshape it to that shape.",
    ),
    "one initial state for two sequences": (
        lambda: _scan(initial_state=torch.ones(2, 3), cu_seqlens=_offsets(0, 4, 9)),
        ValueError,
        "initial_state must have the shape of tokens without the time axis and with the number of sequences in "
        "front, (2, 2, 3), but came as (2, 3): expand or reshape it to that shape.",
    ),
    "initial state on another device": (
        lambda: _scan(initial_state=torch.ones(2, 3, device="meta")),
        ValueError,
        "initial_state must be on the device of tokens, cpu, but is on meta: "
        "move it with initial_state.to(tokens.device).",
    ),
    "offsets in a list": (
        lambda: _scan(cu_seqlens=[0, 10]),
        TypeError,
        "cu_seqlens must be a torch.Tensor of int32 or int64, but came as list: "
        "convert it with torch.tensor(cu_seqlens, dtype=torch.int32, device=tokens.device).",
    ),
    "floating offsets": (
        lambda: _scan(cu_seqlens=torch.tensor([0.0, 10.0])),
        TypeError,
        "cu_seqlens must be int32 or int64, but came as torch.float32: convert it with cu_seqlens.int().",
    ),
    "short offsets": (
        lambda: _scan(cu_seqlens=_offsets(0, 10, dtype=torch.int16)),
        TypeError,
        "cu_seqlens must be int32 or int64, but came as torch.int16: convert it with cu_seqlens.int().",
    ),
    "offsets in two axes": (
        lambda: _scan(cu_seqlens=_offsets(0, 10).unsqueeze(0)),
        ValueError,
        "cu_seqlens must have one axis of N + 1 entries, at least the leading 0, but came with shape (1, 2): "
        "pass the cumulative lengths of the N sequences as one vector.",
    ),
    "no offsets": (
        lambda: _scan(cu_seqlens=_offsets()),
        ValueError,
        "cu_seqlens must have one axis of N + 1 entries, at least the leading 0, but came with shape (0,): "
        "pass the cumulative lengths of the N sequences as one vector.",
    ),
    "offsets on another device": (
        lambda: _scan(cu_seqlens=torch.zeros(2, dtype=torch.int32, device="meta")),
        ValueError,
        "cu_seqlens must be on the device of tokens, cpu, but is on meta: move it with cu_seqlens.to(tokens.device).",
    ),
    "offsets without the leading 0": (
        lambda: _scan(cu_seqlens=_offsets(5, 10)),
        ValueError,
        "cu_seqlens must start with 0, but starts with 5: put a 0 in front of the cumulative lengths.",
    ),
    "offsets that decrease": (
        lambda: _scan(cu_seqlens=_offsets(0, 7, 4, 10)),
        ValueError,
        "cu_seqlens must not decrease, but goes from 7 to 4 at entry 2: "
        "build it from the lengths with lengths_to_cu_seqlens.",
    ),
    "offsets past the end": (
        lambda: _scan(cu_seqlens=_offsets(0, 4, 11)),
        ValueError,
        "cu_seqlens must end within the time axis of 10 steps, but ends at 11: "
        "pass tokens that hold every packed step, or shorten the last sequences.",
    ),
    "offsets past the end of channels last": (
        lambda: _scan(dim=-2, cu_seqlens=_offsets(0, 4)),
        ValueError,
        "cu_seqlens must end within the time axis of 3 steps, but ends at 4: "
        "pass tokens that hold every packed step, or shorten the last sequences.",
    ),
    "check_offsets: a list": (
        lambda: checks.check_offsets([0, 3], 3),  # type: ignore[arg-type]
        TypeError,
        "cu_seqlens must be a torch.Tensor of int32 or int64, but came as list: "
        "convert it with torch.tensor(cu_seqlens, dtype=torch.int32, device=tokens.device).",
    ),
    "check_offsets: past the end": (
        lambda: checks.check_offsets(_offsets(0, 4), 3),
        ValueError,
        "cu_seqlens must end within the time axis of 3 steps, but ends at 4: "
        "pass tokens that hold every packed step, or shorten the last sequences.",
    ),
    "check_offsets: a total in words": (
        lambda: checks.check_offsets(_offsets(0, 4), "4"),  # type: ignore[arg-type]
        ValueError,
        "total must be an int of at least 0, but came as '4': count it before the call.",
    ),
    "no steps in a chunk": (
        lambda: get_grid(2, 10, 0, 3),
        ValueError,
        "chunk_size must be an int of at least 1, but came as 0: count it before the call.",
    ),
    "half a step": (
        lambda: get_static_grid(10.5, 4, 3),  # type: ignore[arg-type]
        ValueError,
        "max_seqlen must be an int of at least 0, but came as 10.5: count it before the call.",
    ),
    "offsets without an entry": (
        lambda: get_grid(0, 4, 3, 3),
        ValueError,
        "no_seq must be an int of at least 1, but came as 0: count it before the call.",
    ),
    "a power of half": (
        lambda: next_power_of_2(1.5),  # type: ignore[arg-type]
        ValueError,
        "n must be an int of at least 0, but came as 1.5: count it before the call.",
    ),
    "a dim that only equals": (
        lambda: _scan(dim=-1.0),
        ValueError,
        "dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as -1.0: "
        "pass one of the two.",
    ),
    "sparse gates": (
        lambda: _scan(gates=torch.ones(ROWS, CHANNELS, TIME).to_sparse()),
        TypeError,
        "gates must be a dense tensor, but came as a torch.sparse_coo one: convert it with to_dense, or pack sequences "
        "along time and pass cu_seqlens.",
    ),
    "a list for parallel_scan": (
        lambda: parallel_scan([1.0], torch.ones(1, 1, 1)),  # type: ignore[arg-type]
        TypeError,
        "a must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "a list as h0": (
        lambda: parallel_scan(torch.ones(1, 1, 1), torch.ones(1, 1, 1), [0.0]),  # type: ignore[arg-type]
        TypeError,
        "h0 must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "a grid of less than nothing": (
        lambda: _seed({"grid": (2, -5, 3)}),
        ValueError,
        "grid must be (chunks, C) or (N, chunks, C) in integers, but came as (2, -5, 3): "
        "build it with get_grid or get_static_grid, or leave it out.",
    ),
    "check_offsets: longer than declared": (
        lambda: checks.check_offsets(_offsets(0, 2, 6), 6, longest=3),
        ValueError,
        "the longest sequence has 4 steps, but at most 3 were declared: declare the true maximum, or none.",
    ),
    "lengths in floating point": (
        lambda: lengths_to_cu_seqlens(torch.tensor([1.0])),
        TypeError,
        "lengths must be int32 or int64, but came as torch.float32: convert them with lengths.long().",
    ),
    "lengths in two axes": (
        lambda: lengths_to_cu_seqlens(torch.tensor([[1, 2]])),
        ValueError,
        "lengths must have one axis, [N], but came with shape (1, 2): flatten them with lengths.flatten().",
    ),
    "a negative length": (
        lambda: lengths_to_cu_seqlens([3, -1]),
        ValueError,
        "lengths must not be negative, but hold -1: use 0 for an empty sequence.",
    ),
    "lengths from floating offsets": (
        lambda: cu_seqlens_to_lengths(torch.tensor([0.0])),
        TypeError,
        "cu_seqlens must be int32 or int64, but came as torch.float32: convert it with cu_seqlens.int().",
    ),
    "shift_pad: a list": (
        lambda: shift_pad([1.0], _offsets(0, 1)),  # type: ignore[arg-type]
        TypeError,
        "data must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "shift_pad: a scalar": (
        lambda: shift_pad(torch.tensor(1.0), _offsets(0, 1)),
        ValueError,
        "data must have a time axis, [..., T], but came with shape (): add axes with data.reshape(1, -1).",
    ),
    "shift_pad: offsets on another device": (
        lambda: shift_pad(torch.ones(1, 2), torch.zeros(2, dtype=torch.int64, device="meta")),
        ValueError,
        "cu_seqlens must be on the device of data, cpu, but is on meta: move it with cu_seqlens.to(data.device).",
    ),
    "shift_pad: offsets past the end": (
        lambda: shift_pad(torch.ones(1, 2), _offsets(0, 3)),
        ValueError,
        "cu_seqlens must end within the time axis of 2 steps, but ends at 3: "
        "pass tokens that hold every packed step, or shorten the last sequences.",
    ),
    "parallel_scan: two axes": (
        lambda: parallel_scan(torch.ones(2, 3), torch.ones(2, 3)),
        ValueError,
        "a must have three axes, (batch, length, dim), but came with shape (2, 3): add or flatten axes with a.reshape.",
    ),
    "parallel_scan: integers": (
        lambda: parallel_scan(torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.int64)),
        TypeError,
        f"b must be {DTYPES}, but came as torch.int64: convert it, for example with b.float().",
    ),
    "parallel_scan: another initial shape": (
        lambda: parallel_scan(torch.ones(1, 2, 3), torch.ones(1, 2, 3), torch.ones(3)),
        ValueError,
        "h0 must have the shape (batch, dim), (1, 3), but came as (3,): expand or reshape it to that shape.",
    ),
    "parallel_scan: initial state on another device": (
        lambda: parallel_scan(torch.ones(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 3, device="meta")),
        ValueError,
        "h0 must be on the device of b, cpu, but is on meta: move it with h0.to(b.device).",
    ),
    "blelloch_scan: other shapes": (
        lambda: blelloch_scan(torch.ones(1, 2, 3), torch.ones(1, 2, 4)),
        ValueError,
        "gates and tokens must have the same shape, but came as (1, 2, 3) and (1, 2, 4): "
        "broadcast one with gates.expand_as(tokens).",
    ),
    "blelloch_scan: another device": (
        lambda: blelloch_scan(torch.ones(1, 2, 3, device="meta"), torch.ones(1, 2, 3)),
        ValueError,
        "gates and tokens must be on the same device, but are on meta and cpu: move one with gates.to(tokens.device).",
    ),
    "branches of other shapes": (
        lambda: checks.branches(torch.ones(2, 3), torch.ones(2, 4), None),
        ValueError,
        "both branches must have the same shape and device, but came as (2, 3) on cpu and (2, 4) on cpu: "
        "scan them apart with linear_scan.",
    ),
    "branches on other devices": (
        lambda: checks.branches(torch.ones(2, 3), torch.ones(2, 3, device="meta"), None),
        ValueError,
        "both branches must have the same shape and device, but came as (2, 3) on cpu and (2, 3) on meta: "
        "scan them apart with linear_scan.",
    ),
    "an unknown reduction": (
        lambda: checks.branches(torch.ones(2, 3), torch.ones(2, 3), "mean"),
        ValueError,
        'reduce must be None, "sum" or "cat", but came as \'mean\': choose one of the three.',
    ),
    "branches without channels to join": (
        lambda: checks.branches(torch.ones(3), torch.ones(3), "cat"),
        ValueError,
        'reduce="cat" must have a channel axis to join along, but tokens came with shape (3,): '
        "add one with tokens.unsqueeze(0).",
    ),
    "sequential_scan: another axis": (
        lambda: sequential_scan(torch.ones(1, 2, 3), torch.ones(1, 2, 3), dim=1),
        ValueError,
        "dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as 1: "
        "move the time axis there, for example with tokens.movedim(1, -1).",
    ),
}


def _seed(args: Any, tokens: Tensor | None = None) -> Tensor | None:
    tokens = torch.ones(CHANNELS, TIME) if tokens is None else tokens
    return checks.seed_arguments(args, torch.ones_like(tokens), tokens)


SEED_COMPLAINTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "args as a tensor": (
        lambda: _seed(_offsets(0, 10)),
        TypeError,
        "args must be a dict with the keys cu_seqlens, chunk_size and grid, but came as Tensor: "
        'pass {"cu_seqlens": cu_seqlens} or leave args out.',
    ),
    "tokens in a list": (
        lambda: checks.seed_arguments({"cu_seqlens": _offsets(0, 1)}, torch.ones(1), [1.0]),  # type: ignore[arg-type]
        TypeError,
        "tokens must be a torch.Tensor, but came as list: convert it with torch.as_tensor.",
    ),
    "scalar tokens": (
        lambda: _seed({"chunk_size": 4, "grid": (1, 1)}, torch.tensor(1.0)),
        ValueError,
        "tokens must have at least one axis for dim=-1, but came with shape (): "
        "add the missing axes with tokens.unsqueeze.",
    ),
    "an unknown key": (
        lambda: _seed({"cu_seqlens": _offsets(0, 10), "chunks": 4}),
        ValueError,
        "args may hold cu_seqlens, chunk_size and grid, but holds 'chunks': remove or rename that entry.",
    ),
    "offsets in a list": (
        lambda: _seed({"cu_seqlens": [0, 10]}),
        TypeError,
        "cu_seqlens must be a torch.Tensor of int32 or int64, but came as list: "
        "convert it with torch.tensor(cu_seqlens, dtype=torch.int32, device=tokens.device).",
    ),
    "no chunk": (
        lambda: _seed({"chunk_size": 0}),
        ValueError,
        "chunk_size must be a positive int, but came as 0: pass for example 128.",
    ),
    "a grid function": (
        lambda: _seed({"grid": (1, 2, 3, 4)}),
        ValueError,
        "grid must be (chunks, C) or (N, chunks, C) in integers, but came as (1, 2, 3, 4): "
        "build it with get_grid or get_static_grid, or leave it out.",
    ),
    "other channels": (
        lambda: _seed({"grid": (1, 1, 4)}),
        ValueError,
        "the last entry of grid must be the number of channels, 3, but came as 4: "
        "pass no_channels=gates.shape[-2] to get_grid, or leave grid out.",
    ),
    "other channels in a static grid": (
        lambda: _seed({"grid": (1, 4)}),
        ValueError,
        "the last entry of grid must be the number of channels, 3, but came as 4: "
        "pass no_channels=gates.shape[-2] to get_grid, or leave grid out.",
    ),
    "other sequences": (
        lambda: _seed({"cu_seqlens": _offsets(0, 4, 10), "grid": (1, 1, 3)}),
        ValueError,
        "the first entry of grid must be the number of sequences, 2, but came as 1: "
        "pass no_seq=len(cu_seqlens) to get_grid, or leave grid out.",
    ),
    "a sequence longer than declared": (
        lambda: _seed({"cu_seqlens": _offsets(0, 1, 10), "chunk_size": 4, "grid": (2, 2, 3)}),
        ValueError,
        "the longest sequence has 9 steps, but at most 8 were declared: declare the true maximum, or none.",
    ),
    "one sequence longer than declared": (
        lambda: _seed({"chunk_size": 4, "grid": (2, 3)}),
        ValueError,
        "the longest sequence has 10 steps, but at most 8 were declared: declare the true maximum, or none.",
    ),
    "offsets past the end": (
        lambda: _seed({"cu_seqlens": _offsets(0, 11), "chunk_size": 128, "grid": (1, 1, 3)}),
        ValueError,
        "cu_seqlens must end within the time axis of 10 steps, but ends at 11: "
        "pass tokens that hold every packed step, or shorten the last sequences.",
    ),
}


@pytest.mark.parametrize("what", [*COMPLAINTS, *(f"args: {what}" for what in SEED_COMPLAINTS)])
def test_complaint(what: str) -> None:
    call, kind, sentence = SEED_COMPLAINTS[what[6:]] if what.startswith("args: ") else COMPLAINTS[what]
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == sentence


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("values", [[0], [0, 0], [0, 10], [0, 0, 4, 4, 10], [0, 3], [0, 10, 10]], ids=str)
def test_offsets_that_are_allowed(values: list[int], dtype: torch.dtype) -> None:
    cu_seqlens = torch.tensor(values, dtype=dtype)
    _scan(cu_seqlens=cu_seqlens, initial_state=torch.ones(len(values) - 1, ROWS, CHANNELS))
    longest = max((b - a for a, b in pairwise(values)), default=0)
    checks.check_offsets(cu_seqlens, TIME, longest=longest)


@pytest.mark.parametrize("dtype", sorted(checks._DTYPES, key=str), ids=str)
def test_dtypes_that_are_allowed(dtype: torch.dtype) -> None:
    _scan(gates=torch.ones(ROWS, CHANNELS, TIME, dtype=dtype))
    _scan(tokens=torch.ones(ROWS, CHANNELS, TIME, dtype=dtype), initial_state=torch.ones(ROWS, CHANNELS, dtype=dtype))


def test_branches_that_are_allowed() -> None:
    for reduce in (None, "sum", "cat"):
        checks.branches(torch.ones(2, 3), torch.ones(2, 3), reduce)
    checks.branches(torch.ones(3), torch.ones(3), "sum")


def test_shapes_that_are_allowed() -> None:
    _scan(torch.ones(4), torch.ones(4), torch.tensor(1.0))
    _scan(torch.ones(4, 2), torch.ones(4, 2), torch.ones(2), dim=-2)
    _scan(torch.ones(0, 4), torch.ones(0, 4), torch.ones(0))
    _scan(torch.ones(3, 0), torch.ones(3, 0), torch.ones(3), cu_seqlens=None)
    _scan(torch.ones(3, 1).expand(3, 4), torch.ones(3, 4), torch.ones(1).expand(3))
    _scan(initial_state=torch.ones(ROWS, CHANNELS, dtype=torch.complex64), tokens=torch.ones(2, 3, 10) * 1j)


@pytest.mark.parametrize("cu_seqlens", [None, _offsets(0, 0, 0, 10)], ids=["one", "packed"])
def test_seed_arguments_that_are_allowed(cu_seqlens: Tensor | None) -> None:
    n = 1 if cu_seqlens is None else 3
    grids = (None, get_grid(n + 1, TIME, 4, CHANNELS), (n + 1, 4, CHANNELS), get_static_grid(TIME, 4, CHANNELS))
    for grid in grids:
        for chunk_size in (None, 4, 128):
            args = {"cu_seqlens": cu_seqlens, "chunk_size": chunk_size, "grid": grid}
            assert _seed(args) is cu_seqlens
            assert _seed({key: value for key, value in args.items() if value is not None}) is cu_seqlens
    assert _seed(None) is None
    # Three chunks of three steps count as four: the number of chunks is rounded up to a power of two.
    assert _seed({"cu_seqlens": cu_seqlens, "chunk_size": 3, "grid": (3, CHANNELS)}) is cu_seqlens


def test_grid_may_count_channels_or_rows() -> None:
    for channels in (CHANNELS, ROWS * CHANNELS):
        _seed({"grid": (1, 1, channels)}, torch.ones(ROWS, CHANNELS, TIME))
    _seed({"grid": (1, 1)}, torch.ones(TIME))


BAD = _offsets(5, 3, 99)


def test_offset_values_are_left_alone_on_another_device() -> None:
    tokens = torch.ones(2, 3, 10, device="meta")
    cu_seqlens = BAD.to("meta")
    _scan(tokens, tokens, cu_seqlens=cu_seqlens)
    _seed({"cu_seqlens": cu_seqlens, "chunk_size": 1, "grid": (2, 1, 3)}, tokens)


def test_offset_values_are_left_alone_in_a_trace() -> None:
    with FakeTensorMode() as mode:
        tokens = torch.ones(2, 3, 10)
        _scan(tokens, tokens, cu_seqlens=mode.from_tensor(BAD))

    def scan(tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        _scan(tokens, tokens, cu_seqlens=cu_seqlens)
        checks.seed_arguments({"cu_seqlens": cu_seqlens, "chunk_size": 1, "grid": (2, 1, 3)}, tokens, tokens)
        return tokens + 1

    torch.compile(scan, fullgraph=True, backend="eager")(torch.ones(2, 3, 10), BAD)
    torch.func.vmap(scan)(torch.ones(4, 2, 3, 10), BAD.expand(4, 3))


def test_complaints_survive_compilation() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def scan(gates: Tensor, tokens: Tensor) -> Tensor:
        checks.scan_arguments(gates, tokens, None, -1, None)
        return gates * tokens

    with pytest.raises(Exception, match="gates and tokens must have the same shape"):
        scan(torch.ones(3, 1), torch.ones(3, 4))


@pytest.mark.parametrize(
    ("dtype", "held", "not_held"),
    [
        (torch.bool, (True, 0, 1.0), (5, -1, 0.5, 1j)),
        (torch.uint8, (0, 255.0, True), (-1, 256, float("nan"))),
        (torch.int64, (-(2**63), 2**63 - 1), (2**63, float(2**63), 2**70)),
        (torch.float16, (65504, float("inf"), float("nan")), (1e9, 10**400, 1j)),
        (torch.bfloat16, (3e38,), (1e39,)),
        (torch.float32, (1e-300, -3e38), (1e300, "1")),
        (torch.complex64, (complex(1, float("inf")), 2), (complex(0, 1e39), None)),
    ],
    ids=str,
)
def test_a_pad_is_a_number_that_the_data_hold(
    dtype: torch.dtype, held: tuple[Any, ...], not_held: tuple[Any, ...]
) -> None:
    data = torch.ones(2, 3).to(dtype)
    for value in held:
        shifted = shift_pad(data, _offsets(0, 3), value)
        torch.testing.assert_close(shifted[:, 0], torch.full((2,), value, dtype=dtype), equal_nan=True, rtol=0, atol=0)
    for value in not_held:
        with pytest.raises(TypeError, match=f"^pad_value must be a number that {dtype} holds, but came as "):
            shift_pad(data, _offsets(0, 3), value)
