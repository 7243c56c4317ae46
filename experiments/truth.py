"""The exact states and gradients of given rows: `scan.reference.sequential_scan` in float64, both directions at once.

All tensors here are `[T, n]`, float64 (complex128 where a case is complex), on the device of what they are compared
with: time first, which is several times faster for a loop over time. The loop runs over the steps of all blocks of
about sqrt(T) steps at once, then over the blocks; that differs from one loop over all steps by a few roundings of
float64 (Higham 2002, section 3.1).

The gradient of the tokens obeys the same recurrence backwards in time, `D[t] = d_states[t] + g[t+1] D[t+1]`, and that
of the gates is `D[t] h[t-1]`; so one scan over twice the rows gives all three. Of complex numbers `g` and `h` are then
conjugated, as PyTorch defines their gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments.config import Case
from experiments.inputs import Inputs, starts
from scan.reference import sequential_scan


@dataclass(frozen=True)
class Rows:
    """Rows of a case, `[T, n]`."""

    gates: Tensor
    tokens: Tensor
    d_states: Tensor
    logs: Tensor | None = None
    """Logarithms of the gates, where a provider was given those; the gradient of the gates is then theirs."""


@dataclass(frozen=True)
class Truth:
    """Exact results, `[T, n]`."""

    states: Tensor
    d_gates: Tensor
    d_tokens: Tensor

    def of(self, name: str) -> Tensor:
        """An output by its name."""
        return {"states": self.states, "d_gates": self.d_gates, "d_tokens": self.d_tokens}[name]


def take(tensor: Tensor, case: Case, rows: Tensor) -> Tensor:
    """Rows of a tensor of the case, `[T, n]`; rows are counted over batch and channels."""
    return _as_lines(_select(tensor, case, rows))


def take_inputs(inputs: Inputs, case: Case, rows: Tensor, log_gates: bool) -> Rows:
    """Rows of a set of inputs; with `log_gates` the gates are those that their rounded logarithms stand for."""
    logs = _as_lines(_select(inputs.gates, case, rows).log()) if log_gates else None
    gates = take(inputs.gates, case, rows) if logs is None else logs.exp()
    return Rows(gates, take(inputs.tokens, case, rows), take(inputs.d_states, case, rows), logs)


@torch.no_grad()
def truth_of(rows: Rows, case: Case) -> Truth:
    """Exact states and gradients."""
    lines = Lines(rows, case)
    states, d_tokens = lines.apart(scan_lines(lines.gates, lines.tokens))
    d_gates = d_tokens * lines.before(states).conj()
    return Truth(states, d_gates if rows.logs is None else d_gates * rows.gates, d_tokens)


class Lines:
    """Both recurrences of some rows as one set of lines that run forwards: `[T, 2 n]`, states first, then d_tokens."""

    def __init__(self, rows: Rows, case: Case) -> None:
        self.reverse = case.reverse
        first = starts(case)
        if case.reverse:
            first = sorted(case.T - end for end in [*first[1:], case.T])
        self.first = first
        # A gate of 0 keeps what came before out of a sequence, and the gradient of a sequence out of the one before.
        gates = self.ordered(rows.gates).clone()
        gates[first] = 0
        self.gates = self.pair(gates)
        self.tokens = torch.cat([self.ordered(rows.tokens), self.ordered(rows.d_states).flip(0)], 1)

    def pair(self, of_gates: Tensor) -> Tensor:
        """A quantity that belongs to gates in scanning order, for the lines of both recurrences."""
        return torch.cat([of_gates, pad(of_gates[1:], (0, 0, 0, 1)).flip(0).conj()], 1)

    def apart(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Lines as rows of states and of d_tokens, each in the order of memory."""
        states, d_tokens = lines.chunk(2, 1)
        return self.ordered(states), self.ordered(d_tokens.flip(0))

    def before(self, states: Tensor) -> Tensor:
        """The state from which each step starts; 0 at the first of a sequence."""
        earlier = delayed(self.ordered(states))
        earlier[self.first] = 0
        return self.ordered(earlier)

    def ordered(self, rows: Tensor) -> Tensor:
        """Rows in scanning order, or back in the order of memory."""
        return rows.flip(0) if self.reverse else rows


def scan_lines(gates: Tensor, tokens: Tensor) -> Tensor:
    """The float64 scan of lines: every block from a state of zero, then the states that the blocks start from."""
    steps, lines = gates.shape
    length = math.isqrt(max(steps - 1, 0)) + 1
    blocks = -(-steps // length)
    # Steps beyond the last: whatever they hold comes after everything that is kept.
    gates, tokens = (pad(each, (0, 0, 0, blocks * length - steps)) for each in (gates, tokens))
    gates, tokens = (each.view(blocks, length, lines).transpose(0, 1).flatten(1) for each in (gates, tokens))
    states, products = sequential_scan(gates, tokens, dim=-2), gates.cumprod(0)
    ends = sequential_scan(products[-1].view(blocks, lines), states[-1].view(blocks, lines), dim=-2)
    states = states + products * delayed(ends).flatten()
    return states.view(length, blocks, lines).transpose(0, 1).reshape(blocks * length, lines)[:steps]


def delayed(lines: Tensor) -> Tensor:
    """Each step's predecessor; zero before the first."""
    return pad(lines[:-1], (0, 0, 1, 0))


def _select(tensor: Tensor, case: Case, rows: Tensor) -> Tensor:
    """Rows in the dtype of the tensor, `[n, T]`."""
    rows = rows.to(tensor.device)
    return tensor.movedim(case.dim, -1)[rows // case.C, rows % case.C]


def _as_lines(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float64)).t().contiguous()
