"""One case of the precision experiment: the error of states and gradients over many draws, against the exact results.

All draws are stacked along the batch axis, so that each provider is called once and the truth is computed once. The
truth is that of the inputs as the providers get them, already rounded to the dtype. The exact d_gates is made of exact
states; an implementation that stores states in 16 bits multiplies with rounded ones.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from experiments.config import Case, Measure
from experiments.inputs import DTYPES, Inputs, draw, gate_values
from experiments.measure import failure, release_memory
from experiments.providers.base import OUTPUTS, SIXTEEN_BIT, Named, Provider
from experiments.providers.registry import PROVIDERS
from experiments.truth import Truth, take, take_inputs, truth_of

Emit = Callable[[str, dict[str, Any]], None]
Result = dict[str, Any]


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Errors per draw of the named providers, in that order; `settings` say how to time, and nothing is timed."""
    stacked = replace(case, level="api", mode="forward_backward", B=case.draws * case.B)
    given = moved(draw(stacked, "cpu"), device)
    truths: dict[bool, Truth] = {}
    results: dict[str, Result] = {}
    for name in providers:
        emit("comparing", {"provider": name})
        provider = PROVIDERS[name]
        reason = provider.refuses(stacked, device) if provider.computes else f"{name} computes nothing."
        if reason is not None:
            results[name] = {"status": "unsupported", "reason": reason}
            continue
        try:
            outputs = compute(provider, stacked, given)
        except Exception as error:
            results[name] = failure(error)
            emit("traceback", {"provider": name, "text": "".join(traceback.format_exception(error))})
            release_memory(device)
            continue
        if provider.log_gates not in truths:
            # From the device's tensors: a logarithm of a gate differs between devices.
            rows = torch.arange(stacked.B * stacked.C)
            truths[provider.log_gates] = truth_of(take_inputs(given, stacked, rows, provider.log_gates), stacked)
        results[name] = compare(outputs, truths[provider.log_gates], stacked, case.draws)
        results[name]["detail"] = provider.detail(stacked, device)
    return {"providers": results, "protocol": protocol(case)}


def moved(drawn: Inputs, device: str) -> Inputs:
    """The same inputs on another device: a draw on the CPU is the same on every machine."""
    cu_seqlens = None if drawn.cu_seqlens is None else drawn.cu_seqlens.to(device)
    return Inputs(drawn.gates.to(device), drawn.tokens.to(device), drawn.d_states.to(device), cu_seqlens)


def compute(provider: Provider, stacked: Case, given: Inputs) -> Named:
    """States and gradients of one provider, on the CPU."""
    provider.prepare(stacked, [given])
    call = provider.build(stacked, given)
    outputs = call.run()
    if call.finish is not None:
        call.finish(outputs)
    return {name: tensor.detach().cpu() for name, tensor in call.read(outputs).items()}


def compare(outputs: Named, truth: Truth, stacked: Case, draws: int) -> Result:
    """The errors of every output in every draw, and whether a number of them can be used at all."""
    errors: dict[str, Any] = {}
    diverged, overflowed = [], []
    rows = torch.arange(stacked.B * stacked.C)
    for name in OUTPUTS["forward_backward"]:
        exact = truth.of(name)
        difference = _by_draw(take(outputs[name], stacked, rows) - exact, draws)
        rounding = _by_draw(exact.to(DTYPES[stacked.dtype]).double() - exact, draws)
        nonfinite = (~difference.isfinite()).sum((0, 2)).tolist()
        rmse = _root_mean_square(difference)
        errors[name] = {
            "rmse": _finite(rmse),
            "rounding_rmse": _finite(_root_mean_square(rounding)),
            "max_abs_err": _finite(difference.abs().amax((0, 2))),
            "nonfinite": nonfinite,
        }
        hopeless = int((rmse > _root_mean_square(_by_draw(exact, draws))).sum())
        if any(nonfinite):
            diverged.append(f"{sum(nonfinite)} of {exact.numel()} elements of {name} are not finite")
        elif hopeless:
            overflowed.append(f"in {hopeless} of {draws} draws the error of {name} is larger than {name}")
    status = "diverged" if diverged else "overflowed" if overflowed else "ok"
    reasons = diverged + overflowed
    return {"status": status, "reason": "; ".join(reasons) + "." if reasons else None, "errors": errors}


def protocol(case: Case) -> dict[str, Any]:
    """How the errors were measured; for 16-bit gates in a narrow range also every value that they can take."""
    facts: dict[str, Any] = {"truth": "sequential_scan in float64 of the rounded inputs", "draws": case.draws}
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
