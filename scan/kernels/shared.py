"""Both directions of the same gates and tokens in tiles that hold them at once: every tensor is moved once.

A program loads a tile of R rows as `grouped.py` does for an ascending scan, and scans it from both ends. For the scan
from the last step the columns of a group are renamed, as there, but groups stay in the threads that hold them: the
parallel scan over their maps runs the other way, so that what both directions give of a step meets in one register.

A tile holds whole rows, or one of at most WINDOW pieces of a row, whose programs hand the states of both directions on
(exchange.py). What is loaded is used before the parallel scan and again behind it. Between, numbers of 16 bits are held
as they were loaded where a thread has many (HOLD): more programs then find room.

Time is contiguous, nothing is packed, and no state comes in. Grid: `cdiv(n_rows, R)`, times the tiles of a row.
"""

import triton
import triton.language as tl

from scan.kernels.columns import (
    held,
    in_scan_order,
    in_state_dtype,
    load_columns,
    own_columns,
    place,
    split_columns,
    store_columns,
    taken_up,
)
from scan.kernels.exchange import carry_of_way, own_turn, publish_both
from scan.kernels.rows import own_rows, row_offset, steps_behind
from scan.kernels.strips import compose_strips, compose_warps, enter_strips, numbers_in_strips, of_warp
from scan.kernels.tiles import exponentials, gradients_from, group_map, group_map_backward, states_from


@triton.jit
def compose_way(own_map, BACK: tl.constexpr, WARPS: tl.constexpr):
    """The groups' maps in one direction composed, and of several warps theirs; and the tile's map, in all lanes."""
    within, lanes = compose_strips(own_map[0], own_map[1], False, BACK, WARPS)
    if WARPS > 1:
        warps, whole = compose_warps(lanes, WARPS, BACK)
    else:
        warps, whole = lanes, (of_warp(lanes[0]), of_warp(lanes[1]))
    return (within, lanes, warps), whole


@triton.jit
def enter_way(way, like, exchange, N: tl.constexpr, WINDOW: tl.constexpr, BACK: tl.constexpr, WARPS: tl.constexpr):
    """State before each group `[R, N]` in one direction, from what `compose_way` composed.

    Rows begin and end with a state of zero; of rows that programs share (WINDOW), what other tiles hold comes in.
    """
    within, lanes, warps = way
    if WINDOW > 0:
        carry = carry_of_way(like, exchange, WINDOW, BACK)
    else:
        carry = tl.zeros(lanes[1].shape, lanes[1].dtype)
    if WARPS > 1:
        carry = warps[1] + warps[0] * carry
    return enter_strips(within, lanes, carry, N, False, BACK, WARPS)


