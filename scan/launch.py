"""The operator on CUDA: allocate outputs, launch a kernel as `configure` says, keep the launch for the next call.

Under `TRITON_INTERPRET=1` the same functions take CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import cpu, tuning
from scan.configure import Axes, Launch, Table, configure, triton_language
from scan.configure import both as configured_both

_UNPACKED = Table()

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


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
    states, final_state, _ = planned_forward(
        gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final
    )
    return states, final_state


def planned_forward(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool,
) -> tuple[Tensor, Tensor | None, Plan | None]:
    """`forward`, and the plan of its launch where one was kept."""
    if is_elsewhere(tokens):
        with torch.cuda.device(tokens.device):
            return planned_forward(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
    table = _UNPACKED if cu_seqlens is None else _table(cu_seqlens, tokens.shape[dim])
    work = _forward_work(gates, tokens, initial_state, cu_seqlens, dim, want_final, table)
    plan = _launch("forward", work, table, dim, reverse, log_gates) if work.tensors[0].numel() else None
    return work.tensors[2], work.states[1], plan  # type: ignore[return-value]


def _forward_work(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    want_final: bool,
    table: Table,
) -> Work:
    gates, tokens = _stored(gates), _stored(tokens)
    states = torch.empty_like(tokens, dtype=cpu.states_dtype(gates.dtype, tokens.dtype))
    accumulate = cpu.accumulation_dtype(gates.dtype, tokens.dtype)
    initial_state = _dense(initial_state, accumulate)
    final_state = None
    if want_final:
        final_state = _states_like(tokens, dim, cu_seqlens, accumulate, initial_state, table)
    return Work((gates, tokens, states), (initial_state, final_state), accumulate)


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
) -> Gradients:
    """Gradients of gates, tokens and the initial state, those that `needs` asks for."""
    gradients, _ = planned_backward(
        gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype, dim, reverse, log_gates, needs
    )
    return gradients


def planned_backward(
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
) -> tuple[Gradients, Plan | None]:
    """`backward`, and the plan of its launch where one was kept."""
    if is_elsewhere(states):
        with torch.cuda.device(states.device):
            return planned_backward(
                gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype,
                dim, reverse, log_gates, needs,
            )  # fmt: skip
    table = _UNPACKED if cu_seqlens is None else _table(cu_seqlens, states.shape[dim])
    work = _backward_work(
        gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype, dim, needs, table
    )
    plan = _launch("backward", work, table, dim, not reverse, log_gates) if _asks(work) else None
    return _gradients(work, initial_state), plan


def _backward_work(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    needs: tuple[bool, bool, bool],
    table: Table,
) -> Work:
    gates = _stored(gates)
    if d_states is not None:
        d_states = _stored(d_states)
    d_gates = torch.empty_like(gates) if needs[0] else None
    d_tokens = torch.empty_like(states, dtype=tokens_dtype) if needs[1] else None
    accumulate = cpu.accumulation_dtype(gates.dtype, states.dtype)
    initial_state, d_final_state = _dense(initial_state, accumulate), _dense(d_final_state, accumulate)
    d_initial = None
    if needs[2] and initial_state is not None:
        d_initial = _states_like(states, dim, cu_seqlens, accumulate, d_final_state, table)
    return Work((gates, states, d_states, d_gates, d_tokens), (initial_state, d_initial, d_final_state), accumulate)


def _asks(work: Work) -> bool:
    """Whether a backward has anything to compute."""
    *_, d_gates, d_tokens = work.tensors
    return work.tensors[0].numel() > 0 and any(t is not None for t in (d_gates, d_tokens, work.states[1]))


def _gradients(work: Work, initial_state: Tensor | None) -> Gradients:
    *_, d_gates, d_tokens = work.tensors
    d_initial = work.states[1]
    if d_initial is not None and initial_state is not None:
        real = d_initial.is_complex() and not initial_state.is_complex()
        d_initial = (d_initial.real if real else d_initial).to(initial_state.dtype)
    return d_gates, d_tokens, d_initial


Inputs = tuple[Tensor, Tensor, Tensor | None]
Both = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Saved = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def forward_both(
    ahead: Inputs, back: Inputs, cu_seqlens: Tensor | None, dim: int, log_gates: bool, want_final: bool
) -> Both:
    """`forward` of gates, tokens and initial state `ahead`, and in reverse of `back`: both states, both final states.

    One launch where the tensors lie alike.
    """
    outputs, _ = planned_forward_both(ahead, back, cu_seqlens, dim, log_gates, want_final)
    return outputs


def planned_forward_both(
    ahead: Inputs, back: Inputs, cu_seqlens: Tensor | None, dim: int, log_gates: bool, want_final: bool
) -> tuple[Both, Plan | None]:
    """`forward_both`, and the plan of its launch where one was kept."""
    if is_elsewhere(ahead[1]):
        with torch.cuda.device(ahead[1].device):
            return planned_forward_both(ahead, back, cu_seqlens, dim, log_gates, want_final)
    table = _UNPACKED if cu_seqlens is None else _table(cu_seqlens, ahead[1].shape[dim])
    work, other = (_forward_work(*branch, cu_seqlens, dim, want_final, table) for branch in (ahead, back))
    plan = None
    if work.tensors[0].numel():
        plan = _launch_both("forward", work, other, table, dim, False, log_gates)
    return (work.tensors[2], other.tensors[2], work.states[1], other.states[1]), plan  # type: ignore[return-value]


def backward_both(
    ahead: Saved,
    back: Saved,
    cu_seqlens: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    log_gates: bool,
    needs: tuple[tuple[bool, bool, bool], tuple[bool, bool, bool]],
) -> tuple[Gradients, Gradients]:
    """Gradients of `forward_both` from gates, states, initial state and both incoming gradients of each direction."""
    gradients, _ = planned_backward_both(ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)
    return gradients


def planned_backward_both(
    ahead: Saved,
    back: Saved,
    cu_seqlens: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    log_gates: bool,
    needs: tuple[tuple[bool, bool, bool], tuple[bool, bool, bool]],
) -> tuple[tuple[Gradients, Gradients], Plan | None]:
    """`backward_both`, and the plan of its launch where one was kept."""
    if is_elsewhere(ahead[1]):
        with torch.cuda.device(ahead[1].device):
            return planned_backward_both(ahead, back, cu_seqlens, tokens_dtype, dim, log_gates, needs)
    table = _UNPACKED if cu_seqlens is None else _table(cu_seqlens, ahead[1].shape[dim])
    work, other = (
        _backward_work(gates, states, initial, cu_seqlens, d_states, d_final, tokens_dtype, dim, asked, table)
        for (gates, states, initial, d_states, d_final), asked in zip((ahead, back), needs, strict=True)
    )
    plan = None
    if _asks(work) and _asks(other):
        plan = _launch_both("backward", work, other, table, dim, True, log_gates)
    elif _asks(work):
        _launch("backward", work, table, dim, True, log_gates)
    elif _asks(other):
        _launch("backward", other, table, dim, False, log_gates)
    return (_gradients(work, ahead[2]), _gradients(other, back[2])), plan


def _launch_both(
    name: str, work: Work, other: Work, table: Table, dim: int, descending: bool, log_gates: bool
) -> Plan | None:
    """`_launch`, and that of `other` in the opposite direction: at once where tensors lie alike and rows are short."""
    of_table = (table.words, table.sequence, table.status, table.cu_seqlens)
    pointers = (*work.tensors, *work.states, *other.tensors, *other.states, *of_table)
    addresses = [None if t is None else t.data_ptr() for t in pointers]
    second = tuple(None if t is None else (t.dtype, t.stride()) for t in (*other.tensors, *other.states))
    key = (_key(f"{name}_both", work, table, dim, descending, log_gates, addresses), second)
    plan = _plans.get(key)
    if plan is not None and plan is not _APART:
        plan(work.tensors[0].get_device(), *addresses)
        return plan
    first = tuple(None if t is None else (t.dtype, t.stride()) for t in (*work.tensors, *work.states))
    if first == second and not work.accumulate.is_complex and plan is None:
        axes = [None if t is None else Axes.of(t, dim) for t in work.tensors]
        made = configure(name, axes, table, dim, descending, log_gates, work.accumulate)
        in_place = all(a is None or a.tensor is t for a, t in zip(axes, work.tensors, strict=True))
        both = configured_both(made, table) if in_place and not made.n_exchanged else None
        if both is not None:
            _run(key, pointers, both)
            return None
        keep(_plans, key, _APART, _MOST_PLANS)
    _launch(name, work, table, dim, descending, log_gates)
    _launch(name, other, table, dim, not descending, log_gates)
    return None


class Work(NamedTuple):
    """What a kernel reads and writes, as its first pointers: with a time axis, gates first, and without."""

    tensors: tuple[Tensor, *tuple[Tensor | None, ...]]
    states: tuple[Tensor | None, ...]
    accumulate: torch.dtype


# A launch that was made before: takes the device's number, then addresses.
Plan = Callable[..., None]


# Launches by everything that decides them but the addresses. Binding the arguments of a jit function anew costs more
# host time than all else in a call.
_plans: dict[Any, Plan] = {}
_MOST_PLANS = 4096
# In place of the plan of a pair of scans: they are two launches.
_APART: Plan = lambda *_: None  # noqa: E731


def keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Keeps a value for later calls; where `most` are kept, those are forgotten first."""
    if len(kept) >= most:
        kept.clear()
    kept[key] = value


