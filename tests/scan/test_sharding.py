"""DTensor and FSDP: shards are scanned where they lie (tests/scan/distributed.py says what each rank checks)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import INTERPRETING

ROOT = Path(__file__).parents[2]
RANKS = 2

pytestmark = [
    pytest.mark.skipif(INTERPRETING, reason="PyTorch's part of a call: tested without TRITON_INTERPRET=1"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch was built without distributed"),
]


def test_two_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.scan.distributed", str(rank), str(tmp_path / "store")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, said, strict=True):
        assert rank.returncode == 0 and text.splitlines()[-1] == "done", text


def test_plain_scans_import_nothing_of_it() -> None:
    code = (
        "import sys, torch, scan; x = torch.rand(2, 3, requires_grad=True); scan.linear_scan(x, x).states.sum()"
        ".backward(); sys.exit('torch.distributed.tensor' in sys.modules or 'scan.sharding' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