@triton.jit
def own_tile(exchange_ptr, T, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """The block of rows and the tile of this program, and how many tiles a row has."""
    if WINDOW == 0:
        return tl.program_id(0), 0, 1
    else:
        # Programs of a row wait for one another: they begin one after another.
        tiles = tl.cdiv(T, BLOCK)
        turn = own_turn(exchange_ptr)
        return turn // tiles, turn % tiles, tiles


@triton.jit
def state_at(step, states, position, V: tl.constexpr, EVEN: tl.constexpr, COLUMN: tl.constexpr):
    """The state at a step of each row, `[R, 1]`, which is in COLUMN where rows are whole groups."""
    found = tl.where(position + COLUMN == step, states[COLUMN], 0.0)
    if not EVEN:
        for k in tl.static_range(V):
            if k != COLUMN:
                found = tl.where(position + k == step, states[k], found)
    return tl.sum(found, 1)[:, None]


@triton.jit
def load_whole(pointer, base, stride, tile, other, V: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr,
               WHOLE: tl.constexpr, HOLD: tl.constexpr, STATE: tl.constexpr):
    """Columns of a tensor in time order, `other` outside the row; of its own dtype if they are to be held (HOLD).

    `tile` is the number of each group, the steps before the row, and what `load_columns` takes.
    """
    group, phase, where = tile
    dtype: tl.constexpr = pointer.dtype.element_ty if HOLD else STATE
    row = place(pointer, base, stride, group, phase, V, VECTOR, False)
    columns = load_columns(row, where, other, 0.0, V, VECTOR, EVEN, WHOLE, False, dtype)
    if not EVEN:
        columns = own_columns(row, where, columns, other, V, VECTOR, False, dtype)
    return columns


@triton.jit
def load_next(pointer, base, stride, step, T, rows, V: tl.constexpr, STATE: tl.constexpr):
    """What a tensor holds at one step for each group, `[R, N]`, 0 outside the row.

    Of V elements a group one is asked for: in a tensor of its own Triton before 3.7 would give it another layout, in
    which it scans the tile once more.
    """
    alone = tl.arange(0, V)[None, None, :]
    inside = rows & (step >= 0) & (step < T)
    at = (pointer + base + step.to(tl.int64) * stride)[:, :, None] + alone * stride
    values = tl.load(at, mask=inside[:, :, None] & (alone == 0), other=0.0)
    return split_columns(values.to(STATE), V)[0]


@triton.jit
def load_met(states, tile, V: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
             HOLD: tl.constexpr, STATE: tl.constexpr):
    """The states of either direction, each followed by those that it met before the first step of each group.

    `states` is both tensors, the offset of step 0 of each row, and a stride.
    """
    ahead_ptr, back_ptr, base, stride = states
    _, _, where = tile
    _, position, T, rows, _ = where
    before = load_next(ahead_ptr, base, stride, position - 1, T, rows, V, STATE)
    ahead = load_whole(ahead_ptr, base, stride, tile, 0.0, V, VECTOR, EVEN, WHOLE, HOLD, STATE)
    behind = load_next(back_ptr, base, stride, position + V, T, rows, V, STATE)
    back = load_whole(back_ptr, base, stride, tile, 0.0, V, VECTOR, EVEN, WHOLE, HOLD, STATE)
    return ahead, before, back, behind


@triton.jit
def store_whole(pointer, base, stride, tile, columns, V: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr,
                WHOLE: tl.constexpr):
    """Writes what `load_whole` reads."""
    group, phase, where = tile
    row = place(pointer, base, stride, group, phase, V, VECTOR, False)
    store_columns(row, where, True, columns, V, VECTOR, EVEN, WHOLE, False)


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows",
        "gates_c", "tokens_c", "states_c",
    ]
)  # fmt: skip
def forward_shared(
    gates_ptr, tokens_ptr, states_ptr, states_reverse_ptr, sum_ptr, final_ptr, final_reverse_ptr,
    exchange_ptr,
    C, T, n_rows,
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr,
    LOG: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr,
    GATES_VECTOR: tl.constexpr, TOKENS_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr, WARPS: tl.constexpr, WINDOW: tl.constexpr,
    HOLD: tl.constexpr,
):
    """States of both directions, their sum, and the states after the last step of each: those that are wanted."""
    block, tile, tiles = own_tile(exchange_ptr, T, N * V, WINDOW)
    b, c, row, rows = own_rows(block, C, n_rows, R, False, EVEN_ROWS)
    exchange = (exchange_ptr, row, rows, n_rows, tile, tiles)
    gates_base = row_offset(b, c, row, gates_b, gates_c, FLAT, False)
    tokens_base = row_offset(b, c, row, tokens_b, tokens_c, FLAT, False)
    states_base = row_offset(b, c, row, states_b, states_c, FLAT, False)
    T = T.to(TIME)
    group = numbers_in_strips(N, WARPS).to(TIME)
    phase = 0
    spare = V
    if not EVEN:
        phase = (states_base % V).to(TIME)
        spare = tl.minimum(
            steps_behind(gates_base, rows, gates_b, gates_c, C, n_rows, V),
            steps_behind(tokens_base, rows, tokens_b, tokens_c, C, n_rows, V),
        )
    start = tl.zeros([], TIME)
    if WINDOW > 0:
        start = tile.to(TIME) * (N * V)
    position = start + group * V - phase
    own = (group, phase, (start, position, T, rows, spare))
    none = 0.0 if LOG else 1.0
    g = load_whole(gates_ptr, gates_base, gates_t, own, none, V, GATES_VECTOR, EVEN, WHOLE, HOLD, STATE)
    x = load_whole(tokens_ptr, tokens_base, tokens_t, own, 0.0, V, TOKENS_VECTOR, EVEN, WHOLE, HOLD, STATE)
    if HOLD:
        g_held, x_held = held(g, V, False), held(x, V, False)
    g, x = exponentials(in_state_dtype(g, V, STATE), V, LOG), in_state_dtype(x, V, STATE)
    map_ahead = group_map(g, x, V, WINDOW)
    map_back = group_map(in_scan_order(g, V, True), in_scan_order(x, V, True), V, WINDOW)
    way, whole = compose_way(map_ahead, False, WARPS)
    way_back, whole_back = compose_way(map_back, True, WARPS)
    if WINDOW > 0:
        publish_both(whole[0], whole[1], whole_back[1], exchange)
    entered = enter_way(way, whole[0], exchange, N, WINDOW, False, WARPS)
    if HOLD:
        nothing = tl.minimum(T, 0).to(tl.uint32)
        g = exponentials(taken_up(g_held, nothing, V, False, gates_ptr.dtype.element_ty, STATE), V, LOG)
        x = taken_up(x_held, nothing, V, False, tokens_ptr.dtype.element_ty, STATE)
    ahead = states_from(entered, g, x, V)
    if states_ptr is not None:
        # What a tile knows first it stores, before it waits for the tiles behind.
        store_whole(states_ptr, states_base, states_t, own, ahead, V, STATES_VECTOR, EVEN, WHOLE)
    entered = enter_way(way_back, whole[0], exchange, N, WINDOW, True, WARPS)
    if HOLD and WINDOW > 0:
        # Another zero, or what is converted would be kept from above.
        nothing = tl.minimum(n_rows, 0).to(tl.uint32)
        g = exponentials(taken_up(g_held, nothing, V, False, gates_ptr.dtype.element_ty, STATE), V, LOG)
        x = taken_up(x_held, nothing, V, False, tokens_ptr.dtype.element_ty, STATE)
    back = in_scan_order(states_from(entered, in_scan_order(g, V, True), in_scan_order(x, V, True), V), V, True)
    if states_ptr is not None:
        store_whole(states_reverse_ptr, states_base, states_t, own, back, V, STATES_VECTOR, EVEN, WHOLE)
    if sum_ptr is not None:
        added = ()
        for k in tl.static_range(V):
            added = added + (ahead[k] + back[k],)
        store_whole(sum_ptr, states_base, states_t, own, added, V, STATES_VECTOR, EVEN, WHOLE)
    if final_ptr is not None:
        last, first = state_at(T - 1, ahead, position, V, EVEN, V - 1), state_at(0, back, position, V, EVEN, 0)
        tl.store(final_ptr + row, last, mask=rows & (tile == tiles - 1))
        tl.store(final_reverse_ptr + row, first, mask=rows & (tile == 0))


