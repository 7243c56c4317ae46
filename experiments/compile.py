"""One case of the compile experiment: a training step of a gated recurrent layer with each scan, compiled and not.

A scan is run in up to three ways: compiled (under its name), `_eager`, and compiled for little overhead, with CUDA
graphs (`_reduce_overhead`). All weights and inputs are the same. Of each way is kept:

    samples_ms        a step in a loop of steps, as a training runs it: the host may run ahead of the device
    host_samples_us   the time until a step that starts on an idle device returns
    detail            graph_breaks, graphs, compile_s, and peak_tensors: what a step holds at most beyond weights and
                      inputs, in tensors of the size of the input (with CUDA graphs, memory is kept aside: not counted)

A way passes a gate first, on the output and the gradient of the input for the first sequence of the batch: its distance
from the block in float64 with a sequential scan is at most `ALLOWED` times that of the same block in the dtype of the
case, not compiled, with states of that scan rounded once.
"""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.bench import make_room
from experiments.clock import Clock
from experiments.compile_block import SCANS, WAYS, Block, Way, block_of, exact_scan, refuses
from experiments.config import Case, Measure
from experiments.failures import Emit, Failures, Result
from experiments.inputs import DTYPES
from experiments.memory import held_at_most
from experiments.timing import Sample, calls_for, interleave, warm_up

ALLOWED = 4
_HOST_CALLS = 5
_STEPS_BEFORE = 2
"""With CUDA graphs the second step is recorded, and later ones are replayed."""
Step = Callable[[], tuple[Tensor, ...]]


def run_case(case: Case, providers: tuple[str, ...], settings: Measure, device: str, emit: Emit) -> dict[str, Any]:
    """Results of every way to run every named scan; a scan that is refused has one result, under its own name."""
    clock, failures = Clock(), Failures(device, emit)
    results: dict[str, Result] = {}
    samplers: dict[str, StepSampler] = {}
    calls: dict[str, int] = {}
    torch._dynamo.reset()
    with clock.of("inputs"):
        x, upstream = inputs(case, device)
        exact = exact_of(case, x, upstream, device)
    for name in providers:
        emit("checking", {"provider": name})
        reason = refuses(name, case, device)
        if reason is not None:
            results[name] = {"status": "unsupported", "reason": reason}
            continue
        for way in WAYS[name]:
            label = name + way.suffix
            if way.cuda_graphs and torch.device(device).type != "cuda":
                results[label] = {"status": "unsupported", "reason": "CUDA graphs need a GPU."}
                continue
            if failures.broken_by is not None:
                results[label] = failures.lost()
                continue
            with clock.of(label, "admission"):
                try:
                    results[label], sampler = admit(case, name, way, x, upstream, exact, device)
                    step_ms = warm_up(sampler, settings.warmup_ms)
                    if step_ms > 1e3 * settings.longest_call_s:
                        limit = settings.longest_call_s
                        reason = f"one step took {step_ms:.3g} ms, more than measure.longest_call_s = {limit:g}."
                        results[label] |= {"status": "unsupported", "reason": reason}
                        continue
                    samplers[label], calls[label] = sampler, calls_for(settings.target_ms, step_ms, 1)
                except Exception as error:
                    results[label] = failures.result(label, error)
    # What is wrong and ours has no number.
    timed = {k: s for k, s in samplers.items() if results[k]["status"] == "ok" or not k.startswith("ours")}

    def failed(label: str, error: Exception) -> None:
        results[label] = failures.result(label, error)

    emit("timing", {"providers": list(timed)})
    spent: dict[str, float] = {}
    taken = interleave(timed, calls, settings.repeats, lambda _: None, failed, spent)
    for label, samples in taken.items():
        results[label] |= {
            "samples_ms": [sample.ms for sample in samples],
            "host_samples_us": [sample.host_us for sample in samples if sample.host_us is not None],
        }
    for label, seconds in spent.items():
        clock.add(seconds, label, "timing")
    protocol = {
        "timing": "steps", "l2": "warm", "repeats": settings.repeats, "target_ms": settings.target_ms,
        "warmup_ms": settings.warmup_ms, "tensor_bytes": x.numel() * x.element_size(), "allowed": ALLOWED,
    }  # fmt: skip
    return {"providers": results, "protocol": protocol | failures.protocol() | {"elapsed_s": clock.seconds()}}


def inputs(case: Case, device: str) -> tuple[Tensor, Tensor]:
    """The input of the block and the gradient of its output."""
    generator = torch.Generator(device).manual_seed(case.seed)
    shape = (case.B, case.T, case.C)
    x, upstream = (torch.randn(shape, generator=generator, device=device).to(DTYPES[case.dtype]) for _ in range(2))
    return x.requires_grad_(), upstream


