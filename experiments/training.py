"""One case of the training experiment: a small network trained with each scan, from the same weights on the same data.

`draws` of the case is the number of batches, one a step. All networks take each step in turns, so that a step time is
beside that of the others in the same moment, and a curve of losses can be compared step by step. Of each is kept:

    losses        the loss of every step
    samples_ms    the time of every step: loss, gradients, update, until the loss is known to the host
    detail        held_bytes: what a loss and its gradients hold at most beyond weights and data

What is right is the curve of a network whose states are computed in float64 and rounded once. How far a right curve may
be from it no formula says, since training magnifies differences; two more networks show it, whose scans have a random
error in each step, forward and backward, of the size of its rounding. A curve is wrong where its mean distance from the
exact one is more than `ALLOWED` times the greater of theirs, or where a loss is not finite.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.bench import make_room
from experiments.clock import Clock
from experiments.compile_block import Scan
from experiments.config import Case, Measure
from experiments.failures import Emit, Failures, Result
from experiments.inputs import DTYPES, bytes_of
from experiments.memory import held_at_most
from experiments.providers.registry import PROVIDERS
from experiments.training_model import ITEMS, SCANS, batch, exact, loss_of, network_of, refuses, rounded

ALLOWED = 4
ROUNDED = 2
LEARNING_RATE = 3e-3
LARGEST_NORM = 1.0
EXACT = "the exact network"


class Training:
    """A network, its optimizer, and what became of its steps so far."""

    def __init__(self, case: Case, scan: Scan, device: str) -> None:
        self.case, self.device = case, device
        self.network = network_of(case, scan, device)
        self.weights = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(self.weights, lr=LEARNING_RATE)
        self.losses: list[float] = []
        self.samples_ms: list[float] = []

    def gradients(self, symbols: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
        """The loss and its gradients; no weight changes."""
        loss = loss_of(self.network, self.case, symbols, wanted)
        return loss.detach(), *torch.autograd.grad(loss, self.weights)

    def step(self, symbols: Tensor, wanted: Tensor) -> None:
        """One batch, from an idle device until its loss is known."""
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        loss, *gradients = self.gradients(symbols, wanted)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.weights, LARGEST_NORM)
        self.optimizer.step()
        value = loss.item()
        self.samples_ms.append((time.perf_counter() - began) * 1e3)
        self.losses.append(value)


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of the named providers, in that order; the settings of measuring change nothing here."""
    if case.T < 2 * ITEMS:
        reason = f"Selective copying needs T of at least {2 * ITEMS}, and the case has {case.T}."
        return {"providers": {name: {"status": "unsupported", "reason": reason} for name in providers}}
    clock, failures = Clock(), Failures(device, emit)
    results: dict[str, Result] = {}
    trainings: dict[str, Training] = {}
    for name in providers:
        emit("checking", {"provider": name})
        with clock.of(name, "admission"):
            if failures.broken_by is not None:
                results[name] = failures.lost()
                continue
            try:
                reason = refuses(name, case, device)
                if reason is not None:
                    results[name] = {"status": "unsupported", "reason": reason}
                    continue
                trainings[name], results[name] = admit(name, case, device)
            except Exception as error:
                results[name] = failures.result(name, error)
    references = _references(case, device) if trainings else {}
    emit("training", {"providers": list(trainings)})
    lost = train(case, trainings, references, failures, clock)
    results |= {name: result for name, result in lost.items() if name in results}
    protocol = {
        "timing": "steps", "l2": "warm", "steps": case.draws, "tensor_bytes": bytes_of(case), "allowed": ALLOWED,
        "learning_rate": LEARNING_RATE,
    }  # fmt: skip
    trained = {name: training for name, training in trainings.items() if name not in lost}
    without = [lost[name]["reason"] for name in references if name in lost]
    if without:
        reason = f"{EXACT} could not be trained, and nothing else says what is right: {without[0]}"
        results |= {name: {"status": "error", "reason": reason} for name in trained}
    elif trained:
        curves = [each.losses for each in references.values()]
        rounding = of_rounding(curves, case)
        protocol |= {"exact_losses": curves[0], "rounded_losses": curves[1:], "rounding": rounding}
        results |= {name: results[name] | judge(name, each, curves[0], rounding) for name, each in trained.items()}
    ordered = {name: results[name] for name in providers}
    return {"providers": ordered, "protocol": protocol | failures.protocol() | {"elapsed_s": clock.seconds()}}


def admit(name: str, case: Case, device: str) -> tuple[Training, Result]:
    """A network that has taken no step yet, and what its gradients hold; the second call counts, as in `memory`."""
    if torch.device(device).type == "cuda":
        make_room(device)
    training = Training(case, SCANS[name], device)
    given = batch(case, 0, device)
    training.gradients(*given)
    held = held_at_most(lambda: training.gradients(*given), device)
    return training, {"status": "ok", "reason": None, "detail": {"held_bytes": held, **_layout(name, case, device)}}


def _layout(name: str, case: Case, device: str) -> dict[str, Any]:
    return PROVIDERS[name].detail(case, device) if name == "warp" else {}


def _references(case: Case, device: str) -> dict[str, Training]:
    """The exact network, and those with rounding errors, each with errors of its own."""
    scans: dict[str, Scan] = {EXACT: exact}
    for number in range(ROUNDED):
        generator = torch.Generator(device).manual_seed(case.seed + 1 + number)
        scans[f"{EXACT}, rounded ({number + 1})"] = rounded(generator)
    return {name: Training(case, scan, device) for name, scan in scans.items()}


def train(
    case: Case, trainings: dict[str, Training], references: dict[str, Training], failures: Failures, clock: Clock
) -> dict[str, Result]:
    """Take every step with every network, each time beginning with another; the results of those that failed."""
    live, lost = {**trainings, **references}, {}
    for step in range(case.draws if trainings else 0):
        given = batch(case, step, failures.device)
        first = step % len(live) if live else 0
        for name in [*live][first:] + [*live][:first]:
            with clock.of(name, "training"):
                try:
                    live[name].step(*given)
                except Exception as error:
                    lost[name] = failures.result(name, error)
                    del live[name]
    return lost


def distance(losses: Sequence[float], of: Sequence[float]) -> float:
    """The mean distance of two curves, step by step."""
    return statistics.fmean(abs(a - b) for a, b in zip(losses, of, strict=True))


def of_rounding(curves: Sequence[Sequence[float]], case: Case) -> float:
    """How far rounding moves a curve; at least as far as the loss itself would be rounded."""
    eps = torch.finfo(torch.promote_types(DTYPES[case.dtype], torch.float32)).eps
    return max(eps * statistics.fmean(curves[0]), *(distance(each, curves[0]) for each in curves[1:]))


def judge(name: str, training: Training, right: Sequence[float], rounding: float) -> Result:
    """Losses, times, and whether the curve is the exact one as far as rounding allows."""
    broken = next((step for step, loss in enumerate(training.losses) if not math.isfinite(loss)), None)
    off = distance(training.losses, right) / rounding if broken is None else math.inf
    reason = None
    if broken is not None:
        reason = f"the loss is not finite from step {broken} on."
    elif not off <= ALLOWED:
        reason = f"the loss is on average {off:.3g} times as far from the exact curve as rounding sets it."
    result: Result = {
        "status": "ok" if reason is None else "wrong", "reason": reason, "losses": training.losses,
        "errors": {"of_rounding": off},
    }  # fmt: skip
    # What is wrong and ours has no number.
    return result if reason is not None and name == "ours" else result | {"samples_ms": training.samples_ms}
