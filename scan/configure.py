"""How a kernel is launched: its grid, constants and options, from where tensors lie and what `tuning` chose."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import tuning


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


class Launch(NamedTuple):
    """A kernel, its grid, its arguments after the pointers, and how many words its programs exchange, if it may."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    n_exchanged: int | None = None


def configure(
    name: str,
    axes: list[Axes | None],
    table: Table,
    dim: int,
    descending: bool,
    log_gates: bool,
    accumulate: torch.dtype,
) -> Launch:
    """How the kernel `name` is launched for the layout that the states have."""
    of_dtype = _configure_complex if accumulate.is_complex else _configure_real
    return of_dtype(name, axes, table, dim, descending, log_gates, accumulate)


def _configure_real(
    name: str,
    axes: list[Axes | None],
    table: Table,
    dim: int,
    descending: bool,
    log_gates: bool,
    accumulate: torch.dtype,
) -> Launch:
    """`configure` where states are real."""
    tl = triton_language()
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
        vector = a is not None and (a.c == 1 if channels_last else a.t == 1 and same_phase(a, states, V))
        constants[f"{label}_VECTOR"] = vector
    even = channels_last or (sizes.T % V == 0 and states.b % V == 0 and states.c % V == 0)
    constants |= {"DESCENDING": descending, "LOG": log_gates, "CHANNELS_LAST": channels_last, "EVEN": even}
    constants["WHOLE"] = even and sizes.T % (config.groups * V) == 0
    constants["EVEN_ROWS"] = (sizes.C if channels_last else sizes.rows) % config.rows == 0
    line = _line(states, sizes, config, even, constants["WHOLE"])
    constants |= {"LINE": line, "ONE_TILE": sizes.T + line - 1 <= config.groups * V}
    constants["FLAT"] = sizes.B == 1 or all(a is None or a.b == sizes.C * a.c for a in axes)
    constants |= {"WINDOW": config.window, "RUN": config.run}
    # Of several warps the totals of strips pass through shared memory once a lane. Of several rows Triton before 3.7
    # gives strips another layout, which costs more than they save; of packed rows a program walks they are no faster.
    # Where resets or many steps of 16 bits crowd the registers of rows that programs share, strips trade places.
    one_row = config.num_warps == config.rows == 1 and not channels_last
    packed = table.words is not None
    crowded = config.window > 0 and (packed or (itemsize == 2 and name == "forward"))
    constants["STRIPS"] = (2 if crowded else 1) if one_row and (not packed or config.window > 0) else 0
    n_exchanged = 0
    if config.window:
        tiles = -(-(sizes.T + line - 1) // (config.groups * V))
        programs *= tiles
        maps = (tiles + -(-tiles // config.window)) * sizes.rows
        n_exchanged = 16 + maps * (2 if accumulate == torch.float64 else 1)
    constants["STATE"] = tl.float64 if accumulate == torch.float64 else tl.float32
    constants["TIME"] = tl.int64 if sizes.T > 2**30 else tl.int32
    return Launch(getattr(entries, name), (programs, 1, 1), arguments, constants | compile_options(config), n_exchanged)


def compile_options(config: tuning.Tile) -> dict[str, Any]:
    """What the compiler is told beside a kernel's constants."""
    options: dict[str, Any] = {"num_warps": config.num_warps, "enable_fp_fusion": True}
    if config.registers is not None and torch.version.hip is None:
        options["maxnreg"] = config.registers
    return options


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


def both(made: Launch, table: Table) -> Launch | None:
    """The launch of the kernel that scans other tensors in the opposite direction too, where that is not slower.

    Rows of one tile are scanned by code for each direction. Where loads run ahead, each would take shared memory of its
    own, and leave room for half the programs: forward has one code for both (kernels/either.py).
    """
    from scan.kernels import either, entries

    keywords = {name: value for name, value in made.keywords.items() if name not in ("WINDOW", "RUN")}
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
    """`configure` where states are complex."""
    tl = triton_language()
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


def triton_language() -> ModuleType:
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
    properties = _properties(tensor)
    return 2**31 if properties is None else properties["max_shared_mem"]


def multiprocessors(tensor: Tensor) -> int:
    """How many that GPU has; Triton's interpreter, which runs one program after another, has none."""
    properties = _properties(tensor)
    return 0 if properties is None else properties["multiprocessor_count"]


def _properties(tensor: Tensor) -> dict[str, int] | None:
    """What Triton knows of the GPU for which a kernel is compiled; None in its interpreter."""
    import triton

    if triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    from triton.runtime.driver import driver

    active: Any = driver.active
    return active.utils.get_device_properties(max(0, tensor.get_device()))


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


def same_phase(a: Axes, states: Axes, V: int) -> bool:
    """Whether rows of `a` begin as far behind a vector boundary as rows of `states` do."""
    return (a.b - states.b) % V == 0 and (a.c - states.c) % V == 0
