"""One case of the tuning experiment: launch configurations, each beside the present one, on the library's kernels.

A candidate is ours launched with another `Tile`: the library chooses in `scan.tuning.time_contiguous`, `channels_last`
and `shared`, which stand aside while a candidate is called. A candidate passes the same gate against the float64 scan
and is timed in the same way as every provider. A few at a time take turns with the present choice, because each holds
the outputs of all calls in its graph. Nothing is tuned when the library runs; `python -m experiments.tuned` prints the
tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import Tensor

from experiments.candidates import candidates, launch_shape, present, words
from experiments.config import Case, Measure
from experiments.failures import Emit, Result
from experiments.inputs import DTYPES, Inputs
from experiments.measure import take_turns
from experiments.providers.base import Call, Provider
from experiments.providers.both import shared_at_once
from experiments.providers.ours import Ours
from experiments.providers.registry import PROVIDERS
from scan.tuning import Tile

AT_ONCE = 4
_NO_TABLE = (
    "Both directions have tables where time is contiguous and one launch scans the same tensors both ways, and those "
    "are measured with directions: shared."
)


class Candidate(Ours):
    """Ours under one launch configuration."""

    devices = ("cuda",)
    levels = ("kernel",)
    no_kernel = "a tile is a launch configuration of a kernel, so only level kernel is measured."
    dims = (-1, -2)

    def __init__(self, tile: Tile, chosen: bool = False) -> None:
        self.tile, self.chosen, self.name = tile, chosen, words(tile)
        self._plans: dict[Any, Any] = {}

    def implementation(self, inputs: Inputs) -> ModuleType:
        from scan import launch

        return launch

    def saved(self, inputs: Inputs, forward: Callable[[], Tensor]) -> Tensor:
        """The same states for all candidates, made under the present choice."""
        return inputs.kept("states of ours", forward)

    def both_kernels(self, case: Case, inputs: Inputs) -> Call:
        """One launch for both directions; the states that backward reads are made here, under the present choice."""
        return shared_at_once(case, inputs)

    def build(self, case: Case, inputs: Inputs) -> Call:
        call = super().build(case, inputs)

        def run() -> tuple[Any, ...]:
            with launched_with(self.tile, self._plans, backward=case.mode == "backward"):
                return call.run()

        return dataclasses.replace(call, run=run)

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        return {"tile": self.tile._asdict(), "present": self.chosen}


@contextmanager
def launched_with(tile: Tile, plans: dict[Any, Any], *, backward: bool) -> Iterator[None]:
    """Every launch of real numbers takes this tile, of both directions at once those that are `backward`, or are not.

    `plans` keeps its launches apart from all others.
    """
    from scan import launch, tuning

    before = tuning.time_contiguous, tuning.channels_last, tuning.shared, launch._plans
    shared = tuning.shared

    def this_way(T: int, itemsize: int, **how: bool) -> Tile | None:
        return tile if how["backward"] == backward else shared(T, itemsize, **how)

    tuning.time_contiguous = tuning.channels_last = lambda *_, **__: tile
    tuning.shared, launch._plans = this_way, plans
    try:
        yield
    finally:
        tuning.time_contiguous, tuning.channels_last, tuning.shared, launch._plans = before


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of all candidates, the present choice first, and the roofline; which `providers` are named is no matter.

    `detail.beside_ms` of a candidate holds the samples of the present choice from the same turns.
    """
    itemsize = DTYPES[case.dtype].itemsize
    shape = launch_shape(case)
    now = present(case.T, itemsize, **shape)
    if now is None:
        return {"providers": {"ours": {"status": "unsupported", "reason": _NO_TABLE}}, "protocol": {}}
    reason = Candidate(now).refuses(case, device)
    if reason is not None:
        return {"providers": {words(now): {"status": "unsupported", "reason": reason}}, "protocol": {}}
    tried = [Candidate(tile) for tile in candidates(case.T, itemsize, **shape)]
    heats = [tried[at : at + AT_ONCE] for at in range(0, len(tried), AT_ONCE)] or [[]]
    results: dict[str, Result] = {}
    protocol: dict[str, Any] = {}
    seconds = 0.0
    for heat in heats:
        ours = Candidate(now, chosen=True)
        more: list[Provider] = [] if "roofline" in results else [PROVIDERS["roofline"]]
        measured = take_turns(case, {each.name: each for each in [ours, *heat, *more]}, settings, device, emit)
        beside = measured["providers"][ours.name]
        seconds += measured["protocol"]["elapsed_s"]["case"]
        protocol = protocol or measured["protocol"]
        for name, result in measured["providers"].items():
            results.setdefault(name, _as_candidate(result, beside) if name in {each.name for each in heat} else result)
        if "context_broken_by" in measured["protocol"]:
            protocol["context_broken_by"] = measured["protocol"]["context_broken_by"]
            break
    return {"providers": results, "protocol": protocol | {"elapsed_s": {"case": seconds}, "candidates": len(tried)}}


def _as_candidate(result: Result, beside: Result) -> Result:
    """A candidate that cannot be launched on this card (too many registers, say) is a result, not a failure."""
    if result["status"] == "error" and "CUDA context" not in str(result["reason"]):
        return {"status": "unsupported", "reason": result["reason"]}
    if "samples_ms" in result and "samples_ms" in beside:
        result["detail"]["beside_ms"] = beside["samples_ms"]
    return result
