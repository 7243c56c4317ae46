"""Where the operator's contract with PyTorch is tested."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import INTERPRETING


@pytest.fixture
def contract_device(device: torch.device) -> torch.device:
    """The GPU if there is one, else the CPU operator: what is PyTorch's part of a call needs no interpreted kernel."""
    if INTERPRETING:
        pytest.skip("PyTorch's part of a call: tested without TRITON_INTERPRET=1, on the CPU operator and on the GPU")
    return device