@triton.jit(
    do_not_specialize=[
        "C", "T", "n_rows",
        "gates_c", "states_c", "d_states_c", "d_gates_c", "d_tokens_c",
    ]
)  # fmt: skip
def backward_shared(
    gates_ptr, states_ptr, states_reverse_ptr, d_states_ptr, d_states_reverse_ptr, d_gates_ptr, d_tokens_ptr,
    exchange_ptr,
    C, T, n_rows,
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t,
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr,
    LOG: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr,
    GATES_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr, D_STATES_VECTOR: tl.constexpr,
    D_GATES_VECTOR: tl.constexpr, D_TOKENS_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr, WARPS: tl.constexpr, WINDOW: tl.constexpr,
    HOLD: tl.constexpr,
):
    """Gradients of `forward_shared`, added over both directions; one `d_states` is that of both, as of a sum."""
    block, tile, tiles = own_tile(exchange_ptr, T, N * V, WINDOW)
    b, c, row, rows = own_rows(block, C, n_rows, R, False, EVEN_ROWS)
    exchange = (exchange_ptr, row, rows, n_rows, tile, tiles)
    gates_base = row_offset(b, c, row, gates_b, gates_c, FLAT, False)
    states_base = row_offset(b, c, row, states_b, states_c, FLAT, False)
    d_states_base = row_offset(b, c, row, d_states_b, d_states_c, FLAT, False)
    d_gates_base = row_offset(b, c, row, d_gates_b, d_gates_c, FLAT, False)
    d_tokens_base = row_offset(b, c, row, d_tokens_b, d_tokens_c, FLAT, False)
    T = T.to(TIME)
    group = numbers_in_strips(N, WARPS).to(TIME)
    phase = 0
    spare = V
    if not EVEN:
        phase = (states_base % V).to(TIME)
        spare = tl.minimum(
            steps_behind(gates_base, rows, gates_b, gates_c, C, n_rows, V),
            steps_behind(d_states_base, rows, d_states_b, d_states_c, C, n_rows, V),
        )
        if d_gates_ptr is not None:
            spare = tl.minimum(spare, steps_behind(states_base, rows, states_b, states_c, C, n_rows, V))
    start = tl.zeros([], TIME)
    if WINDOW > 0:
        start = tile.to(TIME) * (N * V)
    position = start + group * V - phase
    own = (group, phase, (start, position, T, rows, spare))
    none = 0.0 if LOG else 1.0
    g = load_whole(gates_ptr, gates_base, gates_t, own, none, V, GATES_VECTOR, EVEN, WHOLE, HOLD, STATE)
    d = load_whole(d_states_ptr, d_states_base, d_states_t, own, 0.0, V, D_STATES_VECTOR, EVEN, WHOLE, HOLD, STATE)
    d_reverse = d
    if d_states_reverse_ptr is not None:
        d_reverse = load_whole(
            d_states_reverse_ptr, d_states_base, d_states_t, own, 0.0, V, D_STATES_VECTOR, EVEN, WHOLE, HOLD, STATE
        )
    states = (states_ptr, states_reverse_ptr, states_base, states_t)
    if d_gates_ptr is not None:
        if WINDOW == 0:
            met = load_met(states, own, V, STATES_VECTOR, EVEN, WHOLE, HOLD, STATE)
    if HOLD:
        g_held, d_held, d_reverse_held = held(g, V, False), held(d, V, False), held(d_reverse, V, False)
        if d_gates_ptr is not None:
            if WINDOW == 0:
                h_held, h_reverse_held = held(met[0], V, False), held(met[2], V, False)
    g = exponentials(in_state_dtype(g, V, STATE), V, LOG)
    d, d_reverse = in_state_dtype(d, V, STATE), in_state_dtype(d_reverse, V, STATE)
    # What flows back through a direction meets the steps in the other one.
    map_ahead = group_map_backward(in_scan_order(g, V, True), in_scan_order(d, V, True), V)
    map_back = group_map_backward(g, d_reverse, V)
    way, whole = compose_way(map_back, False, WARPS)
    way_back, whole_back = compose_way(map_ahead, True, WARPS)
    if WINDOW > 0:
        publish_both(whole[0], whole[1], whole_back[1], exchange)
    before = enter_way(way, whole[0], exchange, N, WINDOW, False, WARPS)
    behind = enter_way(way_back, whole[0], exchange, N, WINDOW, True, WARPS)
    if d_gates_ptr is not None:
        if WINDOW > 0:
            # Read after what a program waits for, so that meanwhile there is room for more programs.
            met = load_met(states, own, V, STATES_VECTOR, EVEN, WHOLE, HOLD, STATE)
    if HOLD:
        nothing = tl.minimum(T, 0).to(tl.uint32)
        g = exponentials(taken_up(g_held, nothing, V, False, gates_ptr.dtype.element_ty, STATE), V, LOG)
        d = taken_up(d_held, nothing, V, False, d_states_ptr.dtype.element_ty, STATE)
        d_reverse = taken_up(d_reverse_held, nothing, V, False, d_states_ptr.dtype.element_ty, STATE)
    if d_gates_ptr is not None:
        if HOLD and WINDOW == 0:
            h = taken_up(h_held, nothing, V, False, states_ptr.dtype.element_ty, STATE)
            h_reverse = taken_up(h_reverse_held, nothing, V, False, states_ptr.dtype.element_ty, STATE)
        else:
            h, h_reverse = in_state_dtype(met[0], V, STATE), in_state_dtype(met[2], V, STATE)
    ahead, _ = gradients_from(behind, in_scan_order(g, V, True), in_scan_order(d, V, True), V)
    ahead = in_scan_order(ahead, V, True)
    back, _ = gradients_from(before, g, d_reverse, V)
    if d_tokens_ptr is not None:
        added = ()
        for k in tl.static_range(V):
            added = added + (ahead[k] + back[k],)
        store_whole(d_tokens_ptr, d_tokens_base, d_tokens_t, own, added, V, D_TOKENS_VECTOR, EVEN, WHOLE)
    if d_gates_ptr is not None:
        h, h_reverse = (met[1],) + h, h_reverse + (met[3],)
        d_gates = ()
        for k in tl.static_range(V):
            d_gate = ahead[k] * h[k] + back[k] * h_reverse[k + 1]
            if LOG:
                d_gate = d_gate * g[k]
            d_gates = d_gates + (d_gate,)
        store_whole(d_gates_ptr, d_gates_base, d_gates_t, own, d_gates, V, D_GATES_VECTOR, EVEN, WHOLE)
