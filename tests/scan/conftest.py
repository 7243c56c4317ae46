"""Where the operator's contract with PyTorch is tested."""

from __future__ import annotations

import pytest
import torch

from scan import configure, launch
from tests.conftest import INTERPRETING
from tests.scan.stand_ins import Kernel


@pytest.fixture
def contract_device(device: torch.device) -> torch.device:
    """The GPU if there is one, else the CPU operator: what is PyTorch's part of a call needs no interpreted kernel."""
    if INTERPRETING:
        pytest.skip("PyTorch's part of a call: tested without TRITON_INTERPRET=1, on the CPU operator and on the GPU")
    return device


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    from scan.kernels import entries, packed_table, shared

    monkeypatch.setattr(launch, "_plans", {})
    # That of an H200: without a GPU there is none to ask.
    monkeypatch.setattr(configure, "_shared_bytes", lambda tensor: 232_448)
    monkeypatch.setattr(configure, "multiprocessors", lambda tensor: 132)
    stand_ins = {}
    for module, name in (
        *((entries, name) for name in ("forward", "backward", "forward_both", "backward_both")),
        *((shared, name) for name in ("forward_shared", "backward_shared")),
        (packed_table, "mark_sequences"),
    ):
        stand_ins[name] = Kernel(getattr(module, name))
        monkeypatch.setattr(module, name, stand_ins[name])
    return stand_ins
