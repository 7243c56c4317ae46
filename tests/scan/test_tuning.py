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
            )
        )
        # What was asked in between is no matter.
        tuning.time_contiguous(
            other, itemsize, backward=not backward, packed=not packed, n_sequences=other, n_rows=other
        )
        tuning.channels_last(other, C + 1, itemsize, backward=not backward, n_rows=other)
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
    assert called <= {"max", "min", "next", "bit_length", "Tile", "_of_length", "_replace"}
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
    # Tables of lengths, and tiles, which are tuples too.
    assert TABLES and all(isinstance(table, tuple) for tables in TABLES.values() for table in tables.values())


@pytest.mark.parametrize("T", [16_385, 65_536, 100_003, 2**24])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_few_long_rows_are_shared_by_programs(T: int, itemsize: int, backward: bool) -> None:
    for packed in ({}, {"packed": True, "n_sequences": 64}):
        for n_rows in (1, 3, 64, 383):
            tile = tuning.time_contiguous(T, itemsize, backward=backward, n_rows=n_rows, **packed)
            # A window of windows is one round: its tiles hold millions of steps.
            assert tile.window == 128 and tile.stages == 1 and tile.width * itemsize == 16
            assert tile.groups * tile.width * tile.window**2 >= 2**22
            # A shorter row is walked, and so are rows enough.
            for alone in ((tuning._LONG, n_rows), (T, 384), (T, 2**20)):
                assert not tuning.time_contiguous(
                    alone[0], itemsize, backward=backward, n_rows=alone[1], **packed
                ).window
        # Who does not say how many rows there are has enough of them.
        assert not tuning.time_contiguous(T, itemsize, backward=backward, **packed).window


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
