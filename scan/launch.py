"""The operator on CUDA: allocate outputs, choose a kernel by strides, launch it.

Under `TRITON_INTERPRET=1` the same functions take CPU tensors.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import cpu, tuning

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Axes(NamedTuple):
    """A tensor as `[B, C, T]`: where its elements are, whatever its rank and the place of its time axis."""

    tensor: Tensor
    b: int
    c: int
    t: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> Axes:
        shape, strides = tensor.shape, tensor.stride()
        time = tensor.ndim + dim
        if tensor.ndim == 1:
            return cls(tensor, 0, 0, strides[0])
        channel = tensor.ndim - 1 if dim == -2 else tensor.ndim - 2
        size, b = 1, 0
        for axis in range(tensor.ndim - 3, -1, -1):
            if shape[axis] == 1:
                continue
            if size == 1:
                b = strides[axis]
            elif strides[axis] != b * size:
                return cls.of(tensor.contiguous(), dim)
            size *= shape[axis]
        return cls(tensor, b, strides[channel], strides[time])

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.b, self.c, self.t


class Sizes(NamedTuple):
    """The extents of the recurrence: B * C rows of T steps."""

    B: int
    C: int
    T: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> Sizes:
        T = tensor.shape[dim]
        C = 1 if tensor.ndim == 1 else tensor.shape[-1 if dim == -2 else -2]
        rows = 1
        for axis in range(tensor.ndim - 2):
            rows *= tensor.shape[axis]
        return cls(rows, C, T)

    @property
    def rows(self) -> int:
        return self.B * self.C


class Table(NamedTuple):
    """A packed batch as the kernels read it (kernels/packed_table.py)."""

    words: Tensor | None = None
    sequence: Tensor | None = None
    status: Tensor | None = None
    cu_seqlens: Tensor | None = None
    n: int = 1
    n_words: int = 0


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
    """States, and the final state if wanted."""
    if gates.dtype not in _FLOATING or tokens.dtype not in _FLOATING:
        return cpu.forward(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
    states = torch.empty_like(tokens)
    sizes = Sizes.of(tokens, dim)
    with _device_of(tokens):
        table = _table(cu_seqlens, sizes.T)
        accumulate = _accumulation(gates, tokens)
        if initial_state is not None:
            initial_state = initial_state.contiguous()
        final_state = None
        if want_final:
            final_state = _states_like(tokens, dim, cu_seqlens, accumulate, initial_state, table)
        if states.numel():
            tensors = (gates, tokens, states)
            pointers = (initial_state, final_state)
            _launch("forward", tensors, pointers, table, sizes, dim, reverse, log_gates, accumulate)
    return states, final_state


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
    """Gradients of gates, tokens and the initial state, those that `needs` asks for."""
    if gates.dtype not in _FLOATING or tokens_dtype not in _FLOATING:
        return cpu.backward(
            gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype,
            dim, reverse, log_gates, needs,
        )  # fmt: skip
    d_gates = torch.empty_like(gates) if needs[0] else None
    d_tokens = torch.empty_like(states, dtype=tokens_dtype) if needs[1] else None
    sizes = Sizes.of(states, dim)
    with _device_of(states):
        table = _table(cu_seqlens, sizes.T)
        accumulate = _accumulation(gates, states)
        if initial_state is not None:
            initial_state = initial_state.contiguous()
        if d_final_state is not None:
            d_final_state = d_final_state.contiguous()
        d_initial = None
        if needs[2] and initial_state is not None:
            d_initial = _states_like(states, dim, cu_seqlens, accumulate, d_final_state, table)
        if states.numel() and any(t is not None for t in (d_gates, d_tokens, d_initial)):
            tensors = (gates, states, d_states, d_gates, d_tokens)
            pointers = (initial_state, d_initial, d_final_state)
            _launch("backward", tensors, pointers, table, sizes, dim, not reverse, log_gates, accumulate)
    if d_initial is not None and initial_state is not None:
        d_initial = d_initial.to(initial_state.dtype)
    return d_gates, d_tokens, d_initial


def _launch(
    name: str,
    tensors: tuple[Tensor | None, ...],
    pointers: tuple[Tensor | None, ...],
    table: Table,
    sizes: Sizes,
    dim: int,
    descending: bool,
    log_gates: bool,
    accumulate: torch.dtype,
) -> None:
    """Launches the kernel `name` of the layout that the states have; `tensors` are all `[B, C, T]`, absent ones None."""
    tl = _triton_language()
    axes = [None if t is None else Axes.of(t, dim) for t in tensors]
    states = axes[2] if name == "forward" else axes[1]
    assert states is not None
    arguments: list[Any] = [None if a is None else a.tensor for a in axes]
    arguments += pointers
    arguments += (table.words, table.sequence, table.status, table.cu_seqlens)
    arguments += (sizes.C, sizes.T, sizes.rows, table.n, table.n_words)
    for a in axes:
        arguments += (0, 0, 0) if a is None else a.strides
    constants: dict[str, Any] = {"DESCENDING": descending, "LOG": log_gates}
    constants["STATE"] = tl.float64 if accumulate == torch.float64 else tl.float32
    itemsize = states.tensor.element_size()
    if states.t == 1 or states.c != 1:
        from scan.kernels import time_contiguous as kernels

        packed = table.words is not None
        config = tuning.time_contiguous(sizes.T, itemsize, backward=name == "backward", packed=packed)
        V = config.width
        for label, a in zip(_LABELS[name], axes, strict=True):
            constants[f"{label}_VECTOR"] = a is not None and a.t == 1 and _same_phase(a, states, V)
        even = sizes.T % V == 0 and states.b % V == 0 and states.c % V == 0
        constants |= {"R": config.rows, "N": config.groups, "V": V, "EVEN": even}
        constants["STAGES"] = config.stages
        constants["ONE_TILE"] = sizes.T + (0 if even else V - 1) <= config.groups * V
        constants["FLAT"] = all(a is None or a.b == sizes.C * a.c for a in axes)
        constants["TIME"] = tl.int64 if sizes.T > 2**30 else tl.int32
        grid = (-(-sizes.rows // config.rows),)
    else:
        from scan.kernels import channels_last as kernels

        config = tuning.channels_last(sizes.T, sizes.C, itemsize, backward=name == "backward")
        constants |= {"BT": config.steps, "BC": config.channels}
        grid = (sizes.B * -(-sizes.C // config.channels),)
    options = {"num_warps": config.num_warps, "enable_fp_fusion": True, "maxnreg": config.registers}
    _run(getattr(kernels, name), grid, arguments, constants | options)
    outputs = 2 if name == "forward" else 3
    for a, t in zip(axes[outputs:], tensors[outputs:], strict=True):
        if a is not None and t is not None and a.tensor is not t:
            t.copy_(a.tensor)


def _triton_language() -> ModuleType:
    """Triton's language, imported when a kernel is first launched."""
    try:
        import triton.language
    except ImportError as error:
        raise RuntimeError(
            "expected Triton to scan tensors on a GPU, but it cannot be imported: install the triton that belongs to "
            "this torch, or move the tensors to the CPU."
        ) from error
    return triton.language


