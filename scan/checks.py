"""Every complaint about what a caller passed: what was expected, what came and how to fix it, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf, prod
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128))
_OFFSET_DTYPES = frozenset((torch.int32, torch.int64))
_FILLED_DTYPES = _DTYPES | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_SEED_KEYS = frozenset(("cu_seqlens", "chunk_size", "grid"))
_NAMES = ("gates", "tokens", "initial_state")


def scan_arguments(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    dim: int,
    cu_seqlens: Tensor | None,
    names: tuple[str, str, str] = _NAMES,
    **flags: bool,
) -> None:
    """Raise on anything that a scan cannot honour; reads attributes only, and offset values only on the CPU.

    `names` are those of the three tensors where the caller knows them.
    """
    of_gates, of_tokens, of_state = names
    if not isinstance(gates, Tensor) or not isinstance(tokens, Tensor):
        name, value = (of_tokens, tokens) if isinstance(gates, Tensor) else (of_gates, gates)
        raise TypeError(f"{name} must be a torch.Tensor, but came as {_kind(value)}: convert it with torch.as_tensor.")
    if gates.dtype not in _DTYPES or tokens.dtype not in _DTYPES:
        name, value = (of_gates, gates) if gates.dtype not in _DTYPES else (of_tokens, tokens)
        raise _dtype_error(name, value)
    _dense(of_gates, gates)
    _dense(of_tokens, tokens)
    _untraced("scans")
    if type(dim) is not int or (dim != -1 and dim != -2):
        advice = f"move the time axis there, for example with {of_tokens}.movedim({dim}, -1)"
        raise ValueError(
            f"dim must be -1 (time last, [..., T]) or -2 (time before channels, [..., T, C]), but came as {dim}: "
            f"{advice if type(dim) is int else 'pass one of the two'}."
        )
    for name, value in flags.items():
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, but came as {value!r}: pass {name}=True or {name}=False.")
    shape, device = tokens.shape, tokens.device
    if len(shape) < -dim:
        raise ValueError(
            f"{of_tokens} must have at least {'one axis' if dim == -1 else 'two axes'} for dim={dim}, but came with "
            f"shape {tuple(shape)}: add the missing axes with {of_tokens}.unsqueeze."
        )
    if gates.shape != shape:
        raise ValueError(
            f"{of_gates} and {of_tokens} must have the same shape, but came as {tuple(gates.shape)} and "
            f"{tuple(shape)}: broadcast one with {of_gates}.expand_as({of_tokens}) or "
            f"{of_tokens}.expand_as({of_gates}), which copies nothing."
        )
    if gates.device != device:
        raise ValueError(
            f"{of_gates} and {of_tokens} must be on the same device, but are on {gates.device} and {device}: "
            f"move one with {of_gates}.to({of_tokens}.device)."
        )
    if cu_seqlens is not None:
        cu_seqlens_tensor(cu_seqlens, device, of_tokens)
        if _readable(cu_seqlens):
            offset_values(cu_seqlens, shape[dim])
    if initial_state is not None:
        _initial_state(initial_state, gates, tokens, dim, cu_seqlens, of_state, of_tokens)


def check_offsets(cu_seqlens: Tensor, total: int, longest: int | None = None) -> None:
    """Raise a sentence if `cu_seqlens` does not describe sequences packed into `total` steps.

    Reads the values, which waits for the device where they are on a GPU. The scan itself never waits there: it
    fills states and gradients with NaN when the offsets are invalid, and this function says what is wrong with them.

    Args:
        cu_seqlens: cumulative lengths, `[N + 1]`, int32 or int64, on any device.
        total: length of the time axis that the sequences are packed along.
        longest: declared length of the longest sequence; None means that none was declared.

    Raises:
        TypeError: `cu_seqlens` is not a tensor of int32 or int64.
        ValueError: it is not one-dimensional or empty, does not start with 0, decreases, ends past `total`, or holds
            a sequence longer than `longest`.

    Example:
        >>> check_offsets(torch.tensor([0, 3, 3, 7]), total=8)
        >>> check_offsets(torch.tensor([3, 7]), total=8)
        Traceback (most recent call last):
        ValueError: cu_seqlens must start with 0, but starts with 3: put a 0 in front of the cumulative lengths.
    """
    cu_seqlens_tensor(cu_seqlens)
    counts(total=(total, 0))
    if longest is not None:
        counts(longest=(longest, 0))
    offsets = offset_values(cu_seqlens, total)
    if longest is not None:
        _declared_longest(_longest(offsets), longest)


def offset_values(cu_seqlens: Tensor, total: int) -> list[int]:
    """The offsets as Python integers, once they are known to describe sequences within `total` steps."""
    if cu_seqlens.is_meta:
        raise RuntimeError(
            "cu_seqlens must hold values where packed sequences are scanned, but came on the meta device: pack on a "
            "real device, or trace with FakeTensorMode or torch.export."
        )
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(
            f"cu_seqlens must start with 0, but starts with {offsets[0]}: put a 0 in front of the cumulative lengths."
        )
    for n, (start, stop) in enumerate(pairwise(offsets)):
        if stop < start:
            raise ValueError(
                f"cu_seqlens must not decrease, but goes from {start} to {stop} at entry {n + 1}: "
                "build it from the lengths with lengths_to_cu_seqlens."
            )
    if offsets[-1] > total:
        raise ValueError(
            f"cu_seqlens must end within the time axis of {total} steps, but ends at {offsets[-1]}: "
            "pass tokens that hold every packed step, or shorten the last sequences."
        )
    return offsets


def counts(**values: tuple[Any, int]) -> None:
    """Raise unless each named value is an integer that is not below its least."""
    for name, (value, least) in values.items():
        if not _is_count(value) or value < least:
            raise ValueError(
                f"{name} must be an int of at least {least}, but came as {value!r}: count it before the call."
            )


def lengths(values: Any) -> Tensor:
    """The lengths of sequences as a tensor; raises unless they can be some, and looks at values on the CPU only."""
    if not isinstance(values, Tensor):
        try:
            numbers = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"lengths must be a torch.Tensor or a list of integers, but came as {_kind(values)}: "
                "pass one integer for each sequence."
            ) from None
        values = numbers if numbers.numel() else numbers.long()
    _dense("lengths", values)
    if values.dtype not in _OFFSET_DTYPES:
        raise TypeError(
            f"lengths must be int32 or int64, but came as {values.dtype}: convert them with lengths.long()."
        )
    if values.ndim != 1:
        raise ValueError(
            f"lengths must have one axis, [N], but came with shape {tuple(values.shape)}: flatten them with "
            "lengths.flatten()."
        )
    if _readable(values) and values.numel():
        if int(values.min()) < 0:
            raise ValueError(
                f"lengths must not be negative, but hold {int(values.min())}: use 0 for an empty sequence."
            )
        # Sums of 64 bits wrap around without a word; few lengths are so long.
        total = sum(values.tolist()) if int(values.max()) >= 2**31 else int(values.sum(dtype=torch.int64))
        if total > torch.iinfo(values.dtype).max:
            raise ValueError(
                f"lengths must add up to what {values.dtype} holds, but add up to {total}: "
                f"{'convert them with lengths.long()' if values.dtype == torch.int32 else 'pack fewer sequences'}."
            )
    return values


def cumulative(cu_seqlens: Any) -> None:
    """Raise unless `cu_seqlens` can be cumulative lengths; reads offsets on the CPU only."""
    cu_seqlens_tensor(cu_seqlens)
    if _readable(cu_seqlens):
        offset_values(cu_seqlens, int(cu_seqlens.max()))


def packed_data(data: Tensor, cu_seqlens: Tensor, pad_value: Any, backward: Any) -> bool:
    """Raise unless `data` has a last axis along which `cu_seqlens` can pack, and can hold `pad_value`.

    Reads offsets on the CPU only, and says whether it did.
    """
    if not isinstance(data, Tensor):
        raise TypeError(f"data must be a torch.Tensor, but came as {_kind(data)}: convert it with torch.as_tensor.")
    _dense("data", data)
    if data.dtype not in _FILLED_DTYPES:
        raise TypeError(
            f"data must be of a dtype that torch.Tensor.masked_fill takes, but came as {data.dtype}: convert it with "
            "data.float() or data.long()."
        )
    _untraced("shift_pad")
    if _kind(data) == "DTensor" or _kind(cu_seqlens) == "DTensor":
        raise TypeError(
            "data and cu_seqlens must be plain tensors in shift_pad, but came as a DTensor: shard any axis but time, "
            "and shift what data.to_local() holds."
        )
    if data.ndim == 0:
        raise ValueError(
            "data must have a time axis, [..., T], but came with shape (): add axes with data.reshape(1, -1)."
        )
    if type(backward) is not bool:
        raise TypeError(
            f"backward must be True or False, but came as {backward!r}: pass backward=True or backward=False."
        )
    if not _holds(data, pad_value):
        raise TypeError(
            f"pad_value must be a number that {data.dtype} holds, but came as {pad_value!r}: pass another one, or "
            "convert data."
        )
    cu_seqlens_tensor(cu_seqlens, data.device, "data")
    if _readable(cu_seqlens):
        offset_values(cu_seqlens, data.shape[-1])
        return True
    return False


def three_axes(a: Tensor, b: Tensor, names: tuple[str, str], axes: str) -> None:
    """Raise unless two floating or complex tensors have one shape, of three axes, and one device."""
    for name, value in zip(names, (a, b), strict=True):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, but came as {_kind(value)}: convert it with torch.as_tensor."
            )
        if value.dtype not in _DTYPES:
            raise _dtype_error(name, value)
        if value.ndim != 3:
            raise ValueError(
                f"{name} must have three axes, {axes}, but came with shape {tuple(value.shape)}: "
                f"add or flatten axes with {name}.reshape."
            )
    if a.shape != b.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same shape, but came as {tuple(a.shape)} and {tuple(b.shape)}: "
            f"broadcast one with {names[0]}.expand_as({names[1]})."
        )
    if a.device != b.device:
        raise ValueError(
            f"{names[0]} and {names[1]} must be on the same device, but are on {a.device} and {b.device}: "
            f"move one with {names[0]}.to({names[1]}.device)."
        )


def state_of_three_axes(h0: Tensor, b: Tensor) -> None:
    """Raise unless `h0` is an initial state for tokens `(batch, length, dim)`."""
    if not isinstance(h0, Tensor):
        raise TypeError(f"h0 must be a torch.Tensor, but came as {_kind(h0)}: convert it with torch.as_tensor.")
    shape = (b.shape[0], b.shape[2])
    if tuple(h0.shape) != shape:
        raise ValueError(
            f"h0 must have the shape (batch, dim), {shape}, but came as {tuple(h0.shape)}: "
            "expand or reshape it to that shape."
        )
    if h0.device != b.device:
        raise ValueError(
            f"h0 must be on the device of b, {b.device}, but is on {h0.device}: move it with h0.to(b.device)."
        )


def seed_arguments(
    args: Mapping[str, Any] | None, gates: Tensor, tokens: Tensor, names: tuple[str, str, str] = _NAMES
) -> Tensor | None:
    """The cu_seqlens of an `args` dict (keys cu_seqlens, chunk_size, grid), whose other entries never change a result.

    A grid is `(chunks, C)` or `(N, chunks, C)`, where C counts channels or all rows and where `len(cu_seqlens)` may
    stand for N. It raises where it contradicts the data, and on the CPU also where the longest sequence does not fit
    into `next_power_of_2(chunks) * chunk_size` steps.
    """
    if args is None:
        return None
    if not isinstance(args, Mapping):
        raise TypeError(
            f"args must be a dict with the keys cu_seqlens, chunk_size and grid, but came as {_kind(args)}: "
            'pass {"cu_seqlens": cu_seqlens} or leave args out.'
        )
    for key in args:
        if key not in _SEED_KEYS:
            raise ValueError(
                f"args may hold cu_seqlens, chunk_size and grid, but holds {key!r}: remove or rename that entry."
            )
    # What follows compares args with the data, so the data must make sense first.
    scan_arguments(gates, tokens, None, -1, None, names)
    cu_seqlens, chunk_size, grid = args.get("cu_seqlens"), args.get("chunk_size"), args.get("grid")
    if cu_seqlens is not None:
        cu_seqlens_tensor(cu_seqlens, tokens.device, names[1])
    if chunk_size is not None and not (_is_count(chunk_size) and chunk_size > 0):
        raise ValueError(f"chunk_size must be a positive int, but came as {chunk_size!r}: pass for example 128.")
    if grid is not None:
        chunks = _seed_grid(grid, tokens, cu_seqlens)
        if chunk_size is not None and _readable(tokens if cu_seqlens is None else cu_seqlens):
            time = tokens.shape[-1]
            offsets = [0, time] if cu_seqlens is None else offset_values(cu_seqlens, time)
            # The next power of two of the chunks, as get_grid counts them.
            _declared_longest(_longest(offsets), chunk_size * (1 << max(0, chunks - 1).bit_length()))
    return cu_seqlens


def branches(tokens: Tensor, tokens_reverse: Tensor, reduce: str | None) -> None:
    """Raise unless two directions of a bidirectional scan fit each other and what becomes of them."""
    if tokens_reverse.shape != tokens.shape or tokens_reverse.device != tokens.device:
        raise ValueError(
            f"both branches must have the same shape and device, but came as {tuple(tokens.shape)} on {tokens.device} "
            f"and {tuple(tokens_reverse.shape)} on {tokens_reverse.device}: scan them apart with linear_scan."
        )
    if reduce not in (None, "sum", "cat"):
        raise ValueError(f'reduce must be None, "sum" or "cat", but came as {reduce!r}: choose one of the three.')
    if reduce == "cat" and tokens.ndim < 2:
        raise ValueError(
            f'reduce="cat" must have a channel axis to join along, but tokens came with shape {tuple(tokens.shape)}: '
            "add one with tokens.unsqueeze(0)."
        )


def _seed_grid(grid: Any, tokens: Tensor, cu_seqlens: Tensor | None) -> int:
    """The number of chunks that a seed's grid declares, once its other entries agree with the data."""
    if (
        not isinstance(grid, (tuple, list))
        or len(grid) not in (2, 3)
        or not all(_is_count(entry) and entry >= 0 for entry in grid)
    ):
        raise ValueError(
            f"grid must be (chunks, C) or (N, chunks, C) in integers, but came as {grid!r}: "
            "build it with get_grid or get_static_grid, or leave it out."
        )
    channels = tokens.shape[-2] if tokens.ndim > 1 else 1
    rows = prod(tokens.shape[:-1])
    if grid[-1] != channels and grid[-1] != rows:
        raise ValueError(
            f"the last entry of grid must be the number of channels, {channels}, but came as {grid[-1]}: "
            "pass no_channels=gates.shape[-2] to get_grid, or leave grid out."
        )
    sequences = 1 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if len(grid) == 3 and grid[0] != sequences and grid[0] != sequences + 1:
        raise ValueError(
            f"the first entry of grid must be the number of sequences, {sequences}, but came as {grid[0]}: "
            "pass no_seq=len(cu_seqlens) to get_grid, or leave grid out."
        )
    return grid[-2]


