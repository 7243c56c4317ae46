"""The operator on CUDA: allocate outputs, choose a kernel by strides, launch it.

Under `TRITON_INTERPRET=1` the same functions take CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import cpu, tuning


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
        plan.launch(*addresses, device=work.tensors[0].get_device())
        return plan
    first = tuple(None if t is None else (t.dtype, t.stride()) for t in (*work.tensors, *work.states))
    if first == second and not work.accumulate.is_complex and plan is None:
        axes = [None if t is None else Axes.of(t, dim) for t in work.tensors]
        made = _configure(name, axes, table, dim, descending, log_gates, work.accumulate)
        in_place = all(a is None or a.tensor is t for a, t in zip(axes, work.tensors, strict=True))
        both = _both(made, table) if in_place and not made.n_exchanged else None
        if both is not None:
            _run(key, pointers, both)
            return None
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = _APART
    _launch(name, work, table, dim, descending, log_gates)
    _launch(name, other, table, dim, not descending, log_gates)
    return None


class Work(NamedTuple):
    """What a kernel reads and writes, as its first pointers: with a time axis, gates first, and without."""

    tensors: tuple[Tensor, *tuple[Tensor | None, ...]]
    states: tuple[Tensor | None, ...]
    accumulate: torch.dtype


class Plan(NamedTuple):
    """A launch that was made before: a compiled kernel on its grid, and all its arguments but the addresses."""

    runner: Callable[..., None]
    arguments: tuple[Any, ...]
    # Words that programs which share a row exchange.
    n_exchanged: int = 0

    def launch(self, *addresses: int | None, device: int) -> None:
        stream = torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0
        if self.n_exchanged:
            exchange = torch.zeros(self.n_exchanged, dtype=torch.int64, device=device if device >= 0 else None)
            self.runner(stream, *addresses, exchange.data_ptr(), *self.arguments)
        else:
            self.runner(stream, *addresses, *self.arguments)


# Launches by everything that decides them but the addresses. Binding the arguments of a jit function anew costs more
# host time than all else in a call.
_plans: dict[Any, Plan] = {}
_MOST_PLANS = 4096
# In place of the plan of a pair of scans: they are two launches.
_APART = Plan(lambda *_: None, ())


def _launch(name: str, work: Work, table: Table, dim: int, descending: bool, log_gates: bool) -> Plan | None:
    """Launches the kernel `name`; returns the plan where the launch was made before."""
    tensors, states, accumulate = work
    pointers = (*tensors, *states, table.words, table.sequence, table.status, table.cu_seqlens)
    addresses = [None if t is None else t.data_ptr() for t in pointers]
    key = _key(name, work, table, dim, descending, log_gates, addresses)
    plan = _plans.get(key)
    if plan is not None:
        plan.launch(*addresses, device=tensors[0].get_device())
        return plan
    axes = [None if t is None else Axes.of(t, dim) for t in tensors]
    copies = [None if a is None else a.tensor for a in axes]
    configure = _configure_complex if accumulate.is_complex else _configure
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


class Launch(NamedTuple):
    """A kernel, its grid, its arguments after the pointers, and how many words its programs exchange, if it may."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    n_exchanged: int | None = None


