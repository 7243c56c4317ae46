"""One case of the precision experiment: the error of states and gradients over many draws, against the exact results.

All draws are stacked along the batch axis, so that each provider is called once and the truth is computed once. The
truth is that of the inputs as the providers get them, already rounded to the dtype. The exact d_gates is made of exact
states; an implementation that stores states in 16 bits multiplies with rounded ones. Both layouts hold the same draws.

Every element is held to the error budget of `correctness`, the one of the gate before the clock: `of_budget` is the
largest error of a draw in units of it, and a result beyond 1, which no rounding explains, is `wrong`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from experiments.clock import Clock
from experiments.config import Case, Measure
from experiments.correctness import Exact, budget, exact
from experiments.failures import Emit, Failures, Result
from experiments.inputs import DTYPES, Inputs, changed, checksums, draw, gate_values
from experiments.providers.base import OUTPUTS, SIXTEEN_BIT, Named, Provider
from experiments.providers.registry import PROVIDERS
from experiments.truth import take


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Errors per draw of the named providers, in that order; `settings` say how to time, and nothing is timed."""
    clock, failures = Clock(), Failures(device, emit)
    stacked = replace(case, level="api", mode="forward_backward", B=case.draws * case.B)
    with clock.of("inputs"):
        drawn, given = _drawn(stacked, device)
        sums = checksums([given])
    results: dict[str, Result] = {}
    for name in providers:
        emit("comparing", {"provider": name})
        if failures.broken_by is not None:
            results[name] = failures.lost()
            continue
        with clock.of(name):
            try:
                results[name] = measure(PROVIDERS[name], stacked, given, drawn, case.draws)
                modified = changed([given], sums)
            except Exception as error:
                results[name] = failures.result(name, error)
                modified = [] if failures.broken_by else changed([given], sums)
        if modified:
            if results[name]["status"] not in ("error", "oom"):
                results[name] = {"status": "wrong", "reason": f"it modifies its inputs: {', '.join(modified)}."}
            _last.clear()
            drawn, given = _drawn(stacked, device)
    facts = protocol(case) | failures.protocol()
    return {"providers": results, "protocol": facts | {"elapsed_s": clock.seconds()}}


def measure(provider: Provider, stacked: Case, given: Inputs, drawn: Drawn, draws: int) -> Result:
    """The errors of one provider: of its public function, or of its kernels where it refuses only the former."""
    if not provider.computes:
        return {"status": "unsupported", "reason": f"{provider.name} computes nothing."}
    device = str(given.tokens.device)
    reason = provider.refuses(stacked, device)
    if reason is not None:
        stacked = replace(stacked, level="kernel")
        if provider.refuses(stacked, device) is not None:
            return {"status": "unsupported", "reason": reason}
    state = provider.accumulates(stacked, device)
    result = compare(compute(provider, stacked, given), drawn.known(provider.log_gates), stacked, draws, state)
    result["detail"] = {"level": stacked.level, **provider.detail(stacked, device)}
    return result


@dataclass
class Drawn:
    """The draws of a case with time last, on its device, and their exact results."""

    case: Case
    inputs: Inputs
    _known: dict[bool, Exact] = field(default_factory=dict)

    def laid_out(self, case: Case) -> Inputs:
        """The same numbers in the layout of a case."""
        if case.dim == -1:
            return self.inputs
        gates, tokens, d_states = (
            tensor.transpose(1, 2).contiguous()
            for tensor in (self.inputs.gates, self.inputs.tokens, self.inputs.d_states)
        )
        return Inputs(gates, tokens, d_states, self.inputs.cu_seqlens)

    def known(self, log_gates: bool) -> Exact:
        """The exact results, from the device's tensors: a logarithm of a gate differs between devices."""
        if log_gates not in self._known:
            rows = torch.arange(self.case.B * self.case.C)
            self._known[log_gates] = exact(self.case, self.inputs, rows, log_gates)
        return self._known[log_gates]


_last: list[tuple[str, Drawn]] = []


