"""Tuning is a pure function of its arguments: it reads no clock, no device and nothing that can change."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from scan import tuning

TABLES = {name: value for name, value in vars(tuning).items() if isinstance(value, dict) and not name.startswith("__")}


@hypothesis.given(
    T=st.integers(1, 2**33), C=st.integers(1, 2**20), itemsize=st.sampled_from((2, 4, 8)), backward=st.booleans(),
    packed=st.booleans(), n_sequences=st.integers(0, 2**16), n_rows=st.integers(1, 2**20),
)  # fmt: skip
@hypothesis.settings(max_examples=200)
def test_the_same_arguments_give_the_same_configuration(
    T: int, C: int, itemsize: int, backward: bool, packed: bool, n_sequences: int, n_rows: int
) -> None:
    before, results = copy.deepcopy(TABLES), set()
    for other in (1, 7, T, 2 * T + 1):
        results.add(
            (
                tuning.time_contiguous(
                    T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences, n_rows=n_rows
                ),
                tuning.channels_last(T, C, itemsize, backward=backward, n_rows=n_rows),
                tuning.shared(T, itemsize, backward=backward, even=packed),
            )
        )
        # What was asked in between is no matter.
        tuning.time_contiguous(
            other, itemsize, backward=not backward, packed=not packed, n_sequences=other, n_rows=other
        )
        tuning.channels_last(other, C + 1, itemsize, backward=not backward, n_rows=other)
        tuning.shared(other, itemsize, backward=not backward, even=not packed)
    assert len(results) == 1 and before == TABLES


def test_it_knows_nothing_but_its_arguments_and_tables() -> None:
    tree = ast.parse(inspect.getsource(tuning))
    imported = {
        getattr(node, "module", None) or alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= {"__future__", "typing"}, "a clock or a device would have to be imported"
    called = {
        node.func.id
        if isinstance(node.func, ast.Name)
        else node.func.attr
        if isinstance(node.func, ast.Attribute)
        else "?"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert called <= {"max", "min", "next", "get", "bit_length", "Tile", "_of_length", "_split", "_replace"}
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
    # Tables of lengths, and tiles, which are tuples too.
    assert TABLES and all(isinstance(table, tuple) for tables in TABLES.values() for table in tables.values())


def _in_runs(T: int, itemsize: int, backward: bool, packed: bool) -> bool:
    """Whether rows enough for a program each are shared all the same, in runs: long ones of whole tiles of 4 bytes."""
    longer = 4096 if backward and not packed else 8192
    return itemsize == 4 and T > longer and T % 1024 == 0


@pytest.mark.parametrize("T", [16_385, 65_536, 100_003, 2**24])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_few_long_rows_are_shared_by_programs(T: int, itemsize: int, backward: bool) -> None:
    for packed in ({}, {"packed": True, "n_sequences": 64}):
        for n_rows in (1, 3, 64, 383):
            tile = tuning.time_contiguous(T, itemsize, backward=backward, n_rows=n_rows, **packed)
            # Neighbouring programs have other rows; a window of windows holds half a million steps or more.
            assert tile.window in (32, 64, 128) and tile.run == tile.stages == 1 and tile.width * itemsize == 16
            assert tile.groups * tile.width * tile.window**2 >= 2**19
            # A shorter row is not, and neither are rows enough.
            for alone in ((16_384, n_rows), (T, 384), (T, 2**20)):
                other = tuning.time_contiguous(alone[0], itemsize, backward=backward, n_rows=alone[1], **packed)
                assert (other.run > 1) == (other.window > 0) == _in_runs(alone[0], itemsize, backward, bool(packed))
        # Who does not say how many rows there are has enough of them.
        enough = tuning.time_contiguous(T, itemsize, backward=backward, n_rows=384, **packed)
        assert tuning.time_contiguous(T, itemsize, backward=backward, **packed) == enough


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_long_rows_of_whole_tiles_are_shared_in_runs(itemsize: int, backward: bool) -> None:
    runs = tuning._RUNS_BACKWARD if backward else tuning._RUNS_FORWARD
    # One warp holds a tile, and what it waits for is few words, of tiles that were begun right before.
    assert (runs.rows, runs.num_warps, runs.stages, runs.steps) == (1, 1, 1, 1024) and runs.run <= runs.window

    def chosen(T: int, n_rows: int, **packed: int) -> tuning.Tile:
        return tuning.time_contiguous(T, itemsize, backward=backward, n_rows=n_rows, **packed)  # type: ignore[arg-type]

    for T, n_rows in itertools.product((4096, 5120, 8192, 9216, 16_384, 66_560, 2**24), (1, 383, 384, 12_288, 2**20)):
        if n_rows < 384 and T > 16_384:
            continue
        assert (chosen(T, n_rows) == runs) == _in_runs(T, itemsize, backward, False)
        # Of packed rows those of sequences that are not short, either way in the tile of forward.
        for n_sequences in (T // 256 + 1, T // 256, 1):
            packed = chosen(T, n_rows, packed=True, n_sequences=n_sequences)
            in_runs = T // n_sequences > 255 and _in_runs(T, itemsize, backward, True)
            assert (packed == tuning._RUNS_FORWARD) == in_runs and (packed.run > 1) == in_runs
        # A row that ends within a tile, or within a group, is walked.
        for ragged in (T - 1, T + 4, T + 512):
            assert chosen(ragged, n_rows).run == 1


# The longest rows of one tile of both directions, by bytes and whether backward; shorter tiles have half as many steps
# each, down to 128. Rows that begin or end within a group are held by tiles of 512 groups at most.
SHARED_LONGEST = {(2, False): 8192, (2, True): 4096, (4, False): 8192, (4, True): 4096}
# The longest of each tile of rows that programs share.
SHARED_LONG = {(2, False): (2**14, 2**17), (2, True): (2**14, 2**17), (4, False): (2**17,), (4, True): (2**14, 2**17)}
# The most steps that programs share.
SHARED_MOST = 2**17


def _shared_lengths(itemsize: int, backward: bool) -> list[int]:
    longest = SHARED_LONGEST[itemsize, backward]
    return [2**power for power in range(7, longest.bit_length())]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_both_directions_of_a_row_take_the_smallest_tile_that_holds_it(itemsize: int, backward: bool) -> None:
    width = 16 // itemsize
    # Backward meets what forward took.
    for T, even in itertools.product((*range(1, 8300), SHARED_MOST, SHARED_MOST + 1), (False, True)):
        forward, back = (tuning.shared(T, itemsize, backward=b, even=even) for b in (False, True))
        assert (forward is None) is (back is None)
    for shorter, longest in itertools.pairwise((0, *_shared_lengths(itemsize, backward))):
        # Of the largest tile rows have to fill three quarters, or programs that share them are as fast.
        least = 6144 if longest == 8192 else shorter + 1
        for T in {least, least + width, longest - width, longest}:
            tile = tuning.shared(T, itemsize, backward=backward, even=True)
            assert tile is not None and tile.steps == longest and tile.width == width
            assert tile.stages == 1 and tile.window == 0
            # A warp has no thread without a group.
            assert tile.rows * tile.groups >= 32 * tile.num_warps


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_both_directions_of_longer_rows_are_shared_by_programs(itemsize: int, backward: bool) -> None:
    def chosen(T: int, n_rows: int = 384) -> tuning.Tile | None:
        return tuning.shared(T, itemsize, backward=backward, even=True, n_rows=n_rows)

    begin = SHARED_LONGEST[itemsize, backward]
    for longest in SHARED_LONG[itemsize, backward]:
        tile = chosen(longest)
        assert tile is not None and tile.rows == 1 and tile.stages == 1 and tile.width == 16 // itemsize
        # All maps of a row are read at once; its programs fit on a GPU of 40 multiprocessors.
        assert longest <= tile.steps * tile.window and tile.window <= 40 * tuning.programs_at_once(tile)
        # One warp needs no barriers, and two few; a thread has enough to hide what it waits for.
        assert tile.num_warps <= 2 and tile.groups // (32 * tile.num_warps) in (4, 8)
        # From the first step on that no tile of one program holds, or fills by three quarters.
        assert all(chosen(T) == tile for T in (begin + 1, longest - 1, longest))
        if begin == SHARED_LONGEST[itemsize, backward] == tuning.LARGEST_TILE:
            assert all(chosen(T) == tile for T in (begin // 2 + 1, 3 * begin // 4 - 1))
            assert all(chosen(T) not in (None, tile) for T in (begin // 2, 3 * begin // 4, begin))
        begin = longest
    assert chosen(SHARED_MOST + 1) is None and begin == SHARED_MOST
    tile = chosen(16_384)
    # Of few rows either direction alone is split from the same length on.
    assert chosen(16_384, 1) == tile and chosen(16_385, 383) is None
    assert tuning.shared(16_384, itemsize, backward=backward, even=False) is None


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_of_a_sum_tiles_of_one_warp_that_wait_have_other_registers(itemsize: int, backward: bool) -> None:
    # Of 2 bytes where a sum is wanted, of 4 where one comes in.
    registers = {(2, False): 72, (4, True): 168}.get((itemsize, backward))
    lengths = (*(2**power for power in range(5, 18)), 2**18)
    for T in lengths:
        tile, added = (tuning.shared(T, itemsize, backward=backward, even=True, added=each) for each in (False, True))
        if tile is not None and tile.window and tile.num_warps == 1 and registers is not None:
            assert added == tile._replace(registers=registers) != tile
        else:
            assert added == tile
    assert registers is None or tuning.shared(2**14, itemsize, backward=backward, even=True, added=True) == (
        tuning.Tile(1, 128, 16 // itemsize, 1, registers=registers, window=128)
    )


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_both_directions_of_a_row_that_ends_within_a_group(itemsize: int, backward: bool) -> None:
    # It may begin with the last step of a group, and hold one group more.
    width = 16 // itemsize
    most = min(512 * width, SHARED_LONGEST[itemsize, backward])
    for longest in _shared_lengths(itemsize, backward):
        T = longest - width + 1
        tile, whole = (tuning.shared(T, itemsize, backward=backward, even=even) for even in (False, True))
        if longest > most:
            assert tile is None and whole is not None
            continue
        # The tile of whole groups with no cap on registers, and two groups a thread at most.
        assert tile is not None and whole is not None and tile.groups * tile.width == longest
        warps = max(whole.num_warps, tile.groups // 64)
        assert tile == whole._replace(num_warps=warps, registers=None)
        assert tile.rows * tile.groups <= 2 * 32 * tile.num_warps
        longer = tuning.shared(T + 1, itemsize, backward=backward, even=False)
        assert (longer is None) if longest == most else longer is not None and longer.groups == 2 * tile.groups
    assert tuning.shared(8192, itemsize, backward=backward, even=False) is None


@pytest.mark.parametrize("itemsize", [1, 8, 16])
def test_both_directions_of_other_numbers_are_two_scans(itemsize: int) -> None:
    for T, backward, even in itertools.product((1, 96, 128, 4096, 8192), (False, True), (False, True)):
        assert tuning.shared(T, itemsize, backward=backward, even=even) is None


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_few_channels_of_long_rows_are_shared_by_programs(itemsize: int, backward: bool) -> None:
    for T, C, n_rows in itertools.product((1, 512, 1024, 4096, 2**20), (1, 64, 1537), (1, 64, 2047, 2048, 2**20)):
        tile = tuning.channels_last(T, C, itemsize, backward=backward, n_rows=n_rows)
        assert (tile.window > 0) == (n_rows < 2048 and T >= 1024)
        # A program that shares a row scans one tile; a window of windows holds a long row.
        assert not tile.window or (tile.stages == 1 and tile.groups * tile.width * tile.window**2 >= min(T, 2**17))


def test_it_asks_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a device was asked")

    wanted = [tuning.time_contiguous(T, 2, backward=True, n_rows=8) for T in (100, 5000, 50_000)]
    for name in ("is_available", "current_device", "get_device_capability", "get_device_name", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, asked)
    assert [tuning.time_contiguous(T, 2, backward=True, n_rows=8) for T in (100, 5000, 50_000)] == wanted
    assert tuning.channels_last(100, 64, 4, backward=False)