def _configure(
    name: str,
    axes: list[Axes | None],
    table: Table,
    dim: int,
    descending: bool,
    log_gates: bool,
    accumulate: torch.dtype,
) -> Launch:
    """How the kernel is launched for the layout that the states have."""
    tl = _triton_language()
    from scan.kernels import entries

    states, sizes, arguments, channels_last = _described(name, axes, table, dim)
    itemsize = states.tensor.element_size()
    known = {"backward": name == "backward", "n_rows": sizes.rows}
    if channels_last:
        config = tuning.channels_last(sizes.T, sizes.C, itemsize, **known)
    else:
        packed = table.words is not None
        config = tuning.time_contiguous(sizes.T, itemsize, packed=packed, n_sequences=table.n, **known)
    loaded = [a.tensor.element_size() for a in axes[: 2 if name == "forward" else 3] if a is not None]
    config = tuning.fitted(config, sum(loaded), _shared_bytes(states.tensor))
    programs = _blocks(sizes, config, channels_last)
    V = config.width
    constants: dict[str, Any] = {"R": config.rows, "N": config.groups, "V": V, "STAGES": config.stages}
    for label, a in zip(_LABELS[name], axes, strict=True):
        vector = a is not None and (a.c == 1 if channels_last else a.t == 1 and _same_phase(a, states, V))
        constants[f"{label}_VECTOR"] = vector
    even = channels_last or (sizes.T % V == 0 and states.b % V == 0 and states.c % V == 0)
    constants |= {"DESCENDING": descending, "LOG": log_gates, "CHANNELS_LAST": channels_last, "EVEN": even}
    constants["WHOLE"] = even and sizes.T % (config.groups * V) == 0
    constants["EVEN_ROWS"] = (sizes.C if channels_last else sizes.rows) % config.rows == 0
    line = _line(states, sizes, config, even, constants["WHOLE"])
    constants |= {"LINE": line, "ONE_TILE": sizes.T + line - 1 <= config.groups * V}
    constants["FLAT"] = sizes.B == 1 or all(a is None or a.b == sizes.C * a.c for a in axes)
    constants["WINDOW"] = config.window
    n_exchanged = 0
    if config.window:
        tiles = -(-(sizes.T + line - 1) // (config.groups * V))
        programs *= tiles
        maps = (tiles + -(-tiles // config.window)) * sizes.rows
        n_exchanged = 16 + 2 * maps * (2 if accumulate == torch.float64 else 1)
    constants["STATE"] = tl.float64 if accumulate == torch.float64 else tl.float32
    constants["TIME"] = tl.int64 if sizes.T > 2**30 else tl.int32
    options: dict[str, Any] = {"num_warps": config.num_warps, "enable_fp_fusion": True}
    if config.registers is not None and torch.version.hip is None:
        options["maxnreg"] = config.registers
    return Launch(getattr(entries, name), (programs, 1, 1), arguments, constants | options, n_exchanged)


def _described(name: str, axes: list[Axes | None], table: Table, dim: int) -> tuple[Axes, Sizes, tuple[int, ...], bool]:
    """The states, the sizes, a kernel's arguments after the pointers, and whether channels are last."""
    states = axes[2 if name == "forward" else 1]
    assert states is not None
    sizes = Sizes.of(states.tensor, dim)
    strides = [stride for a in axes for stride in ((0, 0, 0) if a is None else a.strides)]
    arguments = (sizes.C, sizes.T, sizes.rows, table.n, table.n_words, *strides)
    return states, sizes, arguments, states.t != 1 and states.c == 1


def _blocks(sizes: Sizes, config: tuning.Tile, channels_last: bool) -> int:
    """How many blocks of rows there are: where channels are last, a block is of one batch entry."""
    if channels_last:
        return sizes.B * -(-sizes.C // config.rows)
    return -(-sizes.rows // config.rows)


def _both(made: Launch, table: Table) -> Launch | None:
    """The launch of the kernel that scans other tensors in the opposite direction too, where that is not slower.

    Rows of one tile are scanned by code for each direction. Where loads run ahead, each would take shared memory of its
    own, and leave room for half the programs: forward has one code for both (kernels/either.py).
    """
    from scan.kernels import either, entries

    keywords = {name: value for name, value in made.keywords.items() if name != "WINDOW"}
    forward = made.kernel is entries.forward
    kernel = entries.forward_both if forward else entries.backward_both
    if not keywords["ONE_TILE"]:
        if not forward or keywords["CHANNELS_LAST"] or not keywords["EVEN"] or table.words is not None:
            return None
        kernel, keywords["STAGES"] = either.forward_either, max(3, keywords["STAGES"])
    return Launch(kernel, (2 * made.grid[0], 1, 1), made.arguments, keywords)


def _configure_complex(
    name: str,
    axes: list[Axes | None],
    table: Table,
    dim: int,
    descending: bool,
    log_gates: bool,
    accumulate: torch.dtype,
) -> Launch:
    """`_configure` where states are complex."""
    tl = _triton_language()
    from scan.kernels import complex as kernels

    states, sizes, arguments, channels_last = _described(name, axes, table, dim)
    itemsize = states.tensor.element_size()
    if channels_last:
        config = tuning.complex_channels_last(sizes.T, itemsize)
    else:
        packed = table.words is not None
        config = tuning.complex_time_contiguous(sizes.T, itemsize, packed=packed)
    programs = _blocks(sizes, config, channels_last)
    V = config.width

    def move(a: Axes | None, shifted: bool = False) -> str:
        if a is not None and channels_last and a.c == 1:
            return "channels"
        whole = a is not None and a.t == 1 and not (shifted or sizes.T % V or a.b % V or a.c % V)
        return "groups" if whole else "steps"

    labels = dict(zip(_LABELS[name], axes, strict=True))
    moves = {label: move(a) for label, a in labels.items()}
    if name == "backward":
        moves |= {"STATES": move(states, shifted=True), "MET_GATES": move(labels["GATES"], shifted=True)}
    constants: dict[str, Any] = {"R": config.rows, "N": config.groups, "V": V, "STAGES": config.stages}
    constants |= {"DESCENDING": descending, "LOG": log_gates, "CHANNELS_LAST": channels_last}
    constants |= {f"{label}_MOVE": how for label, how in moves.items()}
    for label in ("GATES", "TOKENS" if name == "forward" else "D_TOKENS"):
        a = labels[label]
        constants[f"{label}_PARTS"] = 2 if a is not None and a.tensor.is_complex() else 1
    constants["STATE"] = tl.float64 if accumulate == torch.complex128 else tl.float32
    constants["TIME"] = tl.int64 if sizes.T > 2**30 else tl.int32
    options = {"num_warps": config.num_warps, "enable_fp_fusion": True}
    return Launch(getattr(kernels, name), (programs, 1, 1), arguments, constants | options)


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
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        constants = kernel.arg_names[len(pointers) + len(arguments) :]
        _plans[key] = Plan(_runner(compiled, grid), (*arguments, *(keywords[c] for c in constants)), n_exchanged or 0)


def _runner(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., None]:
    """Launches a compiled kernel: takes the stream, then the kernel's arguments.

    Triton's own runner calls its chains of hooks and makes what they are told, even where no one has put a hook in.
    """
    import triton

    public = compiled[grid]
    if not triton.__version__.startswith(("3.6.", "3.7.")):
        return lambda stream, *arguments: public(*arguments, stream=stream)
    runtime = triton.knobs.runtime  # pyright: ignore[reportAttributeAccessIssue]
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def runner(stream: int, *arguments: Any) -> None:
        if runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls:
            public(*arguments, stream=stream)
        else:
            run(*grid, stream, function, metadata, None, None, None, *arguments)

    return runner


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


def _shared_bytes(tensor: Tensor) -> int:
    """Bytes of shared memory that a program may have on the GPU for which a kernel is compiled."""
    import triton

    if triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        return 2**31
    from triton.runtime.driver import driver

    active: Any = driver.active
    return active.utils.get_device_properties(max(0, tensor.get_device()))["max_shared_mem"]


_LABELS = {
    "forward": ("GATES", "TOKENS", "STATES"),
    "backward": ("GATES", "STATES", "D_STATES", "D_GATES", "D_TOKENS"),
}


def _line(states: Axes, sizes: Sizes, config: tuning.Tile, even: bool, whole: bool) -> int:
    """From multiples of how many steps in memory the groups of a row are counted; 1: from the beginning of the row.

    Counted from a boundary of 128 bytes, a warp's accesses to rows that begin anywhere meet whole lines.
    """
    V = config.width
    line = max(V, 128 // states.tensor.element_size())
    if whole or (even and (states.t != 1 or (states.b % line == 0 and states.c % line == 0))):
        return 1
    if sizes.T + V - 1 <= config.groups * V:
        return 1 if even else V
    return line


def _same_phase(a: Axes, states: Axes, V: int) -> bool:
    """Whether rows of `a` begin as far behind a vector boundary as rows of `states` do."""
    return (a.b - states.b) % V == 0 and (a.c - states.c) % V == 0


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
        plan.launch(*addresses, device=cu_seqlens.get_device())
        return table
    _triton_language()
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
