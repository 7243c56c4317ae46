"""Tuning is a pure function of its arguments: it reads no clock, no device and nothing that can change."""

from __future__ import annotations

import ast
import copy
import inspect

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from scan import tuning

TABLES = {name: value for name, value in vars(tuning).items() if isinstance(value, dict) and not name.startswith("__")}


@hypothesis.given(
    T=st.integers(1, 2**33), C=st.integers(1, 2**20), itemsize=st.sampled_from((2, 4, 8)), backward=st.booleans(),
    packed=st.booleans(), n_sequences=st.integers(0, 2**16),
)  # fmt: skip
@hypothesis.settings(max_examples=200)
def test_the_same_arguments_give_the_same_configuration(
    T: int, C: int, itemsize: int, backward: bool, packed: bool, n_sequences: int
) -> None:
    before, results = copy.deepcopy(TABLES), set()
    for other in (1, 7, T, 2 * T + 1):
        results.add(
            (
                tuning.time_contiguous(T, itemsize, backward=backward, packed=packed, n_sequences=n_sequences),
                tuning.channels_last(T, C, itemsize, backward=backward),
            )
        )
        # What was asked in between is no matter.
        tuning.time_contiguous(other, itemsize, backward=not backward, packed=not packed, n_sequences=other)
        tuning.channels_last(other, C + 1, itemsize, backward=not backward)
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
    assert called <= {"max", "min", "next", "bit_length", "Tile", "_of_length"}
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
    assert TABLES and all(isinstance(table, tuple) for tables in TABLES.values() for table in tables.values())


def test_it_asks_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a device was asked")

    wanted = [tuning.time_contiguous(T, 2, backward=True) for T in (100, 5000)]
    for name in ("is_available", "current_device", "get_device_capability", "get_device_name", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, asked)
    assert [tuning.time_contiguous(T, 2, backward=True) for T in (100, 5000)] == wanted
    assert tuning.channels_last(100, 64, 4, backward=False)
