"""The gate before the clock: is a provider's result as near to the exact one as rounding allows?

The truth is the float64 scan (`truth`) of some rows of the very tensors that the provider was given. The error budget
is a bound, element by element; nothing in it is tuned. With u the unit roundoff of the dtype in which a
provider keeps the state, v that of the dtype in which it writes, and

    H[t] = |g[t]| H[t-1] + |x[t]|                 every term that enters h[t], without cancellation
    L[t] = |g[t]| (L[t-1] + w H[t-1])             the same, each term times the roundings it meets step by step

a method that walks step by step rounds each term of h[t] at most w = 2 times a step (a product, a sum), and a tree at
most twice in each of at most 2 log2(T) combinations (up and down; Blelloch 1990, section 1.2) and once at either end.
A method that mixes both is covered by the sum. To first order (Higham 2002, section 3.1):

    |computed - h[t]| <= u ((4 log2(T) + 4) H[t] + L[t]) + v |h[t]|

The last term is the one rounding to the output dtype. The product of two complex numbers is off by at most 2 sqrt(2) u
to first order (Higham 2002, lemma 3.5): for them u is that much larger. d_tokens obeys the same recurrence backwards in
time. d_gates is the product of d_tokens and the state before, which may have been stored in the output dtype in
between.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from experiments.config import DIRECTIONS, NEEDS, Case
from experiments.directions import apart, terms
from experiments.inputs import DTYPES, Inputs, shape
from experiments.providers.base import Named
from experiments.truth import Lines, Rows, Truth, delayed, scan_lines, take, take_inputs, truth_of

_MOST_ROWS, _LEAST_ROWS = 64, 16
_ELEMENTS = 2**20
# The draw at hand and the one before, for providers that take gates and those that take their logarithms.
_KEPT = 4


@dataclass(frozen=True)
class Exact:
    """The truth on some rows of a case, and what the error budget is made of there."""

    rows: Tensor
    """Which rows, counted over batch and channels."""
    truth: Truth
    sizes: dict[str, Tensor]
    """H of states, of d_tokens, and of the state `before` each step."""
    steps: dict[str, Tensor]
    """L of the same."""
    logs: Tensor | None
    """Logarithms of the gates, where the gradient is theirs."""
    budgets: dict[tuple[str, torch.dtype, torch.dtype], Tensor] = field(default_factory=dict)
    """What `budget` found already, which is the same for many providers."""


@dataclass(frozen=True)
class Both:
    """The truth on some rows of a case of both directions: that of each."""

    case: Case
    ways: tuple[Exact, Exact]

    @property
    def rows(self) -> Tensor:
        """As in `Exact`."""
        return self.ways[0].rows


@dataclass(frozen=True)
class Verdict:
    """Errors relative to the norm of the exact result, and what is wrong, if anything is."""

    errors: dict[str, float | None]
    reason: str | None


class Known:
    """The exact results of the last draws, because a draw returns in every mode of a sweep."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Case, str, bool], Exact | Both] = OrderedDict()

    def exact(self, case: Case, device: str, inputs: Inputs, log_gates: bool) -> Exact | Both:
        """Those of the first set of inputs of a case."""
        key = (replace(case, level="", mode="forward", needs=NEEDS[0]), device, log_gates)
        if key not in self._kept:
            self._kept[key] = exact_of(case, inputs, chosen_rows(case), log_gates)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def chosen_rows(case: Case) -> Tensor:
    """The rows that are compared: the first, the last and random ones, fewer where they are very long."""
    total = case.B * case.C
    count = min(total, max(_LEAST_ROWS, min(_MOST_ROWS, _ELEMENTS // case.T)))
    ends = torch.tensor([0, total - 1]).unique()
    others = torch.randperm(total, generator=torch.Generator().manual_seed(case.seed))
    others = others[(others > 0) & (others < total - 1)]
    return torch.cat([ends, others[: max(0, count - len(ends))]]).sort().values


def exact_of(case: Case, inputs: Inputs, rows: Tensor, log_gates: bool = False) -> Exact | Both:
    """The exact results of a set of inputs on some rows, in one direction or both."""
    if case.directions == DIRECTIONS[0]:
        return exact(case, inputs, rows, log_gates)
    first, second = (exact(*way, rows, log_gates) for way in apart(case, inputs))
    return Both(case, (first, second))


@torch.no_grad()
def exact(case: Case, inputs: Inputs, rows: Tensor, log_gates: bool = False) -> Exact:
    """The exact results of one direction on some rows, with the means to judge others."""
    taken = take_inputs(inputs, case, rows, log_gates)
    lines = Lines(taken, case)
    sizes = scan_lines(lines.gates.abs(), lines.tokens.abs())
    entering = lines.gates.abs() * lines.pair(_roundings(taken, lines)) * delayed(sizes)
    steps = scan_lines(lines.gates.abs(), entering)
    parts = []
    for quantity in (sizes, steps):
        states, d_tokens = lines.apart(quantity)
        parts.append({"states": states, "d_tokens": d_tokens, "before": lines.before(states)})
    return Exact(rows, truth_of(taken, case), parts[0], parts[1], taken.logs)


def value(name: str, known: Exact | Both) -> Tensor:
    """An exact output by its name, `[T, n]`."""
    if isinstance(known, Exact):
        return known.truth.of(name)
    values = [known.ways[way].truth.of(term) for way, term in terms(name, known.case)]
    return values[0] if len(values) == 1 else values[0] + values[1]


def budget(name: str, known: Exact | Both, output: torch.dtype, state: torch.dtype) -> Tensor:
    """The largest error of an output that rounding can explain, element by element.

    Where both directions are added, each may have been rounded to the output dtype before, and the sum is again.
    """
    if isinstance(known, Both):
        errors = [budget(term, known.ways[way], output, state) for way, term in terms(name, known.case)]
        if len(errors) == 1:
            return errors[0]
        error = errors[0] + errors[1]
        return error + unit_roundoff(output) * (value(name, known).abs() + error) + smallest(output)
    key = (name, output, state)
    if key not in known.budgets:
        known.budgets[key] = _budget(name, known, output, state)
    return known.budgets[key]


def _budget(name: str, known: Exact, output: torch.dtype, state: torch.dtype) -> Tensor:
    u, v = unit_roundoff(state), unit_roundoff(output)
    depth = 4 * math.log2(max(known.truth.states.shape[0], 2)) + 4

    def accumulated(which: str) -> Tensor:
        size = known.sizes[which]
        # Products of gates underflow: each operation may lose the smallest number that the dtype tells from 0.
        return u * (depth * size + known.steps[which]) + depth * smallest(state) * (1 + size)

    if name != "d_gates":
        error, size = accumulated(name), known.truth.of(name).abs()
    else:
        d_tokens, before = known.sizes["d_tokens"], known.sizes["before"]
        d_tokens_error, before_error = accumulated("d_tokens"), accumulated("before")
        before_error = before_error + v * (before + before_error) + smallest(output)
        error = d_tokens * before_error + before * d_tokens_error + d_tokens_error * before_error
        size = d_tokens * before
        roundings = torch.ones_like(size)
        if known.logs is not None:
            gates = known.logs.exp()
            error, size = error * gates, size * gates
            roundings = 2 + _exp_roundings(known.logs)
        error = error + u * roundings * size
    return error + v * (size + error) + smallest(output)


@torch.no_grad()
def judge(outputs: Named, case: Case, known: Exact | Both, state: torch.dtype) -> Verdict:
    """Whether every element is finite, and every compared row inside its budget; `state` as in `budget`."""
    errors: dict[str, float | None] = dict.fromkeys(outputs)
    reasons = []
    for name, tensor in outputs.items():
        if tuple(tensor.shape) != shape(case):
            reasons.append(f"{name} has shape {tuple(tensor.shape)} where {shape(case)} was expected")
            continue
        truth = value(name, known)
        difference = (take(tensor, case, known.rows) - truth).abs()
        relative = difference.norm() / truth.norm().clamp_min(torch.finfo(truth.dtype).tiny)
        excess = difference / budget(name, known, DTYPES[case.dtype], state)
        # Infinities and NaN survive a sum: one pass without temporaries, and the exact count only where it is needed.
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        total = parts.sum(dtype=torch.promote_types(parts.dtype, torch.float32))
        # One copy to the host, because each waits for the device.
        facts = torch.stack([relative, total.double(), excess.max(), excess.argmax().double()])
        error, sum_of_all, worst, where = facts.tolist()
        errors[name] = error if math.isfinite(error) else None
        bad = 0 if math.isfinite(sum_of_all) else tensor.numel() - int(torch.isfinite(tensor).sum())
        if bad:
            reasons.append(f"{bad} of {tensor.numel()} elements of {name} are not finite")
        elif worst > 1:
            step, row = divmod(int(where), len(known.rows))
            reasons.append(
                f"{name} differs from the float64 scan by {worst:.3g} times its error budget "
                f"at row {int(known.rows[row])}, t = {step}"
            )
    return Verdict(errors, "; ".join(reasons) + "." if reasons else None)


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to a dtype; of a product where it is complex."""
    return torch.finfo(dtype).eps / 2 * (2 * math.sqrt(2) if dtype.is_complex else 1)


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number of a dtype, subnormal ones included."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _roundings(rows: Rows, lines: Lines) -> Tensor:
    """How often a term is rounded, at most, when a step multiplies it with a gate; in scanning order."""
    product_and_sum = torch.full_like(rows.gates.real, 2.0)
    if rows.logs is None:
        return product_and_sum
    return lines.ordered(product_and_sum + _exp_roundings(rows.logs))


def _exp_roundings(logs: Tensor) -> Tensor:
    """What exp adds: it turns the rounding of a logarithm, or of a sum of them, into a relative error of |log g| u."""
    return torch.where(logs.isfinite(), 2 * (1 + logs.abs()), 0.0)
