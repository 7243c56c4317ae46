"""A fast associative scan for Triton's interpreter, which otherwise calls the combine function once a scalar.

The replacement applies the combine function log2(n) times to whole blocks. It is some tens of times faster and,
unlike the original, combines in the order of a tree: a combine function that is not associative shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import ScanOps

# The private class is the same in these versions; in any other the slow original stays.
KNOWN_VERSIONS = ("3.6.0", "3.7.1", "3.9.0")

slow_scan = ScanOps.generic_scan


def install_tree_scan() -> bool:
    """Put the tree scan in the original's place; False where this Triton is not a known one."""
    if triton.__version__.split("+")[0] not in KNOWN_VERSIONS:
        return False
    ScanOps.generic_scan = tree_scan
    return True


def tree_scan(self: Any, operands: Sequence[Any]) -> list[Any]:
    """Inclusive scan along `self.axis` (Kogge and Stone, 1973): after round k an element combines up to 2**k inputs."""
    if any(operand.dtype.is_bf16() for operand in operands):
        # The interpreter keeps bfloat16 as 16-bit integers and would add those without a word.
        raise TypeError("the interpreter cannot combine bfloat16 operands; convert them to float32 before the scan")
    dtypes = [operand.dtype for operand in operands]
    blocks = [operand.handle.data for operand in operands]
    length = blocks[0].shape[self.axis]
    along = [1] * blocks[0].ndim
    along[self.axis] = length
    position = np.arange(length).reshape(along)
    distance = 1
    while distance < length:
        # Whole blocks, because Triton wants powers of two; what wraps around is dropped by the `where` below.
        earlier = [self.to_tensor(np.roll(b, distance, self.axis), t) for b, t in zip(blocks, dtypes, strict=True)]
        later = [self.to_tensor(b, t) for b, t in zip(blocks, dtypes, strict=True)]
        with np.errstate(all="ignore"):
            combined = self.combine_fn.fn(*earlier, *later)
        if len(operands) == 1:
            combined = (combined,)
        values = [c.handle.data if isinstance(c, tl.tensor) else c for c in combined]
        blocks = [
            np.where(position >= distance, value, block).astype(block.dtype)
            for value, block in zip(values, blocks, strict=True)
        ]
        distance *= 2
    return [self.to_tensor(b, t) for b, t in zip(blocks, dtypes, strict=True)]