def _launch(name: str, work: Work, table: Table, dim: int, descending: bool, log_gates: bool) -> Plan | None:
    """Launches the kernel `name`; returns the plan where the launch was made before."""
    tensors, states, accumulate = work
    pointers = (*tensors, *states, table.words, table.sequence, table.status, table.cu_seqlens)
    addresses = [None if t is None else t.data_ptr() for t in pointers]
    key = _key(name, work, table, dim, descending, log_gates, addresses)
    plan = _plans.get(key)
    if plan is not None:
        plan(tensors[0].get_device(), *addresses)
        return plan
    axes = [None if t is None else Axes.of(t, dim) for t in tensors]
    copies = [None if a is None else a.tensor for a in axes]
    made = configure(name, axes, table, dim, descending, log_gates, accumulate)
    copied = any(a is not t for a, t in zip(copies, tensors, strict=True))
    _run(None if copied else key, tuple(_pairs(t) for t in (*copies, *pointers[len(tensors) :])), made)
    outputs = 2 if name == "forward" else 3
    for copy, tensor in zip(copies[outputs:], tensors[outputs:], strict=True):
        if copy is not None and tensor is not None and copy is not tensor:
            tensor.copy_(copy)
    return None


def _key(
    name: str,
    work: Work,
    table: Table,
    dim: int,
    descending: bool,
    log_gates: bool,
    addresses: list[int | None],
) -> tuple[Any, ...]:
    """What decides a launch.

    All tensors have one shape; states and tables are contiguous and of a size that follows. Of addresses it matters
    whether they are multiples of 16 bytes.
    """
    described = [None if t is None else (t.dtype, t.stride()) for t in work.tensors]
    dtypes = [None if t is None else t.dtype for t in work.states]
    odd = [a for a in addresses if a is not None and a & 15]
    return (
        name, dim, descending, log_gates, work.tensors[0].shape, work.tensors[0].device, *described, *dtypes,
        table.n, table.n_words, table.cu_seqlens is not None and table.cu_seqlens.dtype,
        tuple(a and a & 15 for a in addresses) if odd else None,
    )  # fmt: skip


