"""The table of a packed batch: one byte a step that marks the first and the last step of every sequence."""

import triton
import triton.language as tl

FIRST = tl.constexpr(1)
LAST = tl.constexpr(2)


@triton.jit
def mark_sequences(cu_seqlens_ptr, flags_ptr, sequence_ptr, status_ptr, n_sequences, T, BLOCK: tl.constexpr):
    """Flags (zero before) and sequence numbers at both ends of BLOCK sequences; status 1 where offsets are invalid.

    Grid: `cdiv(n_sequences + 1, BLOCK)`. Offsets must begin at 0, not decrease and not exceed T; whatever they hold,
    nothing is written outside `[0, T)`.
    """
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < n_sequences
    begin = tl.load(cu_seqlens_ptr + n, mask=n <= n_sequences, other=0).to(tl.int64)
    end = tl.load(cu_seqlens_ptr + n + 1, mask=inside, other=0).to(tl.int64)
    valid = (begin >= 0) & (begin <= T) & ((n > 0) | (begin == 0)) & ((begin <= end) | (n >= n_sequences)) & (end <= T)
    broken = tl.max(tl.where(valid | (n > n_sequences), 0, 1), 0)
    if broken != 0:
        tl.atomic_or(status_ptr, 1)
    one = begin + 1 == end
    holds = inside & valid & (begin < end)
    tl.store(sequence_ptr + begin, n.to(tl.int32), mask=holds)
    tl.store(sequence_ptr + end - 1, n.to(tl.int32), mask=holds)
    tl.store(flags_ptr + begin, tl.where(one, FIRST | LAST, FIRST).to(tl.uint8), mask=holds)
    tl.store(flags_ptr + end - 1, tl.where(one, FIRST | LAST, LAST).to(tl.uint8), mask=holds)
