"""The scan: forward, and backward fused with the gate gradient, for both memory layouts.

A program owns R rows and walks them tile by tile; where rows are too few for that (WINDOW), it scans one tile of them,
and the programs of a row hand its state on (exchange.py). A tile is N groups of V neighbouring steps. A thread holds
whole groups, so that the recurrence inside a group runs in registers and only one pair a group takes part in the
parallel scan (tiles.py).

Where time is contiguous, a group is one vector of 16 bytes. Where channels are (CHANNELS_LAST), the R rows are
neighbouring channels of one batch entry, and a vector holds one step of several of them.

Scan order is the order in which a kernel meets the steps: ascending time, or descending where DESCENDING. Groups are
numbered and columns named in scan order, so that a descending scan loads and shuffles no more than an ascending one.

Packed sequences are one line with resets.
"""

import triton
import triton.language as tl

from scan.kernels.columns import (
    bit_columns,
    blank_columns,
    held,
    holds_end,
    in_state_dtype,
    load_bits,
    load_block,
    load_columns,
    load_neighbour,
    load_raw,
    own_columns,
    place,
    place_block,
    store_columns,
    taken_up,
    tile_place,
)
from scan.kernels.exchange import own_block_and_tile
from scan.kernels.maps import numbers
from scan.kernels.rows import leaves_row, own_rows, row_offset, steps_behind, unaligned
from scan.kernels.tiles import (
    enter_groups,
    exponentials,
    gradients_from,
    group_map,
    group_map_backward,
    leave_tile,
    scan_packed_tile,
    scan_packed_tile_backward,
    states_from,
)


