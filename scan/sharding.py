"""How the operators act on DTensors: rows are independent, so every axis but time may be sharded, each shard alone.

Imported when a DTensor is first scanned; importing it registers the rules. Gates, tokens, states and their gradients
are sharded alike; states without a time axis follow; offsets are the same on all ranks. What comes sharded along time,
or as partial sums, DTensor redistributes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

Way = tuple[list[Placement | None], list[Placement | None]]


def _ways(rank: int, dim: int, packed: bool) -> Iterator[tuple[Placement, Placement]]:
    """Each way to place tensors with a time axis and, beside them, those without: on one dimension of a mesh."""
    yield Replicate(), Replicate()
    time = rank + dim
    for axis in range(rank):
        if axis != time:
            yield Shard(axis), Shard(axis - int(axis > time) + int(packed))


@register_sharding(torch.ops.linear_scan.scan.default)
def _scan(
    gates: Any,
    tokens: Any,
    initial_state: Any,
    cu_seqlens: Any,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool = True,
) -> list[Way]:
    offsets = None if cu_seqlens is None else Replicate()
    return [
        (
            [rows, state if want_final else Replicate()],
            [rows, rows, None if initial_state is None else state, offsets, None, None, None, None],
        )
        for rows, state in _ways(tokens.ndim, dim, cu_seqlens is not None)
    ]


@register_sharding(torch.ops.linear_scan.scan_backward.default)
def _scan_backward(
    gates: Any,
    states: Any,
    initial_state: Any,
    cu_seqlens: Any,
    d_states: Any,
    d_final_state: Any,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs_gates: bool,
    needs_tokens: bool,
    needs_initial_state: bool,
) -> list[Way]:
    offsets = None if cu_seqlens is None else Replicate()
    ways: list[Way] = []
    for rows, state in _ways(states.ndim, dim, cu_seqlens is not None):
        # A gradient that nothing asks for is an empty tensor.
        gradients: list[Placement | None] = [
            rows if needs_gates else Replicate(),
            rows if needs_tokens else Replicate(),
            state if needs_initial_state and initial_state is not None else Replicate(),
        ]
        arguments: list[Placement | None] = [rows, rows, None if initial_state is None else state, offsets]
        arguments += [None if d_states is None else rows, None if d_final_state is None else state]
        ways.append((gradients, arguments + [None] * 7))
    return ways
