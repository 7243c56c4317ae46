"""Launch configurations: a pure function of shape, dtype and architecture. Nothing is timed at run time."""

from __future__ import annotations

from typing import NamedTuple


LARGEST_TILE = 8192


class TimeContiguous(NamedTuple):
    """A tile of `rows` rows, each of `groups` groups of `width` neighbouring steps."""

    rows: int
    groups: int
    width: int
    num_warps: int
    stages: int
    registers: int | None


class ChannelsLast(NamedTuple):
    """A tile of `steps` steps of `channels` neighbouring channels."""

    steps: int
    channels: int
    num_warps: int
    registers: int | None


def power_of_two_at_least(n: int) -> int:
    """The smallest power of two that is not below n, at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def time_contiguous(T: int, itemsize: int, *, backward: bool) -> TimeContiguous:
    """Configuration for rows of T contiguous steps of `itemsize` bytes."""
    width = max(1, 16 // itemsize)
    groups = min(128, max(32, power_of_two_at_least(-(-T // width))))
    rows = 128 // groups
    return TimeContiguous(rows, groups, width, 4, 1, None)


def channels_last(T: int, C: int, itemsize: int, *, backward: bool) -> ChannelsLast:
    """Configuration for T steps of C contiguous channels of `itemsize` bytes."""
    channels = min(64 if itemsize >= 4 else 128, max(16, power_of_two_at_least(C)))
    steps = min(32, max(2, power_of_two_at_least(T)))
    return ChannelsLast(steps, channels, 4, None)