@triton.jit
def scan_rows(
    block, tensors, table, exchange_ptr, sizes, strides,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr, WINDOW: tl.constexpr,
    RUN: tl.constexpr, STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, TOKENS_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """`h[t] = g[t] * h[t-1] + x[t]` for the R rows of a block; [t+1] where DESCENDING."""
    gates_ptr, tokens_ptr, states_ptr, initial_ptr, final_ptr = tensors
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr = table
    C, T, n_rows, n_sequences, n_words = sizes
    gates_b, gates_c, gates_t, tokens_b, tokens_c, tokens_t, states_b, states_c, states_t = strides
    PACKED: tl.constexpr = words_ptr is not None
    BLOCK: tl.constexpr = N * V
    AHEAD: tl.constexpr = CHANNELS_LAST and STAGES == 2
    # Channels of 16 bits run ahead in shared memory, all steps of a tile at once: a thread's share of each is narrow.
    AT_ONCE: tl.constexpr = CHANNELS_LAST and STAGES > 2 and states_ptr.dtype.element_ty.primitive_bitwidth == 16
    # Groups lie along this axis, rows along the other: threads that are neighbours hold what is in memory.
    AXIS: tl.constexpr = 0 if CHANNELS_LAST else 1
    # While programs wait, 16 bits stay two in a register: more programs then find room. (Backward is slower with it.)
    HOLD: tl.constexpr = WINDOW > 0 and V == 8 and EVEN and not PACKED and not CHANNELS_LAST
    # Tiles in which no sequence begins or ends need no resets. (Backward would need too many registers for both.)
    QUICK: tl.constexpr = PACKED and EVEN and BLOCK >= 256 and BLOCK <= 2048
    # Gates of groups outside the row, which pass on a state that comes in, or one that is wanted after the row.
    ENTERS: tl.constexpr = initial_ptr is not None and (DESCENDING or LINE > 1)
    LEAVES: tl.constexpr = final_ptr is not None and DESCENDING and LINE > 1
    OUTSIDE: tl.constexpr = 1.0 if (ENTERS or LEAVES) and not PACKED and not LOG else 0.0
    # Where one warp holds several strips, which are constants of a thread.
    APART: tl.constexpr = STRIPS and WINDOW > 0 and N > 32 and not DESCENDING
    T = T.to(TIME)
    tiles = 1 if ONE_TILE else tl.cdiv(T + (LINE - 1 if LINE > 1 else 0), BLOCK)
    first_tile, last_tile = 0, tiles
    if WINDOW > 0:
        block, first_tile = own_block_and_tile(exchange_ptr, tiles, RUN)
        last_tile = first_tile + 1
    b, c, row, rows = own_rows(block, C, n_rows, R, CHANNELS_LAST, EVEN_ROWS, 1 - AXIS)
    gates_base = row_offset(b, c, row, gates_b, gates_c, FLAT, CHANNELS_LAST and GATES_VECTOR)
    tokens_base = row_offset(b, c, row, tokens_b, tokens_c, FLAT, CHANNELS_LAST and TOKENS_VECTOR)
    states_base = row_offset(b, c, row, states_b, states_c, FLAT, CHANNELS_LAST and STATES_VECTOR)
    group = numbers(N, AXIS).to(TIME)
    if DESCENDING:
        group = N - 1 - group
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    phase = 0
    spare = V
    if LINE > 1:
        phase = (states_base % LINE).to(TIME)
    if not EVEN:
        spare = tl.minimum(
            steps_behind(gates_base, rows, gates_b, gates_c, C, n_rows, V),
            steps_behind(tokens_base, rows, tokens_b, tokens_c, C, n_rows, V),
        )
    first_step = group * V - phase  # of each group of the first tile: [R, N], or one for all rows that begin alike
    gates_row = place(gates_ptr, gates_base, gates_t, group, phase, V, GATES_VECTOR and not CHANNELS_LAST, APART)
    tokens_row = place(tokens_ptr, tokens_base, tokens_t, group, phase, V, TOKENS_VECTOR and not CHANNELS_LAST, APART)
    stored_base = unaligned(states_base, T) if AT_ONCE else states_base
    states_row = place(states_ptr, stored_base, states_t, group, phase, V, STATES_VECTOR and not CHANNELS_LAST, APART)
    if AT_ONCE:
        gates_block = place_block(gates_ptr, gates_base, gates_t, group, 0, V)
        tokens_block = place_block(tokens_ptr, tokens_base, tokens_t, group, 0, V)
    carry = tl.zeros(rows.shape, STATE)
    if initial_ptr is not None:
        if not PACKED:
            carry = tl.load(initial_ptr + row, mask=rows, other=0.0).to(STATE)

    if AHEAD:
        place_ahead = tile_place(first_tile, tiles, first_step, T, rows, spare, BLOCK, DESCENDING)
        g_ahead = load_raw(gates_row, place_ahead, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING)
        x_ahead = load_raw(tokens_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
    for tile in tl.range(first_tile, last_tile, num_stages=1 if AHEAD else STAGES):
        exchange = (exchange_ptr, row, rows, n_rows, tile, tiles)
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        start = index.to(TIME) * BLOCK
        position = start + first_step
        edge = False
        if not EVEN:
            edge = (start < V) | (start + BLOCK > T)
        if PACKED:
            first_bits = load_bits(words_ptr + (n_words if DESCENDING else 0), start, first_step, BLOCK, V, EVEN)
        where = (start, position, T, rows, spare)
        if AHEAD:
            # Tiles too large for the pipeliner of loads: in registers, while the one before is scanned.
            g, x = in_state_dtype(g_ahead, V, STATE), in_state_dtype(x_ahead, V, STATE)
            place_ahead = tile_place(tile + 1, tiles, first_step, T, rows, spare, BLOCK, DESCENDING)
            g_ahead = load_raw(gates_row, place_ahead, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING)
            x_ahead = load_raw(tokens_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
        elif AT_ONCE:
            g = load_block(gates_block, start, T, rows, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING, STATE)
            x = load_block(tokens_block, start, T, rows, 0.0, V, WHOLE, DESCENDING, STATE)
        else:
            g = load_columns(
                gates_row, where, 0.0 if LOG else 1.0, OUTSIDE, V, GATES_VECTOR and not CHANNELS_LAST,
                EVEN, WHOLE, DESCENDING, gates_ptr.dtype.element_ty if HOLD else STATE,
            )
            x = load_columns(
                tokens_row, where, 0.0, 0.0, V, TOKENS_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING,
                tokens_ptr.dtype.element_ty if HOLD else STATE,
            )
        if not EVEN:
            if edge:
                g = own_columns(gates_row, where, g, 0.0 if LOG else 1.0, V, GATES_VECTOR, DESCENDING, STATE)
                x = own_columns(tokens_row, where, x, 0.0, V, TOKENS_VECTOR, DESCENDING, STATE)
        if HOLD:
            g_held, x_held = held(g, V, DESCENDING), held(x, V, DESCENDING)
            g, x = in_state_dtype(g, V, STATE), in_state_dtype(x, V, STATE)
        g = exponentials(g, V, LOG)
        if PACKED:
            resets = True
            if QUICK:
                resets = holds_end(words_ptr, n_words, start, BLOCK, LINE > 1)
            if resets:
                first = bit_columns(first_bits, V, DESCENDING)
                before = None
                if initial_ptr is not None:
                    before = ()
                    for k in tl.static_range(V):
                        step = position + (V - 1 - k if DESCENDING else k)
                        s = tl.load(sequence_ptr + step, mask=first[k], other=0).to(tl.int64)
                        begin = tl.load(initial_ptr + s * n_rows + row, mask=first[k] & rows, other=0.0).to(STATE)
                        before = before + (begin,)
                states = scan_packed_tile(g, x, carry, exchange, first_bits, first, before, V, WINDOW, STRIPS, AXIS)
            else:
                gate, state = group_map(g, x, V, WINDOW)
                h = enter_groups(gate, state, carry, exchange, WINDOW, True, False, STRIPS, AXIS)
                states = states_from(h, g, x, V)
        else:
            gate, state = group_map(g, x, V, WINDOW)
            h = enter_groups(gate, state, carry, exchange, WINDOW, False, False, STRIPS, AXIS)
            if HOLD:
                nothing = tl.minimum(T, 0).to(tl.uint32)
                g = taken_up(g_held, nothing, V, DESCENDING, gates_ptr.dtype.element_ty, STATE)
                x = taken_up(x_held, nothing, V, DESCENDING, tokens_ptr.dtype.element_ty, STATE)
                g = exponentials(g, V, LOG)
            states = states_from(h, g, x, V)
        carry = leave_tile(states[V - 1], carry, T - start + phase, V, DESCENDING, AXIS)
        if PACKED:
            if broken | (start + BLOCK > used):
                states = blank_columns(states, position, used, broken, V, DESCENDING)
            if final_ptr is not None:
                last_bits = load_bits(words_ptr + (0 if DESCENDING else n_words), start, first_step, BLOCK, V, EVEN)
                ends = bit_columns(last_bits, V, DESCENDING)
                for k in tl.static_range(V):
                    step = position + (V - 1 - k if DESCENDING else k)
                    s = tl.load(sequence_ptr + step, mask=ends[k], other=0).to(tl.int64)
                    tl.store(final_ptr + s * n_rows + row, states[k], mask=ends[k] & rows)
        store_columns(states_row, where, edge, states, V, STATES_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING)
    if final_ptr is not None:
        if not PACKED:
            last = leaves_row(first_tile, tiles, T + phase, BLOCK, DESCENDING, WINDOW)
            tl.store(final_ptr + row, carry, mask=rows & last)


@triton.jit
def scan_rows_backward(
    block, tensors, table, exchange_ptr, sizes, strides,
    R: tl.constexpr, N: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
    DESCENDING: tl.constexpr, LOG: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ONE_TILE: tl.constexpr, LINE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, EVEN_ROWS: tl.constexpr, FLAT: tl.constexpr, WINDOW: tl.constexpr,
    RUN: tl.constexpr, STRIPS: tl.constexpr,
    GATES_VECTOR: tl.constexpr, STATES_VECTOR: tl.constexpr, D_STATES_VECTOR: tl.constexpr,
    D_GATES_VECTOR: tl.constexpr, D_TOKENS_VECTOR: tl.constexpr,
    STATE: tl.constexpr, TIME: tl.constexpr,
):
    """Gradients of `scan_rows`, whose rows it meets in the opposite order (DESCENDING for an ascending forward).

    `d_x[t] = d_h[t] + u`, `d_g[t] = d_x[t] * h[t-1]`, then `u = g[t] * d_x[t]`: what flows into `h[t-1]`.
    """
    gates_ptr, states_ptr, d_states_ptr, d_gates_ptr, d_tokens_ptr, initial_ptr, d_initial_ptr, d_final_ptr = tensors
    words_ptr, sequence_ptr, status_ptr, cu_seqlens_ptr = table
    C, T, n_rows, n_sequences, n_words = sizes
    gates_b, gates_c, gates_t, states_b, states_c, states_t, d_states_b, d_states_c, d_states_t = strides[:9]
    d_gates_b, d_gates_c, d_gates_t, d_tokens_b, d_tokens_c, d_tokens_t = strides[9:]
    PACKED: tl.constexpr = words_ptr is not None
    BLOCK: tl.constexpr = N * V
    AHEAD: tl.constexpr = CHANNELS_LAST and STAGES == 2
    # Channels of 16 bits run ahead in shared memory, all steps of a tile at once: a thread's share of each is narrow.
    AT_ONCE: tl.constexpr = CHANNELS_LAST and STAGES > 2 and states_ptr.dtype.element_ty.primitive_bitwidth == 16
    # Groups lie along this axis, rows along the other: threads that are neighbours hold what is in memory.
    AXIS: tl.constexpr = 0 if CHANNELS_LAST else 1
    # Gates of groups outside the row, which pass on a state that comes in, or one that is wanted after the row.
    ENTERS: tl.constexpr = d_final_ptr is not None and (DESCENDING or LINE > 1)
    LEAVES: tl.constexpr = d_initial_ptr is not None and DESCENDING and LINE > 1
    OUTSIDE: tl.constexpr = 1.0 if (ENTERS or LEAVES) and not PACKED and not LOG else 0.0
    # Where one warp holds several strips, which are constants of a thread.
    APART: tl.constexpr = STRIPS and WINDOW > 0 and N > 32 and not DESCENDING
    T = T.to(TIME)
    tiles = 1 if ONE_TILE else tl.cdiv(T + (LINE - 1 if LINE > 1 else 0), BLOCK)
    first_tile, last_tile = 0, tiles
    if WINDOW > 0:
        block, first_tile = own_block_and_tile(exchange_ptr, tiles, RUN)
        last_tile = first_tile + 1
    b, c, row, rows = own_rows(block, C, n_rows, R, CHANNELS_LAST, EVEN_ROWS, 1 - AXIS)
    gates_base = row_offset(b, c, row, gates_b, gates_c, FLAT, CHANNELS_LAST and GATES_VECTOR)
    states_base = row_offset(b, c, row, states_b, states_c, FLAT, CHANNELS_LAST and STATES_VECTOR)
    d_states_base = row_offset(b, c, row, d_states_b, d_states_c, FLAT, CHANNELS_LAST and D_STATES_VECTOR)
    d_gates_base = row_offset(b, c, row, d_gates_b, d_gates_c, FLAT, CHANNELS_LAST and D_GATES_VECTOR)
    d_tokens_base = row_offset(b, c, row, d_tokens_b, d_tokens_c, FLAT, CHANNELS_LAST and D_TOKENS_VECTOR)
    if AT_ONCE:
        d_gates_base, d_tokens_base = unaligned(d_gates_base, T), unaligned(d_tokens_base, T)
    group = numbers(N, AXIS).to(TIME)
    if DESCENDING:
        group = N - 1 - group
    used = T
    if PACKED:
        broken = tl.load(status_ptr) != 0
        used = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n_sequences), 0), T)
    phase = 0
    spare = V
    if LINE > 1:
        phase = (states_base % LINE).to(TIME)
    if not EVEN:
        spare = steps_behind(gates_base, rows, gates_b, gates_c, C, n_rows, V)
        if d_gates_ptr is not None:
            spare = tl.minimum(spare, steps_behind(states_base, rows, states_b, states_c, C, n_rows, V))
        if d_states_ptr is not None:
            spare = tl.minimum(spare, steps_behind(d_states_base, rows, d_states_b, d_states_c, C, n_rows, V))
    first_step = group * V - phase  # of each group of the first tile: [R, N], or one for all rows that begin alike
    gates_row = place(gates_ptr, gates_base, gates_t, group, phase, V, GATES_VECTOR and not CHANNELS_LAST, APART)
    if d_states_ptr is not None:
        d_states_row = place(
            d_states_ptr, d_states_base, d_states_t, group, phase, V, D_STATES_VECTOR and not CHANNELS_LAST, APART
        )
    if d_gates_ptr is not None:
        states_row = place(
            states_ptr, states_base, states_t, group, phase, V, STATES_VECTOR and not CHANNELS_LAST, APART
        )
        # The state before the earliest step of each group.
        before_row = states_ptr + states_base + (first_step + (-1 if DESCENDING else V)).to(tl.int64) * states_t
        d_gates_row = place(
            d_gates_ptr, d_gates_base, d_gates_t, group, phase, V, D_GATES_VECTOR and not CHANNELS_LAST, APART
        )
    if d_tokens_ptr is not None:
        d_tokens_row = place(
            d_tokens_ptr, d_tokens_base, d_tokens_t, group, phase, V, D_TOKENS_VECTOR and not CHANNELS_LAST, APART
        )
    if AT_ONCE:
        gates_block = place_block(gates_ptr, gates_base, gates_t, group, 0, V)
        if d_states_ptr is not None:
            d_states_block = place_block(d_states_ptr, d_states_base, d_states_t, group, 0, V)
        if d_gates_ptr is not None:
            # Of each step the state before it.
            before_block = place_block(states_ptr, states_base, states_t, group, -1 if DESCENDING else 1, V)
    carry = tl.zeros(rows.shape, STATE)
    if d_final_ptr is not None:
        if not PACKED:
            carry = tl.load(d_final_ptr + row, mask=rows, other=0.0).to(STATE)
    if initial_ptr is not None:
        if not PACKED:
            initial = tl.load(initial_ptr + row, mask=rows, other=0.0).to(STATE)

    if AHEAD:
        place_ahead = tile_place(first_tile, tiles, first_step, T, rows, spare, BLOCK, DESCENDING)
        g_ahead = load_raw(gates_row, place_ahead, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING)
        d_ahead, h_ahead, h_before_ahead = (), (), None
        if d_states_ptr is not None:
            d_ahead = load_raw(d_states_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
        if d_gates_ptr is not None:
            h_ahead = load_raw(states_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
            h_before_ahead = load_neighbour(before_row, place_ahead, states_t, V, DESCENDING)
    for tile in tl.range(first_tile, last_tile, num_stages=1 if AHEAD else STAGES):
        exchange = (exchange_ptr, row, rows, n_rows, tile, tiles)
        index = tile
        if DESCENDING:
            index = tiles - 1 - tile
        start = index.to(TIME) * BLOCK
        position = start + first_step
        edge = False
        if not EVEN:
            edge = (start < V) | (start + BLOCK > T)
        if PACKED:
            # In scan order: a backward kernel meets the last step of a sequence first.
            first_bits = load_bits(words_ptr + (n_words if DESCENDING else 0), start, first_step, BLOCK, V, EVEN)
            last_bits = load_bits(words_ptr + (0 if DESCENDING else n_words), start, first_step, BLOCK, V, EVEN)
        where = (start, position, T, rows, spare)
        if AHEAD:
            g, d, h = in_state_dtype(g_ahead, V, STATE), (), ()
            place_ahead = tile_place(tile + 1, tiles, first_step, T, rows, spare, BLOCK, DESCENDING)
            g_ahead = load_raw(gates_row, place_ahead, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING)
            if d_states_ptr is not None:
                d = in_state_dtype(d_ahead, V, STATE)
                d_ahead = load_raw(d_states_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
            else:
                for k in tl.static_range(V):
                    d = d + (tl.zeros(g[k].shape, STATE),)
            if d_gates_ptr is not None:
                h, h_before = in_state_dtype(h_ahead, V, STATE), h_before_ahead.to(STATE)
                h_ahead = load_raw(states_row, place_ahead, 0.0, V, WHOLE, DESCENDING)
                h_before_ahead = load_neighbour(before_row, place_ahead, states_t, V, DESCENDING)
        elif AT_ONCE:
            g, d, h = load_block(gates_block, start, T, rows, 0.0 if LOG else 1.0, V, WHOLE, DESCENDING, STATE), (), ()
            if d_states_ptr is not None:
                d = load_block(d_states_block, start, T, rows, 0.0, V, WHOLE, DESCENDING, STATE)
            else:
                for k in tl.static_range(V):
                    d = d + (tl.zeros(g[k].shape, STATE),)
            if d_gates_ptr is not None:
                h = load_block(before_block, start, T, rows, 0.0, V, False, DESCENDING, STATE)
        else:
            g = load_columns(
                gates_row, where, 0.0 if LOG else 1.0, OUTSIDE, V, GATES_VECTOR and not CHANNELS_LAST,
                EVEN, WHOLE, DESCENDING, STATE,
            )
            if d_states_ptr is not None:
                d = load_columns(
                    d_states_row, where, 0.0, 0.0, V, D_STATES_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING,
                    STATE,
                )
            else:
                d = ()
                for k in tl.static_range(V):
                    d = d + (tl.zeros(g[k].shape, STATE),)
            h = ()
            if d_gates_ptr is not None:
                if WINDOW == 0:
                    h = load_columns(
                        states_row, where, 0.0, 0.0, V, STATES_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING,
                        STATE,
                    )
                    # Beside its own states a group needs one of its neighbour.
                    h_before = load_neighbour(before_row, where, states_t, V, DESCENDING).to(STATE)
        if not EVEN:
            if edge:
                g = own_columns(gates_row, where, g, 0.0 if LOG else 1.0, V, GATES_VECTOR, DESCENDING, STATE)
                if d_states_ptr is not None:
                    d = own_columns(d_states_row, where, d, 0.0, V, D_STATES_VECTOR, DESCENDING, STATE)
                if d_gates_ptr is not None:
                    if WINDOW == 0:
                        h = own_columns(states_row, where, h, 0.0, V, STATES_VECTOR, DESCENDING, STATE)
        g = exponentials(g, V, LOG)
        if PACKED:
            first = bit_columns(first_bits, V, DESCENDING)
            last = bit_columns(last_bits, V, DESCENDING)
            begin = d
            if d_final_ptr is not None:
                begin = ()
                for k in tl.static_range(V):
                    step = position + (V - 1 - k if DESCENDING else k)
                    s = tl.load(sequence_ptr + step, mask=first[k], other=0).to(tl.int64)
                    d_final = tl.load(d_final_ptr + s * n_rows + row, mask=first[k] & rows, other=0.0)
                    begin = begin + (d[k] + d_final.to(STATE),)
            d_tokens, u = scan_packed_tile_backward(
                g, d, carry, exchange, first_bits, first, begin, V, WINDOW, STRIPS, AXIS
            )
        else:
            gate, flow = group_map_backward(g, d, V)
            u = enter_groups(gate, flow, carry, exchange, WINDOW, False, False, STRIPS, AXIS)
            d_tokens, u = gradients_from(u, g, d, V)
        carry = leave_tile(u, carry, T - start + phase, V, DESCENDING, AXIS)
        d_gates = ()
        if d_gates_ptr is not None:
            if WINDOW > 0:
                # Read after what a program waits for, so that meanwhile there is room for more programs.
                h = load_columns(
                    states_row, where, 0.0, 0.0, V, STATES_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING, STATE
                )
                h_before = load_neighbour(before_row, where, states_t, V, DESCENDING).to(STATE)
                if not EVEN:
                    if edge:
                        h = own_columns(states_row, where, h, 0.0, V, STATES_VECTOR, DESCENDING, STATE)
            # From here on h[k + 1] is the state before step k, and h[0] is not used.
            h = (h[0],) + h if AT_ONCE else h + (h_before,)
            alone = (h[0],)
            if PACKED:
                for k in tl.static_range(V):
                    start_state = tl.zeros(d[k].shape, STATE)
                    if initial_ptr is not None:
                        step = position + (V - 1 - k if DESCENDING else k)
                        s = tl.load(sequence_ptr + step, mask=last[k], other=0).to(tl.int64)
                        start_state = tl.load(initial_ptr + s * n_rows + row, mask=last[k] & rows, other=0.0).to(STATE)
                    alone = alone + (tl.where(last[k], start_state, h[k + 1]),)
                h = alone
            elif initial_ptr is not None:
                for k in tl.static_range(V):
                    step = position + (V - 1 - k if DESCENDING else k)
                    at_first = step == (0 if DESCENDING else T - 1)
                    alone = alone + (tl.where(at_first, initial, h[k + 1]),)
                h = alone
            for k in tl.static_range(V):
                d_gate = d_tokens[k] * h[k + 1]
                if LOG:
                    d_gate = d_gate * g[k]
                d_gates = d_gates + (d_gate,)
        if PACKED:
            if broken | (start + BLOCK > used):
                d_tokens = blank_columns(d_tokens, position, used, broken, V, DESCENDING)
                if d_gates_ptr is not None:
                    d_gates = blank_columns(d_gates, position, used, broken, V, DESCENDING)
            if d_initial_ptr is not None:
                ends = bit_columns(last_bits, V, DESCENDING)
                for k in tl.static_range(V):
                    step = position + (V - 1 - k if DESCENDING else k)
                    s = tl.load(sequence_ptr + step, mask=ends[k], other=0).to(tl.int64)
                    tl.store(d_initial_ptr + s * n_rows + row, d_tokens[k] * g[k], mask=ends[k] & rows)
        if d_tokens_ptr is not None:
            store_columns(
                d_tokens_row, where, edge, d_tokens, V, D_TOKENS_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING
            )
        if d_gates_ptr is not None:
            store_columns(
                d_gates_row, where, edge, d_gates, V, D_GATES_VECTOR and not CHANNELS_LAST, EVEN, WHOLE, DESCENDING
            )
    if d_initial_ptr is not None:
        if not PACKED:
            last = leaves_row(first_tile, tiles, T + phase, BLOCK, DESCENDING, WINDOW)
            tl.store(d_initial_ptr + row, carry, mask=rows & last)
