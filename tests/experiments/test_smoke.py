"""The smoke command says in sentences what it found, and fails only where something is wrong."""

import subprocess
import sys

import pytest
import torch

from experiments import smoke
from experiments.hardware import ROOT
from experiments.smoke import FAILED, OK, SKIPPED, Finding


def test_it_runs_here_from_end_to_end():
    done = subprocess.run([sys.executable, "-m", "experiments.smoke"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    statuses = dict(line.split()[:2] for line in lines[1:-1] if line.split()[0] in smoke.CHECKS)
    expected = dict.fromkeys(smoke.CHECKS, OK)
    if not torch.cuda.is_available():
        expected["warp"] = SKIPPED
        assert lines[0].startswith("no GPU; torch ")
        assert lines[-1].startswith("PyTorch sees no GPU here: the paper can be built from its stored results")
    assert statuses == expected


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--bogus", 2)])
def test_it_takes_no_options(argument, status):
    command = [sys.executable, "-m", "experiments.smoke", argument]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status and "usage: python -m experiments.smoke" in done.stdout + done.stderr


@pytest.mark.parametrize(("error", "status"), [(0.0, OK), (1e-3, FAILED), (float("nan"), FAILED)])
def test_a_difference_decides(error, status):
    wanted = torch.tensor([1.0, -2.0])
    found = smoke.compared("It", wanted + torch.tensor([0.0, error]), wanted, "the truth")
    assert found.status == status
    assert found.sentence.startswith("It differs from the truth by ")
    assert ("and 1e-05 is allowed." in found.sentence) == (status == FAILED)


def test_a_wrong_operator_is_found(monkeypatch):
    right = smoke.linear_scan
    monkeypatch.setattr(smoke, "linear_scan", lambda gates, tokens: right(gates, tokens * 1.001))
    assert smoke.kernel("cpu").status == FAILED


def test_an_exception_is_a_finding():
    def check(device):
        raise RuntimeError("no compiler\nsecond line")

    assert smoke.attempt(check, "cpu") == Finding(FAILED, "It ended with RuntimeError: no compiler")


def test_warp_may_be_missing_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr(type(smoke.PROVIDERS["warp"]), "missing", lambda self: "there is no nvcc.")
    assert smoke.warp("cpu") == Finding(SKIPPED, "Nothing was compared with warp: there is no nvcc.")
    assert smoke.warp("cuda").status == FAILED


def test_a_sweep_that_fails_is_quoted(monkeypatch):
    ended = subprocess.CompletedProcess([], 2, stdout="", stderr="first\nerror: no such preset.\n")
    monkeypatch.setattr(smoke.subprocess, "run", lambda *args, **kwargs: ended)
    assert smoke.record("cpu") == Finding(
        FAILED, "The sweep ended with exit status 2 and left no record: error: no such preset."
    )


@pytest.mark.parametrize(
    ("device", "statuses", "sentence"),
    [
        ("cuda", [OK, OK], "This machine can reproduce the paper's measurements."),
        ("cuda", [OK, FAILED], "This machine cannot reproduce the paper yet: 1 of 2 checks failed."),
        ("cpu", [FAILED, SKIPPED], "This machine cannot reproduce the paper yet: 1 of 2 checks failed."),
    ],
)
def test_the_verdict(device, statuses, sentence):
    assert smoke.verdict(device, [Finding(status, "") for status in statuses]) == sentence


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (SKIPPED, 0), (FAILED, 1)])
def test_the_exit_status(monkeypatch, status, code):
    monkeypatch.setattr(smoke, "CHECKS", {"kernel": lambda device: Finding(status, "It did.")})
    assert smoke.main([]) == code
