"""Other tiles than tuning chooses, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from scan import launch, tuning


@contextmanager
def tiles_chosen_by(
    rows: Callable[..., tuning.Tile], channels: Callable[..., tuning.Tile], plans: dict[Any, launch.Plan]
) -> Iterator[None]:
    """`rows` chooses where time is contiguous, `channels` where channels are last; `plans` keeps the launches."""
    before = tuning.time_contiguous, tuning.channels_last, launch._plans
    tuning.time_contiguous, tuning.channels_last = rows, channels  # type: ignore[assignment]
    # Launches are kept by shape, as a process has one tuning.
    launch._plans = plans
    try:
        yield
    finally:
        tuning.time_contiguous, tuning.channels_last, launch._plans = before