def _drawn(stacked: Case, device: str) -> tuple[Drawn, Inputs]:
    """The draws of a case, and as providers get them; those of the case before serve the other layout too."""
    case = replace(stacked, dim=-1)
    if not _last or _last[0][0] != device or _last[0][1].case != case:
        _last.clear()
        # A draw on the CPU is the same on every machine.
        _last.append((device, Drawn(case, moved(draw(case, "cpu"), device))))
    drawn = _last[0][1]
    return drawn, drawn.laid_out(stacked)


def moved(drawn: Inputs, device: str) -> Inputs:
    """The same inputs on another device."""
    cu_seqlens = None if drawn.cu_seqlens is None else drawn.cu_seqlens.to(device)
    return Inputs(drawn.gates.to(device), drawn.tokens.to(device), drawn.d_states.to(device), cu_seqlens)


def compute(provider: Provider, stacked: Case, given: Inputs) -> Named:
    """States and gradients of one provider."""
    provider.prepare(stacked, [given])
    call = provider.build(stacked, given)
    outputs = call.run()
    if call.finish is not None:
        call.finish(outputs)
    return {name: tensor.detach() for name, tensor in call.read(outputs).items()}


def compare(outputs: Named, known: Exact, stacked: Case, draws: int, state: torch.dtype) -> Result:
    """The errors of every output in every draw, and whether they can be used at all; `state` as in `budget`."""
    errors: dict[str, Any] = {}
    diverged, overflowed, outside = [], [], []
    rows = torch.arange(stacked.B * stacked.C)
    for name in OUTPUTS["forward_backward"]:
        truth = known.truth.of(name)
        difference = _by_draw(take(outputs[name], stacked, rows) - truth, draws)
        rounding = _by_draw(truth.to(DTYPES[stacked.dtype]).double() - truth, draws)
        allowed = _by_draw(budget(name, known, DTYPES[stacked.dtype], state), draws)
        of_budget = (difference.abs() / allowed).amax((0, 2))
        nonfinite = (~difference.isfinite()).sum((0, 2)).tolist()
        rmse = _root_mean_square(difference)
        errors[name] = {
            "rmse": _finite(rmse),
            "rounding_rmse": _finite(_root_mean_square(rounding)),
            "max_abs_err": _finite(difference.abs().amax((0, 2))),
            "nonfinite": nonfinite,
            "of_budget": _finite(of_budget),
        }
        hopeless = int((rmse > _root_mean_square(_by_draw(truth, draws))).sum())
        beyond = int((of_budget > 1).sum())
        if any(nonfinite):
            diverged.append(f"{sum(nonfinite)} of {truth.numel()} elements of {name} are not finite")
        elif hopeless:
            overflowed.append(f"in {hopeless} of {draws} draws the error of {name} is larger than {name}")
        elif beyond:
            worst = f"by up to {float(of_budget.max()):.3g} times its error budget"
            outside.append(f"in {beyond} of {draws} draws {name} differs from the float64 scan {worst}")
    status = "diverged" if diverged else "overflowed" if overflowed else "wrong" if outside else "ok"
    reasons = diverged + overflowed + outside
    return {"status": status, "reason": "; ".join(reasons) + "." if reasons else None, "errors": errors}


def protocol(case: Case) -> dict[str, Any]:
    """How the errors were measured; for 16-bit gates in a narrow range also every value that they can take."""
    facts: dict[str, Any] = {
        "truth": "sequential_scan in float64 of the rounded inputs, in blocks (experiments/truth.py)",
        "draws": case.draws,
    }
    if DTYPES[case.dtype] in SIXTEEN_BIT and case.gates != "uniform_0_1":
        values = gate_values(case)
        facts |= {"gate_value_count": len(values), "gate_values": values}
    return facts


def _by_draw(rows: Tensor, draws: int) -> Tensor:
    """Rows `[T, n]` as `[T, draws, n / draws]`."""
    return rows.unflatten(1, (draws, -1))


def _root_mean_square(draws: Tensor) -> Tensor:
    return draws.square().mean((0, 2)).sqrt()


def _finite(values: Tensor) -> list[float | None]:
    return [value if value == value and abs(value) != float("inf") else None for value in values.tolist()]