def _run(key: Any, pointers: tuple[Tensor | None, ...], made: Launch) -> None:
    """Compiles and launches a kernel, and keeps the launch under `key` for the next call of its kind."""
    kernel, grid, arguments, keywords, n_exchanged = made
    if n_exchanged:
        device = next(p.device for p in pointers if p is not None)
        pointers = (*pointers, torch.zeros(n_exchanged, dtype=torch.int64, device=device))
    elif n_exchanged == 0:
        arguments = (None, *arguments)
    try:
        compiled = kernel[grid](*pointers, *arguments, **keywords)
    except RuntimeError as error:
        if "C compiler" not in str(error):
            raise
        raise RuntimeError(
            "expected a C compiler for the first launch of a kernel, but Triton found none: install gcc, or name a "
            "compiler in the environment variable CC."
        ) from error
    # The interpreter compiles nothing.
    if key is not None and compiled is not None:
        constants = kernel.arg_names[len(pointers) + len(arguments) :]
        behind = (*arguments, *(keywords[c] for c in constants))
        keep(_plans, key, _plan(compiled, grid, behind, n_exchanged or 0), _MOST_PLANS)


def _plan(compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], n_exchanged: int) -> Plan:
    """Launches a compiled kernel with addresses and, behind them, `arguments`.

    Programs that share a row exchange `n_exchanged` words. Triton's own runner calls its chains of hooks and makes what
    they are told, even where no one has put a hook in.
    """
    import triton

    public = compiled[grid]
    runtime = triton.knobs.runtime  # pyright: ignore[reportAttributeAccessIssue]
    direct = triton.__version__.startswith(("3.6.", "3.7."))
    run, function, metadata = (compiled.run, compiled.function, compiled.packed_metadata) if direct else (None,) * 3
    x, y, z = grid

    def plan(device: int, *addresses: int | None) -> None:
        stream = torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0
        exchange = None
        if n_exchanged:
            exchange = torch.zeros(n_exchanged, dtype=torch.int64, device=device if device >= 0 else None)
            addresses = (*addresses, exchange.data_ptr())
        if run is None or runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls:
            public(*addresses, *arguments, stream=stream)
        else:
            run(x, y, z, stream, function, metadata, None, None, None, *addresses, *arguments)

    return plan


