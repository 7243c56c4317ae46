"""Where the time of a case goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Seconds of a whole case, of its inputs, and of each step of each provider."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._parts: dict[str, Any] = {}

    @contextmanager
    def of(self, *path: str) -> Iterator[None]:
        """Add up what runs inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began, *path)

    def add(self, seconds: float, *path: str) -> None:
        """Add to a part: `inputs`, or a provider's name and what it did."""
        parts = self._parts
        for step in path[:-1]:
            parts = parts.setdefault(step, {})
        parts[path[-1]] = round(parts.get(path[-1], 0.0) + seconds, 4)

    def seconds(self) -> dict[str, Any]:
        """The whole so far as `case`, and the parts."""
        return {"case": round(time.perf_counter() - self._began, 4), **self._parts}
