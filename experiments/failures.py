"""Providers that raise: their results, and who broke the CUDA context, after which nothing more can be measured."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import torch

from experiments.broken_context import says_broken
from experiments.providers.base import first_line

Emit = Callable[[str, dict[str, Any]], None]
Result = dict[str, Any]


class Failures:
    """The failures of one case."""

    def __init__(self, device: str, emit: Emit) -> None:
        self.device, self.emit = device, emit
        self.broken_by: str | None = None
        """Whose call was running when CUDA first said that the context is broken."""
        self._broken_how = ""

    def result(self, name: str, error: Exception) -> Result:
        """The result of a provider that raised; what a broken context does to others is not held against them."""
        if self.broken_by is not None:
            return self.lost()
        self.emit("traceback", {"provider": name, "text": "".join(traceback.format_exception(error))})
        if says_broken(str(error)) or not release_memory(self.device):
            self.broken_by, self._broken_how = name, f"{type(error).__name__}: {first_line(error)}"
        return failure(error)

    def lost(self) -> Result:
        """The result of a provider that could not be measured, or not to the end, once the context was broken."""
        reason = f"{self.broken_by} broke the CUDA context before this was measured ({self._broken_how})."
        return {"status": "error", "reason": reason}

    def protocol(self) -> dict[str, Any]:
        """Who broke the context, if somebody did."""
        return {} if self.broken_by is None else {"context_broken_by": self.broken_by}


def failure(error: Exception) -> Result:
    """The result that an exception stands for."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError) or "RESOURCE_EXHAUSTED" in str(error)
    return {"status": "oom" if out_of_memory else "error", "reason": f"{type(error).__name__}: {first_line(error)}."}


def release_memory(device: str) -> bool:
    """Hand back what a failed provider held; False where the context is too broken for that."""
    gc.collect()
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
    return True
