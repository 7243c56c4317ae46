"""`python -m experiments.smoke`: in a minute, can this machine reproduce the paper?

One kernel against the sequential scan, one torch.compile call, one comparison with accelerated-scan's warp kernel, and
one record of the sweep `experiment=smoke`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.hardware import ROOT
from experiments.providers.registry import PROVIDERS
from scan import linear_scan
from scan.reference import sequential_scan

ROWS, CHANNELS, STEPS = 2, 64, 1024
# Of the largest state: many times what rounding explains at this length, and far below any wrong answer.
TOLERANCE = 1e-5
OK, SKIPPED, FAILED = "ok", "skipped", "failed"


@dataclass(frozen=True)
class Finding:
    """What came of one check, in a sentence."""

    status: str
    sentence: str


def draw(device: str) -> tuple[Tensor, Tensor]:
    """Gates in [0, 1) and tokens, the same on every machine."""
    generator = torch.Generator().manual_seed(0)
    gates = torch.rand(ROWS, CHANNELS, STEPS, generator=generator)
    tokens = torch.randn(ROWS, CHANNELS, STEPS, generator=generator)
    return gates.to(device), tokens.to(device)


def compared(what: str, states: Tensor, wanted: Tensor, with_what: str) -> Finding:
    """Whether two results agree, relative to the largest state."""
    difference = (states.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    sentence = f"{what} differs from {with_what} by {difference.item():.1e} of the largest state"
    # A NaN compares as false.
    if difference <= TOLERANCE:
        return Finding(OK, f"{sentence}.")
    return Finding(FAILED, f"{sentence}, and {TOLERANCE:.0e} is allowed.")


def kernel(device: str) -> Finding:
    """The operator of this device against the definition of correct."""
    gates, tokens = draw(device)
    what = "The Triton kernel" if device == "cuda" else "The CPU implementation"
    truth = sequential_scan(gates.cpu(), tokens.cpu())
    return compared(what, linear_scan(gates, tokens).states.cpu(), truth, "the sequential scan in float64")


def compiled(device: str) -> Finding:
    """One call through torch.compile: a compiler, Python's headers and the driver's library are all found."""
    gates, tokens = draw(device)

    def gated(gates: Tensor, tokens: Tensor) -> Tensor:
        return linear_scan(gates, torch.tanh(tokens)).states

    states = torch.compile(gated, fullgraph=True)(gates, tokens)
    return compared("The operator in torch.compile", states, gated(gates, tokens), "the same without")


def warp(device: str) -> Finding:
    """Our states beside those of the paper's main competitor."""
    provider = PROVIDERS["warp"]
    reason = provider.missing()
    if reason is not None:
        return Finding(SKIPPED if device == "cpu" else FAILED, f"Nothing was compared with warp: {reason}")
    gates, tokens = draw(device)
    states = provider.module().scan(gates, tokens)
    return compared("Our kernel", linear_scan(gates, tokens).states, states, "accelerated-scan's warp kernel")


def record(device: str) -> Finding:
    """One case of the sweep, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments", "experiment=smoke", "experiment.dtype=float32"]
        command += ["experiment.mode=forward", "measure=quick", "tracking=disabled", "providers=ours"]
        command += [f"hardware={'auto' if device == 'cuda' else 'cpu'}", f"outputs={folder}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        written = sorted(Path(folder).rglob("record.json"))
        if done.returncode or len(written) != 1:
            last = ((done.stderr + done.stdout).strip().splitlines() or ["no message"])[-1]
            return Finding(FAILED, f"The sweep ended with exit status {done.returncode} and left no record: {last}")
        made = json.loads(written[0].read_text(encoding="utf-8"))
    result = made["providers"]["ours"]
    if result["status"] != "ok":
        return Finding(FAILED, f"The sweep's record holds no time of ours: {result['status']}, {result['reason']}")
    where = made["provenance"]["gpu"] or made["provenance"]["cpu"]
    return Finding(OK, f"A record was measured on {where} with {len(result['samples_ms'])} samples of ours.")


CHECKS: dict[str, Callable[[str], Finding]] = {"kernel": kernel, "compile": compiled, "warp": warp, "record": record}


def attempt(check: Callable[[str], Finding], device: str) -> Finding:
    """A check whose exception is a finding too: what is missing on a machine shows itself in any of them."""
    try:
        return check(device)
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return Finding(FAILED, f"It ended with {type(error).__name__}: {first}")


def machine(device: str) -> str:
    """Device and versions in one line."""
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, triton {triton}"


def verdict(device: str, findings: list[Finding]) -> str:
    """What the findings mean for whoever wants to reproduce."""
    failed = sum(finding.status == FAILED for finding in findings)
    if failed:
        return f"This machine cannot reproduce the paper yet: {failed} of {len(findings)} checks failed."
    if device == "cpu":
        return (
            "PyTorch sees no GPU here: the paper can be built from its stored results, and the CPU can be measured; "
            "the paper's own measurements need a GPU."
        )
    return "This machine can reproduce the paper's measurements."


def main(arguments: list[str]) -> int:
    """Run the checks; the exit status is 1 if one failed, 0 also where a GPU is missing and nothing else."""
    argparse.ArgumentParser(
        prog="python -m experiments.smoke", description="Can this machine reproduce the paper? It takes no options."
    ).parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine(device), flush=True)
    findings = []
    for name, check in CHECKS.items():
        finding = attempt(check, device)
        findings.append(finding)
        print(f"{name:<8} {finding.status:<8} {finding.sentence}", flush=True)
    print(verdict(device, findings))
    return int(any(finding.status == FAILED for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
