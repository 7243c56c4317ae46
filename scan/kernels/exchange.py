"""How programs that share a row hand its state on: each holds one tile, and needs the state before it.

Every program publishes the map of its tile. Tiles stand in windows; the last program of a window publishes the map of
all of it. A program composes the maps of the windows before its own, then those of the tiles before its own. So a tile
is read once and waits twice, however long the row, and maps are composed in an order that is always the same. (Merrill
and Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back", look back over whatever is there: their
order, and with it the rounding, differs from run to run.)

Progress. Programs wait only for programs of smaller numbers. Blocks begin in the order of their numbers, as NVIDIA's
own scans assume (CUB 2.8.2, agent/agent_scan.cuh: "Blocks are launched in increasing order, so just assign one tile per
block"), so that those have begun; and a program which has begun is not held up for ever by others which wait: CUDA's
resident blocks are not. On AMD the number is a ticket that a program takes as it begins; on an H200 that would cost a
tenth of the time.

Where a row is scanned in both directions, its programs wait for one another. Their numbers are neighbours, so of the
rows that are under way one has the smallest, and its programs that have not begun are next to begin: all that is
assumed beside is that a GPU has room for the programs of one row, which the host sees to. A row has at most WINDOW,
each of which reads the maps of all others at once.

A map is published in one word of 64 bits, a gate and a state, or in two where a number has 64 bits itself. Words are
read and written whole, and zero until then: nothing depends on the order in which two writes are seen.
"""

import triton
import triton.language as tl

from scan.kernels.maps import compose, compose_resets, enter, last_of, numbers
from scan.kernels.strips import compose_each, of_strips


@triton.jit
def own_turn(exchange_ptr):
    """Which program this is in the order in which programs begin. Nothing is known of it on AMD: a ticket tells."""
    if tl.target_info.is_hip():
        return tl.atomic_add(exchange_ptr, 1, sem="relaxed").to(tl.int32)
    else:
        return tl.program_id(0)


@triton.jit
def own_block_and_tile(exchange_ptr, tiles, RUN: tl.constexpr):
    """Those of this program: of RUN tiles that follow one another in a row, then those of the next block.

    Tiles before such a run began long ago where rows are many; a run is what memory holds in one piece.
    """
    turn, blocks = own_turn(exchange_ptr), tl.num_programs(0) // tiles
    if RUN == 1:
        return turn % blocks, turn // blocks
    else:
        first = turn // (blocks * RUN) * RUN
        run, turn = tl.minimum(tiles - first, RUN), turn - first * blocks
        return turn // run, first + turn % run


# Bits of a NaN that no published number has: combined with them no number is zero.
_NO_NUMBER = tl.constexpr(0x7FB5A5A5)
_NO_NUMBER_64 = tl.constexpr(0x7FF5A5A5A5A5A5A5)


@triton.jit
def _marked(bits, NO_NUMBER: tl.constexpr):
    """Bits of a number as others that are not zero. Of that one NaN they are those of its neighbour."""
    return tl.where(bits == NO_NUMBER, 1, bits ^ NO_NUMBER)


@triton.jit
def _publish_word(at, word, mask):
    # Into zero. An exchange, which would do as well, is one that Triton cannot compile for AMD.
    tl.atomic_or(at, word.to(tl.int64, bitcast=True), mask=mask, sem="relaxed")


@triton.jit
def _publish(at, plane, gate, state, mask, AXIS: tl.constexpr):
    """Publishes a map, of numbers of 64 bits in two planes; one lane does where all hold it."""
    if gate.shape[AXIS] > 1:
        mask = mask & (numbers(gate.shape[AXIS], AXIS) == 0)
        at = tl.broadcast_to(at, gate.shape)
    if gate.dtype.primitive_bitwidth == 64:
        _publish_word(at, _marked(gate.to(tl.uint64, bitcast=True), _NO_NUMBER_64), mask)
        _publish_word(at + plane, _marked(state.to(tl.uint64, bitcast=True), _NO_NUMBER_64), mask)
    else:
        high = _marked(gate.to(tl.uint32, bitcast=True), _NO_NUMBER).to(tl.uint64)
        _publish_word(at, (high << 32) | state.to(tl.uint32, bitcast=True).to(tl.uint64), mask)


@triton.jit
def _read_word(at, mask):
    """Words as they are now; where nothing is asked for, 1."""
    if tl.target_info.is_hip():
        # Triton compiles a volatile load for AMD to one that leaves the loop in which a program waits.
        return tl.where(mask, tl.atomic_or(at, 0, mask=mask, sem="relaxed"), 1)
    else:
        return tl.load(at, mask=mask, other=1, volatile=True)


@triton.jit
def _still_missing(at, word):
    """Words again of which some were missing (0): those alone, since many programs wait at once."""
    return tl.where(word == 0, _read_word(at, word == 0), word)


@triton.jit
def _are_there(word):
    return tl.min(tl.min((word != 0).to(tl.int32), 1), 0)


@triton.jit
def _awaited(at, wanted):
    """The words at the places `wanted`, as soon as all are there."""
    word = _read_word(at, wanted)
    while _are_there(word) == 0:
        word = _still_missing(at, word)
    # Of threads that hold the same number some may have read it too early: those read again what now is there.
    return _still_missing(at, word)


@triton.jit
def _map_of(word, at, plane, wanted, dtype: tl.constexpr):
    """The maps `[R, W]` in words that are there; those that are not `wanted` change nothing."""
    if dtype.primitive_bitwidth == 64:
        other = _awaited(at + plane, wanted)
        gate, state = (word ^ _NO_NUMBER_64).to(dtype, bitcast=True), (other ^ _NO_NUMBER_64).to(dtype, bitcast=True)
    else:
        bits = word.to(tl.uint64, bitcast=True)
        gate = ((bits >> 32).to(tl.uint32) ^ _NO_NUMBER).to(dtype, bitcast=True)
        state = (bits & 0xFFFFFFFF).to(tl.uint32).to(dtype, bitcast=True)
    return tl.where(wanted, gate, 1.0), tl.where(wanted, state, 0.0)


