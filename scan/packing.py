"""Sequences packed along time: lengths and offsets, where each step belongs, shifts that stay inside a sequence.

Nothing here reads values on the host, so nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scan import checks


def lengths_to_cu_seqlens(lengths: Tensor | Sequence[int]) -> Tensor:
    """Cumulative lengths of sequences, with the leading 0.

    Args:
        lengths: lengths of the sequences, `[N]`, int32 or int64, or integers in a list; 0 is an empty sequence.

    Returns:
        `[N + 1]`, on the device and in the dtype of `lengths` (int64 for a list).

    Raises:
        TypeError: the dtype is another one, or there are no numbers.
        ValueError: there is more than one axis, or (seen on the CPU only) a negative length, or a sum that int32 does
            not hold.

    Example:
        >>> lengths_to_cu_seqlens([3, 0, 2])
        tensor([0, 3, 3, 5])
    """
    values = checks.lengths(lengths)
    return torch.nn.functional.pad(values.cumsum(0, dtype=values.dtype), (1, 0))


def cu_seqlens_to_lengths(cu_seqlens: Tensor) -> Tensor:
    """Lengths of packed sequences.

    Args:
        cu_seqlens: cumulative lengths, `[N + 1]`, int32 or int64.

    Returns:
        `[N]`, on the device and in the dtype of `cu_seqlens`.

    Raises:
        TypeError: `cu_seqlens` is not a tensor of int32 or int64.
        ValueError: it is not one vector of at least one entry, or (seen on the CPU only) no table of offsets.

    Example:
        >>> cu_seqlens_to_lengths(torch.tensor([0, 3, 3, 5]))
        tensor([3, 0, 2])
    """
    checks.cumulative(cu_seqlens)
    return cu_seqlens.diff()


def sequence_index(cu_seqlens: Tensor, total: int) -> Tensor:
    """The sequence that each of `total` steps belongs to; N past the last offset.

    Args:
        cu_seqlens: cumulative lengths, `[N + 1]`, int32 or int64.
        total: length of the time axis.

    Returns:
        `[total]`, int64, on the device of `cu_seqlens`.

    Example:
        >>> sequence_index(torch.tensor([0, 3, 3, 5]), total=6)
        tensor([0, 0, 0, 2, 2, 3])
    """
    steps = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    # Of sequences that start at the same step, all but the last are empty: the last one holds the step.
    return torch.searchsorted(cu_seqlens.contiguous(), steps, right=True) - 1


def shift_states(
    states: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> Tensor:
    """The state before each step: `h[t-1]`, or `h[t+1]` in reverse.

    At the step where a sequence begins it is the initial state of that sequence, or 0; past the last offset it is 0.
    Differentiable to any order and under `torch.func` transforms. Values are selected, never multiplied by 0, so
    neither NaN nor infinity passes from one sequence into another.

    Args:
        states: `[..., T]` for `dim=-1`, `[..., T, C]` for `dim=-2`.
        initial_state: the shape of `states` without the time axis, with N in front when packed; None for zeros.
        cu_seqlens: cumulative lengths, `[N + 1]`; None for one sequence.
        dim: the time axis.
        reverse: whether steps are walked from T-1 to 0.

    Returns:
        The shape of `states`, in the wider dtype of states and initial state.

    Example:
        >>> shift_states(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([8.0, 9.0]), torch.tensor([0, 2, 3]), -1, False)
        tensor([8., 1., 9.])
    """
    total = states.shape[dim]
    if cu_seqlens is None:
        if total == 0:
            return states.clone()
        edge = torch.zeros_like(states.select(dim, 0)) if initial_state is None else initial_state
        edge = edge.unsqueeze(dim)
        kept = states.narrow(dim, 1 if reverse else 0, total - 1)
        return torch.cat((kept, edge) if reverse else (edge, kept), dim)

    begins, inside, index = _borders(cu_seqlens, total, reverse)
    begins, inside = _along(begins, dim), _along(inside, dim)
    previous = states.roll(-1 if reverse else 1, dim).masked_fill(~inside | begins, 0)
    sequences = cu_seqlens.shape[0] - 1
    if initial_state is None or sequences == 0:
        return previous
    initial = initial_state.index_select(0, index.clamp(0, sequences - 1)).movedim(0, dim)
    # Of a real and a complex tensor `where` has no second derivative.
    dtype = torch.promote_types(initial.dtype, previous.dtype)
    return torch.where(begins & inside, initial.to(dtype), previous.to(dtype))


def shift_pad(data: Tensor, cu_seqlens: Tensor, pad_value: float = 0.0, backward: bool = True) -> Tensor:
    """Shift every packed sequence by one step and pad the step that becomes free.

    Differentiable to any order; nothing passes from one sequence into another. Where offsets cannot be read without
    waiting (on a GPU, in a compiled function) and are invalid, floating and complex data become NaN.

    Args:
        data: `[C, T]`, or with more axes in front.
        cu_seqlens: cumulative lengths, `[N + 1]`, int32 or int64, on the device of `data`.
        pad_value: fills the free step of each sequence, and every step past the last offset.
        backward: True shifts right, so that each step holds the one before it and the first is padded; False shifts
            left, and the last is padded.

    Returns:
        The shape and dtype of `data`.

    Raises:
        TypeError: an argument has the wrong type, dtype or layout, or `pad_value` is none that `data` can hold.
        ValueError: `cu_seqlens` is not one vector on the device of `data`, or (seen on the CPU only) no table of
            offsets.

    Example:
        >>> shift_pad(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), torch.tensor([0, 3, 5]))
        tensor([[0., 1., 2., 0., 4.]])
        >>> shift_pad(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), torch.tensor([0, 3, 5]), backward=False)
        tensor([[2., 3., 0., 5., 0.]])
    """
    read = checks.packed_data(data, cu_seqlens, pad_value, backward)
    total = data.shape[-1]
    begins, inside, _ = _borders(cu_seqlens, total, reverse=not backward)
    shifted = data.roll(1 if backward else -1, -1).masked_fill(~inside | begins, pad_value)
    if read or not (data.is_floating_point() or data.is_complex()):
        return shifted
    broken = (cu_seqlens[0] != 0) | (cu_seqlens[-1] > total) | (cu_seqlens.diff() < 0).any()
    return shifted.masked_fill(broken, float("nan"))


def get_grid(no_seq: int, max_seqlen: int, chunk_size: int, no_channels: int) -> tuple[int, int, int]:
    """The grid of the chunked interface, `(N, chunks, C)`, with chunks rounded up to a power of two.

    No function of this package needs a grid; where one is given, it never changes a result.

    Args:
        no_seq: `len(cu_seqlens)`, one more than the number of sequences N.
        max_seqlen: length of the longest sequence.
        chunk_size: steps in a chunk.
        no_channels: number of channels C.

    Raises:
        ValueError: an argument is no integer or too small.

    Example:
        >>> get_grid(no_seq=2, max_seqlen=300, chunk_size=128, no_channels=4)
        (1, 4, 4)
    """
    checks.counts(no_seq=(no_seq, 1))
    chunks, channels = get_static_grid(max_seqlen, chunk_size, no_channels)
    return _plain(no_seq) - 1, next_power_of_2(chunks), channels


def get_static_grid(max_seqlen: int, chunk_size: int, no_channels: int) -> tuple[int, int]:
    """The grid of the chunked interface without its sequences, `(chunks, C)`.

    Args:
        max_seqlen: length of the longest sequence.
        chunk_size: steps in a chunk.
        no_channels: number of channels C.

    Raises:
        ValueError: an argument is no integer or too small.

    Example:
        >>> get_static_grid(max_seqlen=300, chunk_size=128, no_channels=4)
        (3, 4)
    """
    checks.counts(max_seqlen=(max_seqlen, 0), chunk_size=(chunk_size, 1), no_channels=(no_channels, 0))
    return -(-_plain(max_seqlen) // _plain(chunk_size)), _plain(no_channels)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`, and at least 1.

    Raises:
        ValueError: `n` is no integer, or negative.

    Example:
        >>> [next_power_of_2(n) for n in (0, 1, 3, 4, 5)]
        [1, 1, 4, 4, 8]
    """
    checks.counts(n=(n, 0))
    power = 1
    # Doubled, not counted in bits: what compiles this for sizes that change guards the range of n then, not its value.
    while power < n:
        power *= 2
    return power


def _plain(n: int) -> int:
    """An integer of Python, or a symbolic one as it is: those of NumPy wrap around."""
    return n if isinstance(n, (int, torch.SymInt)) else int(n)


def _borders(cu_seqlens: Tensor, total: int, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """For each step: whether its sequence begins there, whether it is inside a sequence, and in which; `[total]`."""
    index = sequence_index(cu_seqlens, total)
    steps = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    last = cu_seqlens.shape[0] - 1
    if reverse:
        begins = steps + 1 == cu_seqlens[(index + 1).clamp(0, last)]
    else:
        begins = steps == cu_seqlens[index.clamp(0, last)]
    return begins, index < last, index


def _along(mask: Tensor, dim: int) -> Tensor:
    """A mask over time, made to broadcast over the channels behind it."""
    return mask if dim == -1 else mask.unsqueeze(-1)
