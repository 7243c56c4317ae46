"""Few long rows beside other work (stress.py), and that what hangs or is wrong there ends in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import INTERPRETING

ROOT = Path(__file__).parents[2]


def _stress(*arguments: str, before: str = "", seconds: int = 600) -> subprocess.CompletedProcess[str]:
    """The module in a process of its own, which a hang ends; with lines of code that run `before`."""
    imports = "import sys, time\nfrom scan import launch\nfrom tests.scan import stress\n"
    code = f"{imports}{before}\nsys.exit(stress.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip


@pytest.mark.gpu
def test_300_launches() -> None:
    done = _stress("--launches", "300", seconds=3600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "300 launches: every output was right.\n"


def test_a_few_small_launches(kernel_device: torch.device) -> None:
    done = _stress("--launches", "4")
    assert done.returncode == 0, done.stderr


def test_a_hang_ends_in_a_sentence(kernel_device: torch.device) -> None:
    hang = "launch.forward = lambda *_: time.sleep(600)"
    done = _stress("--launches", "1", "--seconds", "1", before=hang, seconds=120)
    assert done.returncode == 3
    assert done.stderr.startswith("expected launch 0, [") and "to end within 1 seconds, but it has not" in done.stderr


@pytest.mark.parametrize("spoil", ["states[..., -1, -1].add_(1)", "states[..., -1, -1].fill_(float('nan'))"])
def test_a_wrong_output_is_noticed(spoil: str, kernel_device: torch.device) -> None:
    # Of the rows that programs share alone, which come first.
    lines = f"""
right = launch.forward
def wrong(gates, tokens, *rest):
    states, final = right(gates, tokens, *rest)
    if launch._plans is stress._PLANS[True]:
        {spoil}
    return states, final
launch.forward = wrong
"""
    done = _stress("--launches", "1", before=lines)
    assert done.returncode == 1 and done.stderr.startswith("launch 0: states of ["), done.stderr
    assert "off by more than rounding" in done.stderr


def test_an_interruption_says_how_far_it_came(kernel_device: torch.device) -> None:
    stop = """
right, left = stress.Data.of, [None, None]
def of(*given):
    if not left:
        raise KeyboardInterrupt
    left.pop()
    return right(*given)
stress.Data.of = of
"""
    done = _stress("--launches", "5", before=stop)
    assert done.returncode == 130, done.stderr
    assert done.stdout == "Interrupted after 2 of 5 launches: every output was right.\n"


def test_it_says_where_it_can_run() -> None:
    if torch.cuda.is_available() or INTERPRETING:
        pytest.skip("it can run here")
    done = _stress()
    assert done.returncode == 2 and done.stderr == "expected a GPU, or TRITON_INTERPRET=1: kernels run nowhere else.\n"
