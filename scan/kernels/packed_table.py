"""The table of a packed batch: one bit a step that marks the first step of every sequence, one that marks the last."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_sequences", "T", "n_words"])
def mark_sequences(cu_seqlens_ptr, words_ptr, sequence_ptr, status_ptr, n_sequences, T, n_words, BLOCK: tl.constexpr):
    """Bits (zero before) and sequence numbers at both ends of BLOCK sequences; status 1 where offsets are invalid.

    Words `[0, n_words)` hold the first steps, `[n_words, 2 * n_words)` the last, step t in bit t + 64: whoever reads a
    little before step 0 or after step T finds zeros. Two words further, byte i is 1 where one of them is set for any of
    256 steps from 256 * i on.
    Offsets must begin at 0, not decrease and not exceed T; whatever they hold, nothing outside the table is written.
    Grid: `cdiv(n_sequences + 1, BLOCK)`.
    """
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < n_sequences
    begin = tl.load(cu_seqlens_ptr + n, mask=n <= n_sequences, other=0).to(tl.int64)
    end = tl.load(cu_seqlens_ptr + n + 1, mask=inside, other=0).to(tl.int64)
    valid = (begin >= 0) & (begin <= T) & ((n > 0) | (begin == 0)) & ((begin <= end) | (n >= n_sequences)) & (end <= T)
    broken = tl.max(tl.where(valid | (n > n_sequences), 0, 1), 0)
    if broken != 0:
        tl.atomic_or(status_ptr, 1)
    holds = inside & valid & (begin < end)
    last = end - 1
    tl.store(sequence_ptr + begin, n.to(tl.int32), mask=holds)
    tl.store(sequence_ptr + last, n.to(tl.int32), mask=holds)
    flags = (words_ptr + 2 * n_words + 2).to(tl.pointer_type(tl.int8), bitcast=True)
    tl.store(flags + begin // 256, 1, mask=holds)
    tl.store(flags + last // 256, 1, mask=holds)
    tl.atomic_or(words_ptr + (begin >> 5) + 2, (1 << (begin & 31)).to(tl.int32), mask=holds)
    tl.atomic_or(words_ptr + n_words + (last >> 5) + 2, (1 << (last & 31)).to(tl.int32), mask=holds)