def _untraced(what: str) -> None:
    """Raise under torch.jit.trace."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise RuntimeError(
            f"expected {what} in torch.export or torch.compile, but torch.jit.trace would keep the length and the "
            "offsets of this call for every later one: export the module instead."
        )


def _dense(name: str, value: Tensor) -> None:
    """Raise unless a tensor is dense."""
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, but came as a {'nested' if value.is_nested else value.layout} one: "
            "convert it with to_dense, or pack sequences along time and pass cu_seqlens."
        )


def cu_seqlens_tensor(cu_seqlens: Any, device: torch.device | None = None, packed: str = "tokens") -> None:
    """Raise unless `cu_seqlens` is a vector of int32 or int64, not empty, on the device (if given) of what it packs."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(
            f"cu_seqlens must be a torch.Tensor of int32 or int64, but came as {_kind(cu_seqlens)}: "
            f"convert it with torch.tensor(cu_seqlens, dtype=torch.int32, device={packed}.device)."
        )
    if cu_seqlens.dtype not in _OFFSET_DTYPES:
        raise TypeError(
            f"cu_seqlens must be int32 or int64, but came as {cu_seqlens.dtype}: convert it with cu_seqlens.int()."
        )
    _dense("cu_seqlens", cu_seqlens)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(
            f"cu_seqlens must have one axis of N + 1 entries, at least the leading 0, but came with shape "
            f"{tuple(cu_seqlens.shape)}: pass the cumulative lengths of the N sequences as one vector."
        )
    if device is not None and cu_seqlens.device != device:
        raise ValueError(
            f"cu_seqlens must be on the device of {packed}, {device}, but is on {cu_seqlens.device}: "
            f"move it with cu_seqlens.to({packed}.device)."
        )


