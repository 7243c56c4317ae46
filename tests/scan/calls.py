"""Calls of the kernels themselves: a case, or it and its reverse at once, under the chosen tile or another."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from scan import launch, tuning
from tests.scan.cases import Case, Inputs, draw
from tests.scan.runs import Outputs, run_implementation
from tests.scan.tilings import tiles_chosen_by


class Call(NamedTuple):
    """A forward and a backward."""

    case: Case
    tile: tuning.Tile | None = None  # instead of the one that tuning chooses
    both: bool = False  # this case and the same in reverse, at once
    needs: tuple[bool, bool, bool] = (True, True, True)
    final: bool = True  # whether the final state is wanted
    offsets: tuple[int, ...] | None = None  # invalid ones: everything becomes NaN

    @property
    def cases(self) -> list[Case]:
        """The case, as `offsets` would have it, and the same in reverse where both directions are asked."""
        case = self.case
        if self.offsets is not None:
            case = dataclasses.replace(case, lengths=(0,) * (len(self.offsets) - 1))
        return [case, dataclasses.replace(case, reverse=True)] if self.both else [case]

    def __str__(self) -> str:
        words = [str(self.case)]
        words += [] if self.tile is None else [f"tile{'x'.join(map(str, self.tile[:3]))}window{self.tile.window}"]
        words += ["both"] if self.both else []
        words += [] if all(self.needs) else [f"needs{''.join(str(int(need)) for need in self.needs)}"]
        words += [] if self.final else ["no_final"]
        words += [] if self.offsets is None else [f"invalid{list(self.offsets)}"]
        return "-".join(words)


def draw_all(call: Call, device: torch.device) -> list[Inputs]:
    """What each direction reads."""
    inputs = [draw(case, device) for case in call.cases]
    if call.offsets is not None:
        for each in inputs:
            each.cu_seqlens = torch.tensor(call.offsets, device=device)
    return inputs


def answers(call: Call, asked: list[Inputs], plans: dict[Any, launch.Plan]) -> list[Outputs]:
    """Outputs and gradients of each direction; `plans` keeps the launches for the next time."""
    case = call.cases[0]
    chosen = (tuning.time_contiguous, tuning.channels_last) if call.tile is None else (lambda *_, **__: call.tile,) * 2
    with tiles_chosen_by(*chosen, plans):
        if call.both:
            return _both(case, *asked)
        return [run_implementation(launch, case, asked[0], call.needs, call.final)]


def _both(case: Case, ahead: Inputs, back: Inputs) -> list[Outputs]:
    """`run_implementation` of a case and of the same in reverse, at once."""
    branches, needs = (ahead, back), (True, True, ahead.initial_state is not None)
    *states, final, final_back = launch.forward_both(
        *((i.gates, i.tokens, i.initial_state) for i in branches), ahead.cu_seqlens, case.dim, case.log, True
    )
    gradients = launch.backward_both(
        *((i.gates, h, i.initial_state, i.d_states, i.d_final_state) for i, h in zip(branches, states, strict=True)),
        ahead.cu_seqlens, case.dtype, case.dim, case.log, (needs, needs),
    )  # fmt: skip
    return [
        {"states": h, "final_state": end, "d_gates": d[0], "d_tokens": d[1], "d_initial_state": d[2]}
        for h, end, d in zip(states, (final, final_back), gradients, strict=True)
    ]
