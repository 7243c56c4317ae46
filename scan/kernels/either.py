"""Two forward scans in opposite directions whose loads run ahead, of one code: a program learns its direction late.

Each direction with code of its own would have buffers of its own in shared memory. Columns of groups are loaded and
stored in time order, and selected into scan order; the rest is as in `grouped.py`. Time is contiguous, rows are whole
groups, and nothing is packed.

Grid: twice the blocks of rows, `2 * cdiv(n_rows, R)`: of two neighbouring programs the second has the other tensors.
"""

import triton
import triton.language as tl

from scan.kernels.columns import load_columns, place, store_columns
from scan.kernels.rows import own_rows, row_offset
from scan.kernels.tiles import enter_groups, exponentials, group_map, states_from


@triton.jit
def turned(columns, descending, V: tl.constexpr):
    """Columns in scan order from those in time order, or back."""
    ordered = ()
    for k in tl.static_range(V):
        ordered = ordered + (tl.where(descending, columns[V - 1 - k], columns[k]),)
    return ordered


@triton.jit
def leave_either(value, carry, left, descending, V: tl.constexpr):
    """`leave_tile` in either direction."""
    N: tl.constexpr = value.shape[1]
    last = tl.where(descending, N - 1, tl.minimum(N - 1, (left - 1) // V))
    left_over = tl.sum(tl.where(tl.arange(0, N)[None, :] == last, value, 0.0), 1)[:, None]
    return tl.where(descending | (left > 0), left_over, carry)


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows", "n_sequences", "n_words",
        "gates_c", "tokens_c", "states_c",
    ]
)  # fmt: skip
def forward_either(
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
    """`entries.forward_both` where loads run ahead."""
    BLOCK: tl.constexpr = N * V
    PASSES: tl.constexpr = initial_ptr is not None or (final_ptr is not None and LINE > 1)
    OUTSIDE: tl.constexpr = 1.0 if PASSES and not LOG else 0.0
    second = tl.program_id(0) % 2 == 1
    descending = second != DESCENDING
    if second:
        gates_ptr, tokens_ptr, states_ptr = gates_other_ptr, tokens_other_ptr, states_other_ptr
    T = T.to(TIME)
    tiles = tl.cdiv(T + (LINE - 1 if LINE > 1 else 0), BLOCK)
    b, c, row, rows = own_rows(tl.program_id(0) // 2, C, n_rows, R, False, EVEN_ROWS)
    gates_base = row_offset(b, c, row, gates_b, gates_c, FLAT, False)
    tokens_base = row_offset(b, c, row, tokens_b, tokens_c, FLAT, False)
    states_base = row_offset(b, c, row, states_b, states_c, FLAT, False)
    group = tl.arange(0, N)[None, :].to(TIME)
    group = tl.where(descending, group ^ (N - 1), group)
    phase = 0
    if LINE > 1:
        phase = (states_base % LINE).to(TIME)
    first_step = group * V - phase
    gates_row = place(gates_ptr, gates_base, gates_t, group, phase, V, GATES_VECTOR, False)
    tokens_row = place(tokens_ptr, tokens_base, tokens_t, group, phase, V, TOKENS_VECTOR, False)
    states_row = place(states_ptr, states_base, states_t, group, phase, V, STATES_VECTOR, False)
    carry = tl.zeros([R, 1], STATE)
    if initial_ptr is not None:
        if second:
            initial_ptr = initial_other_ptr
        carry = tl.load(initial_ptr + row, mask=rows, other=0.0).to(STATE)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        start = tl.where(descending, tiles - 1 - tile, tile).to(TIME) * BLOCK
        where = (start, start + first_step, T, rows, V)
        g = load_columns(gates_row, where, 0.0 if LOG else 1.0, OUTSIDE, V, GATES_VECTOR, True, WHOLE, False, STATE)
        x = load_columns(tokens_row, where, 0.0, 0.0, V, TOKENS_VECTOR, True, WHOLE, False, STATE)
        g, x = turned(exponentials(g, V, LOG), descending, V), turned(x, descending, V)
        gate, state = group_map(g, x, V, 0)
        states = states_from(enter_groups(gate, state, carry, None, 0, False, False, STRIPS, 1), g, x, V)
        carry = leave_either(states[V - 1], carry, T - start + phase, descending, V)
        store_columns(states_row, where, False, turned(states, descending, V), V, STATES_VECTOR, True, WHOLE, False)
    if final_ptr is not None:
        if second:
            final_ptr = final_other_ptr
        tl.store(final_ptr + row, carry, mask=rows)