def _initial_state(
    state: Any, gates: Tensor, tokens: Tensor, dim: int, cu_seqlens: Tensor | None, name: str, of_tokens: str
) -> None:
    """Raise unless `state` is a state per sequence for these tokens."""
    if not isinstance(state, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor or None, but came as {_kind(state)}: convert it with torch.as_tensor."
        )
    if state.dtype not in _DTYPES:
        raise _dtype_error(name, state)
    _dense(name, state)
    if state.is_complex() and not (gates.is_complex() or tokens.is_complex()):
        raise TypeError(
            f"{name} must be real where gates and tokens are, but came as {state.dtype}: "
            f"make {of_tokens} complex to carry a complex state."
        )
    shape = tokens.shape[:-1] if dim == -1 else (*tokens.shape[:-2], tokens.shape[-1])
    if cu_seqlens is not None:
        shape = (cu_seqlens.shape[0] - 1, *shape)
    if tuple(state.shape) != tuple(shape):
        what = f"the shape of {of_tokens} without the time axis"
        if cu_seqlens is not None:
            what += " and with the number of sequences in front"
        raise ValueError(
            f"{name} must have {what}, {tuple(shape)}, but came as {tuple(state.shape)}: "
            "expand or reshape it to that shape."
        )
    if state.device != tokens.device:
        raise ValueError(
            f"{name} must be on the device of {of_tokens}, {tokens.device}, but is on {state.device}: "
            f"move it with {name}.to({of_tokens}.device)."
        )


