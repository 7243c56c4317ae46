"""The linear scan and its gradient in plain PyTorch: a loop over time on blocks that hold time first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from scan.checks import offset_values

# Elements of a block of time steps: large enough to hide the cost of a copy, small enough to stay in cache.
_BLOCK_ELEMENTS = 3 * 2**18
_MIN_BLOCK_STEPS, _MAX_BLOCK_STEPS = 16, 1024
# Rows of a tile are kept this many elements apart: rows at a distance of a power of two compete for a few cache lines.
_TILE_GAP = 16
# A plain float32 sum of 2**20 terms is wrong by 2e-5: beyond this length the state is carried in double precision.
_LONGEST_IN_SINGLE = 2**15


def states_dtype(gates: torch.dtype, tokens: torch.dtype) -> torch.dtype:
    """The dtype of the states: that of the tokens, unless complex gates make real tokens complex."""
    return torch.promote_types(gates, tokens) if gates.is_complex else tokens


def accumulation_dtype(gates: torch.dtype, tokens: torch.dtype) -> torch.dtype:
    """The dtype in which the state is carried: float32 or wider, complex where gates or tokens are."""
    return torch.promote_types(torch.promote_types(gates, tokens), torch.float32)


def _carried_dtype(dtype: torch.dtype, time: int) -> torch.dtype:
    """The dtype of the loop over time: the accumulation dtype, or double precision for a long time axis."""
    return torch.promote_types(dtype, torch.float64) if time > _LONGEST_IN_SINGLE else dtype


@torch.no_grad()
def forward(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool,
) -> tuple[Tensor, Tensor | None]:
    """States of `h[t] = g[t] * h[t-1] + x[t]`, and the state after the last step of each sequence if wanted."""
    accumulation = accumulation_dtype(gates.dtype, tokens.dtype)
    dtype = _carried_dtype(accumulation, tokens.shape[dim])
    states = torch.empty_like(tokens, dtype=states_dtype(gates.dtype, tokens.dtype))
    offsets = _offsets(cu_seqlens, tokens.shape[dim])
    initial = _state_rows(initial_state, tokens, cu_seqlens, dim, dtype)
    # Contiguous whatever the strides of the initial state, as a traced call expects of all that has no time axis.
    final = initial.clone(memory_format=torch.contiguous_format) if want_final else None

    gate_blocks, token_blocks = _TimeBlocks(gates, dim, dtype), _TimeBlocks(tokens, dim, dtype)
    states_out = states.movedim(dim, 0)
    states_out[offsets[-1] :].zero_()
    state = carry = tokens.new_empty(initial.shape[1:], dtype=dtype)
    for start, stop, parts in _blocks(offsets, gate_blocks.steps, backwards=reverse):
        gate_block = gate_blocks.load(start, stop)
        if log_gates:
            gate_block.exp_()
        # Each state overwrites the token it came from: one buffer less to pull through the cache.
        state_block = token_blocks.load(start, stop)
        gate_rows, state_rows = gate_block.unbind(0), state_block.unbind(0)
        for n, first, last in parts:
            begins, ends = first == offsets[n], last == offsets[n + 1]
            if reverse:
                begins, ends = ends, begins
            if begins:
                state = initial[n]
            for i in _order(first - start, last - start, backwards=reverse):
                state = torch.addcmul(state_rows[i], gate_rows[i], state, out=state_rows[i])
            if ends and final is not None:
                final[n].copy_(state)
        states_out[start:stop].copy_(state_block)
        state = carry.copy_(state)
    if final is not None:
        # A tensor of its own, not a view: an output that is one could not be changed in place.
        final = (final if cu_seqlens is not None else final[0].clone()).to(accumulation)
    return states, final


@torch.no_grad()
def backward(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of gates, tokens and initial_state, those that `needs` asks for.

    With u the gradient that flows into a state from later steps: `dx[t] = d_states[t] + u`, `dg[t] = dx[t] * h[t-1]`
    and then `u = g[t] * dx[t]`, starting from d_final_state and ending as d_initial_state; complex factors conjugated.
    """
    needs_gates, needs_tokens, needs_initial = needs
    dtype = _carried_dtype(accumulation_dtype(gates.dtype, tokens_dtype), states.shape[dim])
    offsets = _offsets(cu_seqlens, states.shape[dim])
    initial = _state_rows(initial_state, states, cu_seqlens, dim, dtype)
    # Row n starts as the gradient of the final state of sequence n and ends as that of its initial state.
    flowing = _state_rows(d_final_state, states, cu_seqlens, dim, dtype).clone(memory_format=torch.contiguous_format)

    d_gates = torch.empty_like(gates) if needs_gates else None
    d_tokens = torch.empty_like(states, dtype=tokens_dtype) if needs_tokens else None
    for gradient in (d_gates, d_tokens):
        if gradient is not None:
            gradient.movedim(dim, 0)[offsets[-1] :].zero_()

    gate_blocks = _TimeBlocks(gates, dim, dtype)
    gradient_blocks = _TimeBlocks(states if d_states is None else d_states, dim, dtype)
    previous_blocks = _TimeBlocks(states, dim, dtype) if needs_gates else None
    for start, stop, parts in _blocks(offsets, gate_blocks.steps, backwards=not reverse):
        gate_block = gate_blocks.load(start, stop)
        if log_gates:
            gate_block.exp_()
        if dtype.is_complex:
            gate_block.imag.neg_()
        # d_tokens replaces d_states in the same buffer.
        gradient_block = gradient_blocks.zeros(start, stop) if d_states is None else gradient_blocks.load(start, stop)
        gate_rows, gradient_rows = gate_block.unbind(0), gradient_block.unbind(0)
        for n, first, last in parts:
            order = _order(first - start, last - start, backwards=not reverse)
            later = order[0]
            gradient_rows[later].add_(flowing[n])
            for i in order[1:]:
                torch.addcmul(gradient_rows[i], gate_rows[later], gradient_rows[later], out=gradient_rows[i])
                later = i
            torch.mul(gate_rows[later], gradient_rows[later], out=flowing[n])
        if d_tokens is not None:
            _store(d_tokens, dim, start, stop, gradient_block)
        if d_gates is not None and previous_blocks is not None:
            previous = previous_blocks.load_previous(start, stop, reverse)
            for n, first, last in parts:
                if reverse and last == offsets[n + 1]:
                    previous[last - 1 - start].copy_(initial[n])
                elif not reverse and first == offsets[n]:
                    previous[first - start].copy_(initial[n])
            if dtype.is_complex:
                previous.imag.neg_()
            previous.mul_(gradient_block)
            if log_gates:
                previous.mul_(gate_block)
            _store(d_gates, dim, start, stop, previous)

    d_initial = None
    if needs_initial and initial_state is not None:
        d_initial = torch.empty_like(initial_state, memory_format=torch.contiguous_format)
        d_initial.copy_(_like(flowing if cu_seqlens is not None else flowing[0], d_initial))
    return d_gates, d_tokens, d_initial


