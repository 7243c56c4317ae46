"""The Triton kernel that moves bytes and does nothing else."""

import triton
import triton.language as tl


@triton.jit
def _tile(
    a, b, c, d, e, f,
    w, x, y, z,
    index, inside,
    READS: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    value = tl.load(a + index, mask=inside)
    if READS > 1:
        value ^= tl.load(b + index, mask=inside)
    if READS > 2:
        value ^= tl.load(c + index, mask=inside)
    if READS > 3:
        value ^= tl.load(d + index, mask=inside)
    if READS > 4:
        value ^= tl.load(e + index, mask=inside)
    if READS > 5:
        value ^= tl.load(f + index, mask=inside)
    tl.store(w + index, value, mask=inside)
    if WRITES > 1:
        tl.store(x + index, value, mask=inside)
    if WRITES > 2:
        tl.store(y + index, value, mask=inside)
    if WRITES > 3:
        tl.store(z + index, value, mask=inside)


@triton.jit
def move(
    a, b, c, d, e, f,
    w, x, y, z,
    words,
    READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the exclusive or of READS arrays of integers to WRITES arrays; one tile of BLOCK words a program.

    VECTOR is the number of neighbouring words that a thread moves at once, up to 16 bytes: what the compiler is told,
    it does. Arrays beyond READS and WRITES are not touched.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    index = tl.max_contiguous(tl.multiple_of(start + tl.arange(0, BLOCK), [VECTOR]), [VECTOR])
    # A mask that no whole vector shares would make every load scalar, so only the last tile has one.
    if start + BLOCK <= words:
        _tile(a, b, c, d, e, f, w, x, y, z, index, None, READS, WRITES)
    else:
        _tile(a, b, c, d, e, f, w, x, y, z, index, index < words, READS, WRITES)
