"""How far rounding alone may carry a result from the exact one: bounds derived from the data, nothing tuned.

Every state is a sum of terms: a token, or the initial state, times the gates behind it. Whatever the order in which a
scan combines its steps, a term that has passed m gates has been rounded at most once for each of these products and
once for each sum that it entered: at most one for every gate, as each combination to the right brings at least one,
and one for each level of combinations to its left, of which a tree has log2(T); the carry from tile to tile, the last
step in registers and the load of the initial state add a few (`_SUMS`). So with u the unit roundoff of the arithmetic

    |computed - exact| <= sum over terms of |term| * (2 * m + log2(T) + _SUMS) * u / (1 - k * u),

k being the largest of those counts (Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1). Two more
recurrences on absolute values give the sum: of |term|, and of |term| * m. Then the result is rounded once to its dtype.
A gate that is an exponential brings the error of that function too. Gradients are the same recurrence the other way.

Of complex numbers all this holds for absolute values, where a product counts for sqrt(5) roundings at most (Brent,
Percival and Zimmermann 2007, Error bounds on complex floating-point multiplication), here 3, and a sum for one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scan.reference import final_state, sequential_scan
from tests.conftest import INTERPRETING
from tests.scan.cases import Case, Inputs

_SUMS = 4
# An exponential is 2**(x * log2(e)): the product's rounding counts |x| times; the power is good to 2**-22 (CUDA's
# ex2.approx) and the library's exp is better.
_EXPONENTIAL = 5.0
# Sine and cosine are good to 2 units in the last place, which are 4 roundings; each is multiplied once.
_ANGLE = 5.0

Bounds = dict[str, tuple[Tensor, Tensor]]


class _Side(NamedTuple):
    """Absolute values met in scan order, as `[T, rows]`: the sum of |term|, and that of |term| * roundings."""

    total: np.ndarray
    counted: np.ndarray


def expected(case: Case, inputs: Inputs) -> Bounds:
    """For every output of a case its exact value and the bound on the error, in float64 on the CPU."""
    exact = _exact(case, inputs)
    wide = case.wide
    # In float64 the reference itself is rounded as often as the result.
    unit = _unit(wide) * (2 if torch.finfo(wide).bits == 64 else 1)
    gates, tokens = _rows(case, inputs.gates.real if case.log else inputs.gates.abs()), _rows(case, inputs.tokens.abs())
    product = 3 if wide.is_complex else 1
    per_gate = np.full_like(gates, product + 1.0)
    if case.log:
        per_gate += _EXPONENTIAL + np.abs(gates) + (_ANGLE if inputs.gates.is_complex() else 0)
        gates = np.exp(gates)
    count = per_gate.sum(0).max(initial=0) + math.log2(case.T + 1) + 2 * _SUMS
    slope = unit / (1 - count * unit)
    level = math.log2(case.T + 1) + _SUMS
    parts = _parts(case)
    rows = tokens.shape[1]

    def states_of(tensor: Tensor | None) -> np.ndarray:
        if tensor is None:
            return np.zeros((len(parts), rows))
        return tensor.detach().cpu().abs().double().reshape(len(parts), rows).numpy()

    initial, d_final = states_of(inputs.initial_state), states_of(inputs.d_final_state)
    states, final = _accumulate(gates, tokens, per_gate, parts, initial)
    error = _round(exact["states"], _tensor(case, slope * (states.counted + level * states.total)), case.states_dtype)
    bounds = {"states": error}
    wide_error = _states(case, slope * (final.counted + level * final.total))
    bounds["final_state"] = _round(exact["final_state"], wide_error, wide)

    upstream = np.zeros_like(tokens) if inputs.d_states is None else _rows(case, inputs.d_states.abs())
    flow, entered = _flow_back(gates, upstream, per_gate, parts, d_final)
    flow_error = _tensor(case, slope * (flow.counted + level * flow.total))
    bounds["d_tokens"] = _round(exact["d_tokens"], flow_error, case.dtype)
    # The other factor of d_gates is a stored state: rounded to the dtype of the tokens.
    before, before_error = exact["before"].abs(), _before(case, error)
    # Of the gradient of a real token the imaginary part is lost, which that of its gate has all the same.
    flowing = _tensor(case, flow.total) if wide.is_complex else exact["d_tokens"].abs()
    d_gates = flow_error * (before + before_error) + flowing * before_error
    extra = per_gate - 1 + (product if case.log and wide.is_complex else 0)
    d_gates = d_gates + (flowing * before + d_gates) * _tensor(case, slope * extra)
    if case.log:
        d_gates = d_gates * inputs.gates.detach().cpu().real.double().exp()
    bounds["d_gates"] = _round(exact["d_gates"], d_gates, inputs.gates.dtype)
    if inputs.initial_state is not None:
        entered_error = _states(case, slope * (entered.counted + level * entered.total))
        bounds["d_initial_state"] = _round(exact["d_initial_state"], entered_error, inputs.initial_state.dtype)
    return {name: (exact[name], bound) for name, bound in bounds.items()}


def assert_within(actual: dict[str, Tensor | None], wanted: Bounds) -> None:
    """Every output is there, has no NaN, and differs from the exact value by no more than its bound."""
    for name, (value, bound) in wanted.items():
        result = actual[name]
        assert result is not None, f"{name} is missing"
        assert result.shape == value.shape, f"{name} has shape {tuple(result.shape)}, not {tuple(value.shape)}"
        error = (result.detach().cpu().to(value.dtype) - value).abs()
        wrong = ~(error <= bound)
        if wrong.any():
            where = tuple(int(i) for i in wrong.nonzero()[0])
            raise AssertionError(
                f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are off by more than rounding, first at "
                f"{where}: {result[where].item()!r} instead of {value[where].item()!r} ± {bound[where].item():.2g}"
            )


def _exact(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Outputs and gradients by the sequential scan and PyTorch's own autograd."""

    def leaf(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else _double(tensor.detach().cpu()).requires_grad_()

    gates, tokens, initial = leaf(inputs.gates), leaf(inputs.tokens), leaf(inputs.initial_state)
    assert gates is not None and tokens is not None
    cu_seqlens = None if inputs.cu_seqlens is None else inputs.cu_seqlens.cpu()
    states = sequential_scan(gates, tokens, initial, cu_seqlens=cu_seqlens, **case.keywords)
    final = final_state(states, initial, dim=case.dim, reverse=case.reverse, cu_seqlens=cu_seqlens)
    loss = gates.sum().real * 0  # reaches the leaves even where no step does
    for output, upstream in ((states, inputs.d_states), (final, inputs.d_final_state)):
        if upstream is not None:
            loss = loss + (output * _double(upstream.cpu()).conj()).sum().real
    wanted = {"d_gates": gates, "d_tokens": tokens} | ({} if initial is None else {"d_initial_state": initial})
    gradients = torch.autograd.grad(loss, list(wanted.values()), materialize_grads=True, allow_unused=True)
    exact = {"states": states.detach(), "final_state": final.detach()} | dict(zip(wanted, gradients, strict=True))
    exact["before"] = _before(case, exact["states"], None if initial is None else initial.detach())
    return exact


def _before(case: Case, states: Tensor, initial: Tensor | None = None) -> Tensor:
    """What the step before each step holds: the initial state, or 0, where a sequence begins."""
    before = torch.zeros_like(states)
    for n, (start, stop) in enumerate(zip(case.offsets, case.offsets[1:], strict=False)):
        if start == stop:
            continue
        at, kept = (stop - 1, (start + 1, start)) if case.reverse else (start, (start, start + 1))
        length = stop - start - 1
        before.narrow(case.dim, kept[1], length).copy_(states.narrow(case.dim, kept[0], length))
        if initial is not None:
            before.select(case.dim, at).copy_(initial if case.lengths is None else initial[n])
    return before


def _accumulate(
    gates: np.ndarray, tokens: np.ndarray, per_gate: np.ndarray, parts: list[tuple[int, int, int]], initial: np.ndarray
) -> tuple[_Side, _Side]:
    """Of states at every step, and after the last step of every sequence."""
    steps = _Side(np.zeros_like(tokens), np.zeros_like(tokens))
    final = _Side(initial.copy(), np.zeros_like(initial))
    for n, start, stop in parts:
        total, counted = initial[n], np.zeros_like(initial[n])
        for t in range(start, stop):
            counted = gates[t] * (counted + per_gate[t] * total)
            total = gates[t] * total + tokens[t]
            steps.total[t], steps.counted[t] = total, counted
        final.total[n], final.counted[n] = total, counted
    return steps, final


def _flow_back(
    gates: np.ndarray,
    upstream: np.ndarray,
    per_gate: np.ndarray,
    parts: list[tuple[int, int, int]],
    d_final: np.ndarray,
) -> tuple[_Side, _Side]:
    """Of the gradients of tokens at every step, and of the initial state of every sequence."""
    steps = _Side(np.zeros_like(upstream), np.zeros_like(upstream))
    entered = _Side(d_final.copy(), np.zeros_like(d_final))
    for n, start, stop in parts:
        total, counted = d_final[n], np.zeros_like(d_final[n])
        for t in range(stop - 1, start - 1, -1):
            total = total + upstream[t]
            steps.total[t], steps.counted[t] = total, counted
            counted = gates[t] * (counted + per_gate[t] * total)
            total = gates[t] * total
        entered.total[n], entered.counted[n] = total, counted
    return steps, entered


def _round(value: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound after one rounding to the dtype; a value that is exactly 0 for want of any term stays so."""
    # Triton's interpreter cuts a bfloat16 off where hardware rounds it.
    once = _unit(dtype) * (2 if INTERPRETING and dtype == torch.bfloat16 else 1)
    tiny = torch.finfo(dtype).smallest_normal * 2 * once + torch.finfo(torch.float32).tiny
    return torch.where((value == 0) & (error == 0), 0.0, error + once * (value.abs() + error) + tiny)


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def _double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))


def _parts(case: Case) -> list[tuple[int, int, int]]:
    """Sequences `(n, start, stop)` on the time axis as scanned."""
    parts = [(n, *ends) for n, ends in enumerate(zip(case.offsets, case.offsets[1:], strict=False))]
    return [(n, case.T - stop, case.T - start) for n, start, stop in parts] if case.reverse else parts


def _rows(case: Case, tensor: Tensor) -> np.ndarray:
    """`[T, rows]` in scan order."""
    values = tensor.detach().cpu().double().movedim(case.dim, 0).reshape(case.T, math.prod(case.rows))
    return (values.flip(0) if case.reverse else values).numpy()


def _tensor(case: Case, rows: np.ndarray) -> Tensor:
    """The inverse of `_rows`."""
    values = torch.from_numpy(rows).reshape(case.T, *case.rows)
    return (values.flip(0) if case.reverse else values).movedim(0, case.dim)


def _states(case: Case, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows).reshape(case.state_shape)
