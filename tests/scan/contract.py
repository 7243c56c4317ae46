"""Scans in many settings beside the reference in the same settings, as functions of gates, tokens and initial state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scan import linear_scan, linear_scan_bidirectional, scan_bidirectional_branched, scan_causal
from scan.reference import final_state, sequential_scan
from tests.scan.cases import Case, draw

Function = Callable[..., tuple[Tensor, ...]]

SETTINGS = {
    "causal": Case(4, torch.float64, rows=(2,)),
    "reverse": Case(4, torch.float64, rows=(2,), reverse=True),
    "batch": Case(3, torch.float64, rows=(2, 2)),
    "channels_last": Case(4, torch.float64, rows=(2,), dim=-2),
    "log": Case(4, torch.float64, rows=(2,), log=True),
    "one_step": Case(1, torch.float64, rows=(2,)),
    "packed": Case(6, torch.float64, rows=(2,), lengths=(2, 0, 3)),
    "packed_reverse": Case(6, torch.float64, rows=(2,), lengths=(0, 3, 2), reverse=True),
    "packed_channels_last": Case(6, torch.float64, rows=(1, 2), lengths=(2, 0, 4), dim=-2, reverse=True, log=True),
}
every_setting = pytest.mark.parametrize("case", SETTINGS.values(), ids=SETTINGS.keys())
some_settings = pytest.mark.parametrize(
    "case", [SETTINGS[name] for name in ("causal", "packed_channels_last")], ids=["causal", "packed_channels_last"]
)


def offsets(case: Case, device: torch.device) -> Tensor | None:
    return None if case.lengths is None else torch.tensor(case.offsets, device=device)


def ours(case: Case, device: torch.device) -> Function:
    cu_seqlens = offsets(case, device)
    return lambda gates, tokens, initial=None: linear_scan(
        gates, tokens, initial, cu_seqlens=cu_seqlens, **case.keywords
    )


def reference(case: Case, device: torch.device) -> Function:
    cu_seqlens = offsets(case, device)

    def scan(gates: Tensor, tokens: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states = sequential_scan(gates, tokens, initial, cu_seqlens=cu_seqlens, **case.keywords)
        final = final_state(states, initial, dim=case.dim, reverse=case.reverse, cu_seqlens=cu_seqlens)
        return states, final

    return scan


def arguments(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, tokens and an initial state, kept from 0 and 1 so that numerical derivatives are well behaved."""
    inputs = draw(Case(**{**vars(case), "initial": True}), device)
    gates = inputs.gates if case.log else inputs.gates.clamp(-0.9, 0.9)
    assert inputs.initial_state is not None
    return gates, inputs.tokens, inputs.initial_state


def scalar(scan: Function) -> Callable[..., Tensor]:
    """A function of every output of a scan that no derivative of makes vanish."""

    def loss(*arguments: Tensor) -> Tensor:
        return sum((output.sin() * (k + 1) + output.square()).sum() for k, output in enumerate(scan(*arguments)))  # type: ignore[return-value]

    return loss


def _sum_of_both(gates: Tensor, tokens: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    output = linear_scan_bidirectional(gates, tokens, tokens_reverse=gates, initial_state=initial, reduce="sum")
    return output.states, output.final_state, output.final_state_reverse


def _halves(gates: Tensor) -> Tensor:
    """Offsets of two sequences, the second up to the last step but one."""
    T = gates.shape[-1]
    return torch.tensor([0, 1, T - 1], device=gates.device)


def _packed_in_reverse(gates: Tensor, tokens: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    # A state for each sequence; channels last, as the transpose of what comes.
    starts = torch.stack((initial, 2 * initial))
    return linear_scan(gates.mT, tokens.mT, starts, dim=-2, reverse=True, cu_seqlens=_halves(gates))


def _packed_in_both_directions(gates: Tensor, tokens: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    starts = torch.stack((initial, 2 * initial))
    return linear_scan_bidirectional(
        gates.mT, tokens.mT, None, gates.mT, None, starts, dim=-2, cu_seqlens=_halves(gates), log_gates=True
    )  # type: ignore[return-value]


def _packed_causal(gates: Tensor, tokens: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    return (scan_causal(gates, tokens * initial.unsqueeze(-1), {"cu_seqlens": _halves(gates), "chunk_size": 4}),)


def _packed_branches(gates: Tensor, tokens: Tensor, initial: Tensor) -> tuple[Tensor, ...]:
    args = {"cu_seqlens": _halves(gates)}
    return scan_bidirectional_branched(gates, tokens, gates * initial.unsqueeze(-1), gates, args)


# Every public function, packed and not, differentiable in three tensors of one shape or in two and a state.
PUBLIC: dict[str, Function] = {
    "linear_scan": linear_scan,
    "linear_scan_packed": _packed_in_reverse,
    "bidirectional_sum": _sum_of_both,
    "bidirectional_cat": lambda g, x, h: linear_scan_bidirectional(g, x, initial_state_reverse=h, reduce="cat")[:1],
    "bidirectional_packed": _packed_in_both_directions,
    "scan_causal": lambda g, x, h: (scan_causal(g, x + h.unsqueeze(-1)),),
    "scan_causal_packed": _packed_causal,
    "scan_bidirectional_branched": lambda g, x, h: scan_bidirectional_branched(g, x, g * h.unsqueeze(-1), x),
    "branched_packed": _packed_branches,
}
every_function = pytest.mark.parametrize("function", PUBLIC.values(), ids=PUBLIC.keys())
