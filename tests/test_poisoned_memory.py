"""Memory that a function under test allocates and forgets to write shows in its result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

ALLOCATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda like: torch.empty(like.shape, dtype=like.dtype, device=like.device),
    "empty_like": torch.empty_like,
    "new_empty": lambda like: like.new_empty(like.shape),
    "empty_strided": lambda like: torch.empty_strided((3, 4), (1, 3), dtype=like.dtype, device=like.device),
}


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str
)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_new_memory_is_not_a_number(allocation: str, dtype: torch.dtype, device: torch.device) -> None:
    assert ALLOCATIONS[allocation](torch.zeros(3, 4, dtype=dtype, device=device)).isnan().all()