def _table(cu_seqlens: Tensor, T: int) -> Table:
    cu_seqlens = cu_seqlens.contiguous()
    n = cu_seqlens.shape[0] - 1
    # One zeroed buffer: the words of first steps, those of last steps, the status, a byte for each 256 steps. Tiles
    # read a little past the end.
    n_words = T // 32 + 8 + tuning.LARGEST_TILE // 32
    n_bytes = T // 256 + 1 + tuning.LARGEST_TILE // 256
    words = torch.zeros(2 * n_words + 2 + -(-n_bytes // 4), dtype=torch.int32, device=cu_seqlens.device)
    sequence = torch.empty(max(T, 1), dtype=torch.int32, device=cu_seqlens.device)
    status = words[2 * n_words : 2 * n_words + 1]
    table = Table(words, sequence, status, cu_seqlens, n, n_words)
    pointers = (cu_seqlens, words, sequence, status)
    addresses = [t.data_ptr() for t in pointers]
    key = ("mark_sequences", T, n, cu_seqlens.dtype, cu_seqlens.device, *[a & 15 for a in addresses])
    plan = _plans.get(key)
    if plan is not None:
        plan(cu_seqlens.get_device(), *addresses)
        return table
    triton_language()
    from scan.kernels.packed_table import mark_sequences

    block = 256
    keywords = {"BLOCK": block, "num_warps": 4}
    _run(key, pointers, Launch(mark_sequences, (-(-(n + 1) // block), 1, 1), (n, T, n_words), keywords))
    return table


def _states_like(
    tokens: Tensor, dim: int, cu_seqlens: Tensor | None, dtype: torch.dtype, start: Tensor | None, table: Table
) -> Tensor:
    """States as empty sequences leave them: `start`, or zeros; NaN where offsets are invalid."""
    shape = list(tokens.shape)
    del shape[dim]
    if cu_seqlens is not None:
        shape.insert(0, table.n)
    if cu_seqlens is None and tokens.shape[dim] > 0:
        return tokens.new_empty(shape, dtype=dtype)
    filled = torch.zeros(shape, dtype=dtype, device=tokens.device) if start is None else start.to(dtype, copy=True)
    if table.status is not None:
        # Its lowest byte; nothing is copied.
        filled.masked_fill_(table.status.view(torch.bool)[:1], float("nan"))
    return filled


def _stored(tensor: Tensor) -> Tensor:
    """The tensor with its values in memory as they read: PyTorch may keep a negation or zeros as a mark only."""
    if is_stored(tensor):
        return tensor
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_neg().resolve_conj()


def is_stored(tensor: Tensor) -> bool:
    """Whether the tensor's values are in memory as they read."""
    return not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())


def _dense(state: Tensor | None, accumulate: torch.dtype) -> Tensor | None:
    """A state as kernels take it: those of complex states take pairs alone."""
    if state is None:
        return None
    return _stored(state.to(accumulate) if accumulate.is_complex else state).contiguous()


def _pairs(tensor: Tensor | None) -> Tensor | None:
    """A tensor as Triton takes it, which knows no complex numbers."""
    return torch.view_as_real(tensor) if tensor is not None and tensor.is_complex() else tensor


def is_elsewhere(tensor: Tensor) -> bool:
    """Whether a tensor is on another GPU than the current one, where kernels would be launched."""
    return tensor.is_cuda and torch._C._cuda_getDevice() != tensor.get_device()
