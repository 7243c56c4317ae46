"""How programs that share a row hand its state on: each holds one tile, and needs the state before it.

Every program publishes the map of its tile. Tiles stand in windows; the last program of a window publishes the map of
all of it. A program composes the maps of the windows before its own, then those of the tiles before its own. So a tile
is read once and waits twice, however long the row, and maps are composed in an order that is always the same. (Merrill
and Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back", look back over whatever is there: their
order, and with it the rounding, differs from run to run.)

Progress. Programs take tickets, and wait only for programs with earlier ones. Those have begun, and all that is assumed
is that a program which has begun is not held up for ever by others which wait: CUDA's resident blocks are not.

A published number shares 64 bits with a mark that it is there, and is read and written whole: nothing depends on the
order in which two writes are seen. A number of 64 bits is published as two.
"""

import triton
import triton.language as tl

from scan.kernels.maps import compose, compose_resets, enter, last_of, numbers


@triton.jit
def take_ticket(exchange_ptr, tiles):
    """The block of rows and the tile, in scan order, of this program.

    Neighbouring tickets are of neighbouring blocks: the tiles before one of them have begun long ago.
    """
    ticket = tl.atomic_add(exchange_ptr, 1, sem="relaxed").to(tl.int32)
    blocks = tl.num_programs(0) // tiles
    return ticket % blocks, ticket // blocks


@triton.jit
def _publish_word(at, bits, mask):
    word = bits.to(tl.uint32, bitcast=True).to(tl.uint64) | (tl.full([1, 1], 1, tl.uint64) << 32)
    # Into zero. An exchange, which would do as well, is one that Triton cannot compile for AMD.
    tl.atomic_or(at, word.to(tl.int64, bitcast=True), mask=mask, sem="relaxed")


@triton.jit
def _publish(at, plane, value, mask):
    """Publishes numbers, those of 64 bits in two planes."""
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.uint64, bitcast=True)
        _publish_word(at, (bits & 0xFFFFFFFF).to(tl.uint32), mask)
        _publish_word(at + plane, (bits >> 32).to(tl.uint32), mask)
    else:
        _publish_word(at, value.to(tl.uint32, bitcast=True), mask)


@triton.jit
def _read(at, plane, mask, dtype: tl.constexpr):
    """Numbers, and whether they were there: 1 or 0; where nothing is asked for, 1."""
    low = tl.load(at, mask=mask, other=1 << 32, volatile=True).to(tl.uint64, bitcast=True)
    if dtype.primitive_bitwidth == 64:
        high = tl.load(at + plane, mask=mask, other=1 << 32, volatile=True).to(tl.uint64, bitcast=True)
        bits = (low & 0xFFFFFFFF) | (high << 32)
        return bits.to(dtype, bitcast=True), ((low & high) >> 32).to(tl.int32)
    else:
        return (low & 0xFFFFFFFF).to(tl.uint32).to(dtype, bitcast=True), (low >> 32).to(tl.int32)


@triton.jit
def _composed(gates, states, plane, at, wanted, dtype: tl.constexpr, RESETS: tl.constexpr, AXIS: tl.constexpr):
    """The published maps `[R, W]` at the places `wanted`, composed along AXIS as soon as all are there: `[R, 1]`."""
    gate, state = tl.full(at.shape, 1.0, dtype), tl.zeros(at.shape, dtype)
    gate_there, state_there = tl.zeros(at.shape, tl.int32), tl.zeros(at.shape, tl.int32)
    there = 0
    while there == 0:
        gate, gate_there = _read(gates + at, plane, wanted, dtype)
        state, state_there = _read(states + at, plane, wanted, dtype)
        there = tl.min(tl.min(gate_there & state_there, 1), 0)
    # Of threads that hold the same number some may have read it too early: those read again what now is there.
    early = wanted & ((gate_there & state_there) == 0)
    gate_again, _ = _read(gates + at, plane, early, dtype)
    state_again, _ = _read(states + at, plane, early, dtype)
    gate = tl.where(wanted, tl.where(early, gate_again, gate), 1.0)
    state = tl.where(wanted, tl.where(early, state_again, state), 0.0)
    if RESETS:
        gate, state = tl.associative_scan((gate, state), AXIS, compose_resets)
    else:
        gate, state = tl.associative_scan((gate, state), AXIS, compose)
    return last_of(gate, AXIS), last_of(state, AXIS)


@triton.jit
def _pass(gate, state, before):
    """`enter`; a state of zero passes also through a product of gates that overflows."""
    return tl.where(before == 0.0, state, enter(gate, state, before))


@triton.jit
def carry_in(gate, state, carry, exchange, WINDOW: tl.constexpr, RESETS: tl.constexpr, AXIS: tl.constexpr):
    """State before this program's tile `[R, 1]`, from the map of the tile and the `carry` before the first tile.

    `exchange` is the zeroed buffer (a ticket, then the maps), the numbers of the rows and which of them exist `[R, 1]`,
    the number of rows, the tile in scan order and the number of tiles.
    """
    words, row, rows, n_rows, tile, tiles = exchange
    # Neighbouring words for what a program reads: of one row those of its tiles, else those of its rows.
    LONE: tl.constexpr = row.shape[1 - AXIS] == 1
    windows = tl.cdiv(tiles, WINDOW)
    window = tile // WINDOW
    n_rows = n_rows.to(tl.int64)
    plane, window_plane = n_rows * tiles, n_rows * windows
    halves: tl.constexpr = gate.dtype.primitive_bitwidth // 32
    gates = words + 16  # the ticket has a line of its own
    states = gates + halves * plane
    window_gates = states + halves * plane
    window_states = window_gates + halves * window_plane
    slot = row * tiles + tile if LONE else row + n_rows * tile
    if (tile + 1) % WINDOW != 0:
        _publish(gates + slot, plane, gate, rows)
        _publish(states + slot, plane, state, rows)
    some = numbers(WINDOW, AXIS)
    gate_own, state_own = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
    if tile > window * WINDOW:
        other = window * WINDOW + some
        at = row * tiles + other if LONE else row + n_rows * other
        gate_own, state_own = _composed(gates, states, plane, at, rows & (other < tile), gate.dtype, RESETS, AXIS)
    if (tile + 1) % WINDOW == 0:
        slot = row * windows + window if LONE else row + n_rows * window
        _publish(window_gates + slot, window_plane, gate_own * gate, rows)
        _publish(window_states + slot, window_plane, enter(gate, state, state_own), rows)
    for begin in range(0, window, WINDOW):
        other = begin + some
        at = row * windows + other if LONE else row + n_rows * other
        gate_of, state_of = _composed(
            window_gates, window_states, window_plane, at, rows & (other < window), gate.dtype, RESETS, AXIS
        )
        carry = _pass(gate_of, state_of, carry)
    return _pass(gate_own, state_own, carry)