def _longest(offsets: list[int]) -> int:
    """The length of the longest sequence."""
    return max((stop - start for start, stop in pairwise(offsets)), default=0)


def _declared_longest(longest: int, declared: int) -> None:
    """Raise if a sequence is longer than what was declared as the maximum."""
    if longest > declared:
        raise ValueError(
            f"the longest sequence has {longest} steps, but at most {declared} were declared: "
            "declare the true maximum, or none."
        )


def _dtype_error(name: str, value: Tensor) -> TypeError:
    """The complaint about a dtype that a scan does not compute in."""
    return TypeError(
        f"{name} must be float16, bfloat16, float32, float64, complex64 or complex128, but came as {value.dtype}: "
        f"convert it, for example with {name}.{'to(torch.complex64)' if value.is_complex() else 'float()'}."
    )


def _readable(values: Tensor) -> bool:
    """Whether the values are in host memory and not hidden by a compiler's trace or a function transform."""
    return (
        not torch.compiler.is_compiling()
        and type(values) is Tensor
        and values.device.type == "cpu"
        and not is_functorch_wrapped_tensor(values)
    )


def _holds(data: Tensor, value: Any) -> bool:
    """Whether a value is a number, and one that the data can hold; symbolic ones are taken."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return True
    if not isinstance(value, (int, float, complex)):
        return False
    if data.is_floating_point() or data.is_complex():
        most = torch.finfo(data.dtype).max
        # A compiler's numbers have no parts.
        parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
        fits = all(part != part or part in (inf, -inf) or abs(part) <= most for part in parts)
        return fits and (data.is_complex() or not isinstance(value, complex))
    if isinstance(value, complex) or (isinstance(value, float) and not value.is_integer()):
        return False
    if data.dtype == torch.bool:
        return value in (0, 1)
    return torch.iinfo(data.dtype).min <= value <= torch.iinfo(data.dtype).max


def _is_count(value: Any) -> bool:
    """Whether a value is an integer, also a symbolic one."""
    return isinstance(value, (Integral, torch.SymInt)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    """The name of a value's type."""
    return type(value).__name__