def step_of(case: Case, run: Callable[[Tensor], Tensor], block: Block, x: Tensor, upstream: Tensor) -> Step:
    """The output, and with backward the gradients of the input and of all weights."""
    if case.mode == "forward":

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (run(x),)

        return forward
    leaves = (x, *block.parameters())

    def step() -> tuple[Tensor, ...]:
        y = run(x)
        return y, *torch.autograd.grad(y, leaves, upstream)

    return step


Exact = tuple[list[Tensor], list[float]]


def exact_of(case: Case, x: Tensor, upstream: Tensor, device: str) -> Exact:
    """Exact results for the first sequence, and how far the plain block in the dtype of the case is from them."""
    truth, plain = (
        step_of(
            case, block := block_of(case, exact_scan, device, dtype), block,
            x[:1].detach().to(dtype).requires_grad_(), upstream[:1].to(dtype),
        )()[:2]
        for dtype in (torch.float64, DTYPES[case.dtype])
    )  # fmt: skip
    return [t.detach() for t in truth], [distance(p, t) for p, t in zip(plain, truth, strict=True)]


def distance(result: Tensor, exact: Tensor) -> float:
    """The norm of the difference over the norm of what is exact."""
    return ((result.detach().double() - exact).norm() / exact.norm()).item()


def admit(
    case: Case, name: str, way: Way, x: Tensor, upstream: Tensor, exact: Exact, device: str
) -> tuple[Result, StepSampler]:
    """The result so far of one way to run a scan: whether it is right, what compiling it took, what it holds."""
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    cuda = torch.device(device).type == "cuda"
    if cuda:
        make_room(device)
    counters.clear()
    block = block_of(case, SCANS[name], device)
    run: Callable[[Tensor], Tensor] = torch.compile(block, dynamic=False, **way.options) if way.compiled else block
    step = step_of(case, run, block, x, upstream)
    if way.cuda_graphs:
        step = _marked(step)
    began = time.perf_counter()
    step()
    if cuda:
        torch.cuda.synchronize()
    detail: dict[str, Any] = {
        "compile_s": round(time.perf_counter() - began, 3) if way.compiled else None,
        "graph_breaks": sum(counters["graph_break"].values()) if way.compiled else None,
        "graphs": counters["stats"]["unique_graphs"] if way.compiled else None,
    }
    for _ in range(_STEPS_BEFORE):
        step()
    outputs = [output[:1].clone() for output in step()[:2]]
    truth, allowed = exact
    errors = {label: distance(o, t) for label, o, t in zip(("output", "d_input"), outputs, truth, strict=False)}
    beyond = [
        f"{label} is {error / limit:.3g} times as far from the exact block as the plain one"
        for (label, error), limit in zip(errors.items(), allowed, strict=True)
        if not error <= ALLOWED * limit
    ]
    if not way.cuda_graphs:
        detail["peak_tensors"] = held_at_most(step, device) / (x.numel() * x.element_size())
    result: Result = {
        "status": "wrong" if beyond else "ok", "reason": "; ".join(beyond) + "." if beyond else None,
        "errors": errors, "detail": detail,
    }  # fmt: skip
    return result, StepSampler(step, cuda)


def _marked(step: Step) -> Step:
    """A step that says that the outputs of the one before it may be overwritten."""

    @functools.wraps(step)
    def marked() -> tuple[Tensor, ...]:
        torch.compiler.cudagraph_mark_step_begin()
        return step()

    return marked


class StepSampler:
    """Steps one after another, as a training takes them; and how long a step keeps the host from an idle device."""

    timing = "steps"
    batch = 1

    def __init__(self, step: Step, cuda: bool) -> None:
        self._step, self._cuda = step, cuda

    def sample(self, calls: int, keep: bool = False) -> Sample:
        """The mean over steps in a row, by the host's clock from idle to idle; the median of the host's share."""
        self._wait()
        began = time.perf_counter()
        for _ in range(calls):
            self._step()
        self._wait()
        ms = (time.perf_counter() - began) * 1e3 / calls
        host = []
        for _ in range(min(calls, _HOST_CALLS) if self._cuda else 0):
            began = time.perf_counter()
            self._step()
            host.append(time.perf_counter() - began)
            self._wait()
        return Sample(ms, statistics.median(host) * 1e6 if host else None)

    def outputs(self) -> tuple[Any, ...]:
        """None are kept: a step was judged when it was admitted."""
        return ()

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