class _TimeBlocks:
    """A tensor read block by block as `[steps, ...]`: time first, contiguous, in the accumulation dtype."""

    def __init__(self, tensor: Tensor, dim: int, dtype: torch.dtype):
        self.view = tensor.movedim(dim, 0)
        time, *self.rest = self.view.shape
        self.row = prod(self.rest)
        fitting = _BLOCK_ELEMENTS // max(1, self.row)
        self.steps = max(1, min(time, max(_MIN_BLOCK_STEPS, min(_MAX_BLOCK_STEPS, fitting))))
        self.buffer = tensor.new_empty(self.steps * self.row, dtype=dtype)
        # Where time runs along memory, copying a tile first and transposing it in cache is five times as fast as
        # gathering elements that lie a whole sequence apart.
        self.tile = None
        if self.view.stride(0) == 1 and self.row > 1:
            self.tile = self.buffer.new_empty(*self.rest, self.steps + _TILE_GAP).movedim(-1, 0)

    def zeros(self, start: int, stop: int) -> Tensor:
        """A block of zeros of the same shape."""
        return self._block(stop - start).zero_()

    def load(self, start: int, stop: int) -> Tensor:
        """The steps from `start` to `stop`; the next load overwrites them."""
        return self._copy(self.view[start:stop], self._block(stop - start))

    def load_previous(self, start: int, stop: int, reverse: bool) -> Tensor:
        """The steps that come just before those from `start` to `stop`; undefined where there is none."""
        block = self._block(stop - start)
        if reverse:
            stop_read = min(stop + 1, self.view.shape[0])
            self._copy(self.view[start + 1 : stop_read], block[: stop_read - start - 1])
        else:
            skip = int(start == 0)
            self._copy(self.view[start - 1 + skip : stop - 1], block[skip:])
        return block

    def _block(self, steps: int) -> Tensor:
        return self.buffer[: steps * self.row].view(steps, *self.rest)

    def _copy(self, source: Tensor, block: Tensor) -> Tensor:
        if self.tile is None:
            return block.copy_(source)
        return block.copy_(self.tile[: source.shape[0]].copy_(source))


def _store(gradient: Tensor, dim: int, start: int, stop: int, block: Tensor) -> None:
    """Write a time-first block into a gradient."""
    gradient.movedim(dim, 0)[start:stop].copy_(_like(block, gradient))


def _like(value: Tensor, gradient: Tensor) -> Tensor:
    """The part of a value that a gradient takes: the real part for a real input, as PyTorch's convention has it."""
    return value.real if value.is_complex() and not gradient.is_complex() else value


def _offsets(cu_seqlens: Tensor | None, time: int) -> list[int]:
    """Offsets of the sequences; an unpacked tensor is one sequence."""
    # Checked here too: under torch.compile the public functions cannot look at values.
    return [0, time] if cu_seqlens is None else offset_values(cu_seqlens, time)


def _state_rows(
    state: Tensor | None, tokens: Tensor, cu_seqlens: Tensor | None, dim: int, dtype: torch.dtype
) -> Tensor:
    """A state per sequence as `[N, ...]` in the accumulation dtype; zeros for None."""
    if state is not None:
        return (state if cu_seqlens is not None else state.unsqueeze(0)).to(dtype)
    sequences = 1 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    rest = tokens.movedim(dim, 0).shape[1:]
    return tokens.new_zeros(rest, dtype=dtype).expand(sequences, *rest)


def _blocks(offsets: list[int], steps: int, backwards: bool) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Blocks `(start, stop, parts)` of time; a part `(n, first, last)` is what the block holds of sequence n."""
    starts = range(0, offsets[-1], steps)
    for start in reversed(starts) if backwards else starts:
        stop = min(start + steps, offsets[-1])
        parts = []
        n = bisect_right(offsets, start) - 1
        while offsets[n] < stop:
            first, last = max(start, offsets[n]), min(stop, offsets[n + 1])
            if first < last:
                parts.append((n, first, last))
            n += 1
        yield start, stop, parts[::-1] if backwards else parts


def _order(first: int, last: int, backwards: bool) -> range:
    """The steps from `first` to `last - 1`, in the order in which they are walked."""
    return range(last - 1, first - 1, -1) if backwards else range(first, last)