@triton.jit
def _all_of(gate, state, like, RESETS: tl.constexpr, AXIS: tl.constexpr):
    """Maps `[R, W]` composed along AXIS: `[R, 1]`, or in every lane where `like` is."""
    if like.shape[AXIS] > 1 and not tl.target_info.is_hip():
        # Of AMD's 64 lanes two strips share a warp, and Triton 3.7 fails on what brings the last one to all.
        _, _, whole = compose_each(gate, state, RESETS)
        gate, state = of_strips(whole[0]), of_strips(whole[1])
        if gate.shape[1] != like.shape[1]:
            gate, state = last_of(gate, 1), last_of(state, 1)
    else:
        if RESETS:
            gate, state = tl.associative_scan((gate, state), AXIS, compose_resets)
        else:
            gate, state = tl.associative_scan((gate, state), AXIS, compose)
        gate, state = last_of(gate, AXIS), last_of(state, AXIS)
    return tl.broadcast_to(gate, like.shape), tl.broadcast_to(state, like.shape)


@triton.jit
def _composed(at, plane, wanted, like, RESETS: tl.constexpr, AXIS: tl.constexpr):
    """The published maps `[R, W]` at the places `wanted`, composed along AXIS as soon as all are there."""
    word = _awaited(at, wanted)
    gate, state = _map_of(word, at, plane, wanted, like.dtype)
    return _all_of(gate, state, like, RESETS, AXIS)


@triton.jit
def _pass(gate, state, before):
    """`enter`; a state of zero passes also through a product of gates that overflows."""
    return tl.where(before == 0.0, state, enter(gate, state, before))


@triton.jit
def carry_in(gate, state, carry, exchange, WINDOW: tl.constexpr, RESETS: tl.constexpr, AXIS: tl.constexpr):
    """State before this program's tile, from the map of the tile and the `carry` `[R, 1]` before the first tile.

    The map and that state are `[R, 1]`; in every lane, `[1, L]`, of one row whose maps are composed in strips.
    `exchange` is the zeroed buffer (the next ticket, then the maps), the numbers of the rows and which of them exist
    `[R, 1]`, the number of rows, the tile in scan order and the number of tiles.
    """
    words, row, rows, n_rows, tile, tiles = exchange
    # Neighbouring words for what a program reads: of one row those of its tiles, else those of its rows.
    LONE: tl.constexpr = row.shape[1 - AXIS] == 1
    windows = tl.cdiv(tiles, WINDOW)
    window = tile // WINDOW
    n_rows = n_rows.to(tl.int64)
    plane, window_plane = n_rows * tiles, n_rows * windows
    maps = words + 16  # the ticket has a line of its own
    window_maps = maps + gate.dtype.primitive_bitwidth // 32 * plane
    slot = row * tiles + tile if LONE else row + n_rows * tile
    if (tile + 1) % WINDOW != 0:
        _publish(maps + slot, plane, gate, state, rows, AXIS)
    some = numbers(WINDOW, AXIS)
    gate_own, state_own = tl.full(gate.shape, 1.0, gate.dtype), tl.zeros(gate.shape, gate.dtype)
    if tile > window * WINDOW:
        other = window * WINDOW + some
        at = row * tiles + other if LONE else row + n_rows * other
        gate_own, state_own = _composed(maps + at, plane, rows & (other < tile), gate, RESETS, AXIS)
    if (tile + 1) % WINDOW == 0:
        slot = row * windows + window if LONE else row + n_rows * window
        _publish(window_maps + slot, window_plane, gate_own * gate, enter(gate, state, state_own), rows, AXIS)
    carry = tl.broadcast_to(carry, gate.shape)
    for begin in range(0, window, WINDOW):
        other = begin + some
        at = row * windows + other if LONE else row + n_rows * other
        gate_of, state_of = _composed(window_maps + at, window_plane, rows & (other < window), gate, RESETS, AXIS)
        carry = _pass(gate_of, state_of, carry)
    return _pass(gate_own, state_own, carry)


@triton.jit
def publish_both(gate, state, state_back, exchange):
    """Publishes the map of this program's tile ahead and that of the way back, which are in all lanes.

    `exchange` is that of `carry_in`. Of both maps the product of gates is one.
    """
    words, row, rows, n_rows, tile, tiles = exchange
    tl.static_assert(gate.dtype.primitive_bitwidth == 32)
    maps = words + 16 + row * tiles + tile  # the ticket has a line of its own
    plane = n_rows.to(tl.int64) * tiles
    _publish(maps, plane, gate, state, rows, 1)
    _publish(maps + plane, plane, gate, state_back, rows, 1)


@triton.jit
def carry_of_way(like, exchange, WINDOW: tl.constexpr, BACK: tl.constexpr):
    """State before this program's tile, or behind it if BACK, in all lanes, from what `publish_both` published.

    Rows have WINDOW tiles at most, and no state comes in at either end.
    """
    words, row, rows, n_rows, tile, tiles = exchange
    plane = n_rows.to(tl.int64) * tiles
    maps = words + 16 + row * tiles
    other = numbers(WINDOW, 1)
    if BACK:
        at, wanted = maps + plane + (tiles - 1 - other), rows & (other < tiles - 1 - tile)
    else:
        at, wanted = maps + other, rows & (other < tile)
    _, carry = _composed(at, plane, wanted, like, False, 1)
    return carry
