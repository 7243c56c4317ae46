"""A kernel that says which tile each of its programs has."""

import triton
import triton.language as tl

from scan.kernels.exchange import own_block_and_tile


@triton.jit
def own_tile(exchange_ptr, taken_ptr, tiles, RUN: tl.constexpr):
    """Writes the block and the tile of every program, `[programs, 2]`."""
    block, tile = own_block_and_tile(exchange_ptr, tiles, RUN)
    tl.store(taken_ptr + 2 * tl.program_id(0), block)
    tl.store(taken_ptr + 2 * tl.program_id(0) + 1, tile)