def _run(kernel: Any, grid: tuple[int], arguments: list[Any], keywords: dict[str, Any]) -> None:
    try:
        kernel[grid](*arguments, **keywords)
    except RuntimeError as error:
        if "C compiler" not in str(error):
            raise
        raise RuntimeError(
            "expected a C compiler for the first launch of a kernel, but Triton found none: install gcc, or name a "
            "compiler in the environment variable CC."
        ) from error


_LABELS = {
    "forward": ("GATES", "TOKENS", "STATES"),
    "backward": ("GATES", "STATES", "D_STATES", "D_GATES", "D_TOKENS"),
}


def _same_phase(a: Axes, states: Axes, V: int) -> bool:
    """Whether rows of `a` begin as far behind a vector boundary as rows of `states` do."""
    return (a.b - states.b) % V == 0 and (a.c - states.c) % V == 0


def _table(cu_seqlens: Tensor | None, T: int) -> Table:
    if cu_seqlens is None:
        return Table()
    _triton_language()
    from scan.kernels.packed_table import mark_sequences

    cu_seqlens = cu_seqlens.contiguous()
    n = cu_seqlens.numel() - 1
    # One zeroed buffer: the words of first steps, those of last steps, the status. Tiles read a little past the end.
    n_words = T // 32 + 3 + tuning.LARGEST_TILE // 32
    words = torch.zeros(2 * n_words + 1, dtype=torch.int32, device=cu_seqlens.device)
    sequence = torch.empty(max(T, 1), dtype=torch.int32, device=cu_seqlens.device)
    table = Table(words, sequence, words[2 * n_words :], cu_seqlens, n, n_words)
    block = 256
    grid = (-(-(n + 1) // block),)
    arguments = [cu_seqlens, words, sequence, table.status, n, T, n_words]
    _run(mark_sequences, grid, arguments, {"BLOCK": block, "num_warps": 4})
    return table


def _states_like(
    tokens: Tensor, dim: int, cu_seqlens: Tensor | None, dtype: torch.dtype, start: Tensor | None, table: Table
) -> Tensor:
    """A state tensor that holds what an empty sequence leaves there: `start`, or zeros; NaN where offsets are invalid."""
    shape = list(tokens.shape)
    del shape[dim]
    if cu_seqlens is not None:
        shape.insert(0, table.n)
    if cu_seqlens is None and tokens.shape[dim] > 0:
        return torch.empty(shape, dtype=dtype, device=tokens.device)
    filled = torch.zeros(shape, dtype=dtype, device=tokens.device) if start is None else start.to(dtype, copy=True)
    if table.status is not None:
        filled.masked_fill_(table.status.bool(), float("nan"))
    return filled


def _accumulation(gates: Tensor, tokens: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (gates.dtype, tokens.dtype) else torch.float32


def _device_of(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    if tensor.is_cuda and torch.cuda.current_device() != tensor.device.index:
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
