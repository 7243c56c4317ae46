"""What tests of measuring share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CUDA graphs without CUDA: calls run while they are captured, and replays do nothing; the log of both."""
    log: list[str] = []

    class Graph:
        def replay(self) -> None:
            log.append("replayed")

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            return None

        def elapsed_time(self, end: Event) -> float:
            return 1.0

    @contextmanager
    def capture(graph: Graph, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        yield
        log.append("captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return log
