"""What is launched: the scan of all rows, and of two tensors in opposite directions at once (grouped.py scans them).

Grid: the blocks of rows, `cdiv(n_rows, R)` or `B * cdiv(C, R)` where CHANNELS_LAST, times the tiles of a row where
programs share it (WINDOW), times two for both directions: neighbouring programs then scan the same rows.
State tensors (`initial`, `final`) are contiguous `[N, n_rows]`, N = 1 where nothing is packed.
"""

import triton
import triton.language as tl

from scan.kernels.grouped import scan_rows, scan_rows_backward


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "n_words",
        "gates_c", "tokens_c", "states_c",
    ]
)  # fmt: skip
def forward(
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr, exchange_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr, WINDOW: tl.constexpr,
    RUN: tl.constexpr, STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, TOKENS_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`h[t] = g[t] * h[t-1] + x[t]` for all rows; [t+1] where DESCENDING."""
    tensors = (gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr)
    table = (words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr)
    sizes = (C, T, n_rows, n_sequences, n_words)
    strides = (gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t)
    scan_rows(
        tl.program_id(0), tensors, table, exchange_ptr, sizes, strides,
        R, N, V, STAGES, DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, WINDOW,
        RUN, STRIPS, GATES_VECTOR, TOKENS_VECTOR, STATES_VECTOR, STATE, TIME,
    )


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "n_words",
        "gates_c", "tokens_c", "states_c",
    ]
)  # fmt: skip
def forward_both(
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr,
    gates_other_ptr, tokens_other_ptr, states_other_ptr, initial_other_ptr, final_other_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr,
    STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, TOKENS_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`forward`, and that of other tensors of the same layout in the other direction."""
    table = (words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr)
    sizes = (C, T, n_rows, n_sequences, n_words)
    strides = (gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t)
    block = tl.program_id(0) // 2
    if tl.program_id(0) % 2 == 0:
        tensors = (gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr)
        scan_rows(
            block, tensors, table, None, sizes, strides,
            R, N, V, STAGES, DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, 0,
            1, STRIPS, GATES_VECTOR, TOKENS_VECTOR, STATES_VECTOR, STATE, TIME,
        )
    else:
        others = (gates_other_ptr, tokens_other_ptr, states_other_ptr, initial_other_ptr, final_other_ptr)
        scan_rows(
            block, others, table, None, sizes, strides,
            R, N, V, STAGES, not DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, 0,
            1, STRIPS, GATES_VECTOR, TOKENS_VECTOR, STATES_VECTOR, STATE, TIME,
        )


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "n_words",
        "gates_c", "states_c", "d_states_c", "d_gates_c", "d_tokens_c",
    ]
)  # fmt: skip
def backward(
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr, exchange_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr, WINDOW: tl.constexpr,
    RUN: tl.constexpr, STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr, D_STATES_VECTOR: tl.constexpr,
    D_GATES_VECTOR: tl.constexpr, D_TOKENS_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """Gradients of `forward`; DESCENDING for an ascending forward."""
    tensors = (gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr)
    table = (words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr)
    sizes = (C, T, n_rows, n_sequences, n_words)
    strides = (
        gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
        d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    )
    scan_rows_backward(
        tl.program_id(0), tensors, table, exchange_ptr, sizes, strides,
        R, N, V, STAGES, DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, WINDOW,
        RUN, STRIPS, GATES_VECTOR, STATES_VECTOR, D_STATES_VECTOR, D_GATES_VECTOR, D_TOKENS_VECTOR, STATE, TIME,
    )


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "n_words",
        "gates_c", "states_c", "d_states_c", "d_gates_c", "d_tokens_c",
    ]
)  # fmt: skip
def backward_both(
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
    gates_other_ptr, states_other_ptr, d_states_other_ptr, d_gates_other_ptr, d_tokens_other_ptr,
    initial_other_ptr, d_initial_other_ptr, d_final_other_ptr,
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr,
    C, T, n_rows, n_sequences, n_words,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr,
    STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr, D_STATES_VECTOR: tl.constexpr,
    D_GATES_VECTOR: tl.constexpr, D_TOKENS_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`backward`, and that of other tensors of the same layout in the other direction."""
    table = (words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr)
    sizes = (C, T, n_rows, n_sequences, n_words)
    strides = (
        gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
        d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    )
    block = tl.program_id(0) // 2
    if tl.program_id(0) % 2 == 0:
        tensors = (
            gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr,
        )
        scan_rows_backward(
            block, tensors, table, None, sizes, strides,
            R, N, V, STAGES, DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, 0,
            1, STRIPS, GATES_VECTOR, STATES_VECTOR, D_STATES_VECTOR, D_GATES_VECTOR, D_TOKENS_VECTOR, STATE, TIME,
        )
    else:
        others = (
            gates_other_ptr, states_other_ptr, d_states_other_ptr, d_gates_other_ptr, d_tokens_other_ptr,
            initial_other_ptr, d_initial_other_ptr, d_final_other_ptr,
        )
        scan_rows_backward(
            block, others, table, None, sizes, strides,
            R, N, V, STAGES, not DESCENDING, LOG, EVEN, WHOLE, ONE_TILE, LINE, CHANNELS_LAST, EVEN_ROWS, FLAT, 0,
            1, STRIPS, GATES_VECTOR, STATES_VECTOR, D_STATES_VECTOR, D_GATES_VECTOR, D_TOKENS_VECTOR, STATE, TIME,
        )
