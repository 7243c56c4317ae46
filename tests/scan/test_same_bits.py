"""The same call gives the same bits; and, however many rows are scanned in one way, each has the bits of a row alone.

What may differ with the number of rows is the way: few rows are shared by programs or have other tiles, and of one
channel alone time is contiguous. And rows that begin elsewhere within a line of memory are cut into other groups.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from scan import tuning
from tests.conftest import INTERPRETING, ON_GPU
from tests.scan.calls import Call, answers, draw_all
from tests.scan.cases import Case, Inputs, bits
from tests.scan.runs import Outputs, run
from tests.scan.stress import Load

# In the interpreter one program runs after the other, and so two runs differ in nothing but what was in memory before.
RUNS = 2 if INTERPRETING else 20

_BF16, _C64, _C128 = torch.bfloat16, torch.complex64, torch.complex128
_SHARED = tuning.Tile(1, 8, 4, 4, window=2)
_SHARED_CHANNELS = tuning.Tile(2, 8, 4, 4, window=2)
_PACKED = {"lengths": (31, 0, 30), "initial": True}

SMALL = [
    Call(Case(96, rows=(3,), initial=True)),
    Call(Case(70, _BF16, rows=(3,), reverse=True)),
    Call(Case(96, rows=(3,), reverse=True, **_PACKED)),
    Call(Case(70, dim=-2, rows=(19,), initial=True)),
    Call(Case(70, _BF16, dim=-2, rows=(19,), reverse=True, **_PACKED)),
    Call(Case(128, rows=(2,), initial=True), tile=_SHARED),
    Call(Case(99, rows=(2,), reverse=True, **_PACKED), tile=_SHARED),
    Call(Case(99, dim=-2, rows=(3,), initial=True), tile=_SHARED_CHANNELS),
    Call(Case(99, dim=-2, rows=(3,), reverse=True, **_PACKED), tile=_SHARED_CHANNELS),
    Call(Case(96, rows=(3,), initial=True), both=True),
    Call(Case(70, dim=-2, rows=(19,), **_PACKED), both=True),
    Call(Case(70, _C64, rows=(3,), initial=True)),
    Call(Case(70, _C128, dim=-2, rows=(19,), reverse=True, **_PACKED)),
]
_PACKED = {"lengths": (1000, 0, 3000), "initial": True}
# Under the tiles that tuning chooses: also where programs share the rows, which are few.
LARGE = [
    *(Call(Case(T, dtype, rows=(300,), initial=True)) for T in (4097, 8192) for dtype in (torch.float32, _BF16)),
    Call(Case(4097, rows=(300,), reverse=True, **_PACKED)),
    Call(Case(4097, dim=-2, rows=(300,), initial=True)),
    Call(Case(4097, _BF16, dim=-2, rows=(300,), reverse=True, **_PACKED)),
    *(Call(Case(T, dtype, rows=(7,), initial=True)) for T in (65_536, 100_003) for dtype in (torch.float32, _BF16)),
    Call(Case(2**22, rows=(2,))),
    Call(Case(100_003, rows=(7,), reverse=True, **_PACKED)),
    Call(Case(100_000, torch.float64, rows=(7,), reverse=True)),
    Call(Case(1024, rows=(300,), initial=True), both=True),
    Call(Case(500, _BF16, rows=(300,), lengths=(200, 0, 290)), both=True),
    Call(Case(2048, dim=-2, rows=(300,), lengths=(1000, 0, 1000)), both=True),
    Call(Case(4097, _C64, rows=(300,), initial=True)),
    Call(Case(4097, _C64, dim=-2, rows=(300,), reverse=True, **_PACKED)),
    Call(Case(4097, _C128, rows=(300,), reverse=True, **_PACKED)),
]
CALLS = [*SMALL, *(pytest.param(call, marks=pytest.mark.gpu) for call in LARGE)]


@pytest.mark.parametrize("runs", [RUNS], ids="{}runs".format)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_runs_of_a_call_give_the_same_bits(call: Call, runs: int, kernel_device: torch.device) -> None:
    torch.use_deterministic_algorithms(True)  # not one operation that PyTorch would complain about
    asked, plans, choose = draw_all(call, kernel_device), {}, random.Random(0)
    first = answers(call, asked, plans)
    load = Load() if ON_GPU else None
    for _ in range(runs - 1):
        if load is not None:
            load.more(choose)  # blocks begin in another order
        _assert_same(first, answers(call, asked, plans))


@pytest.mark.parametrize("runs", [RUNS], ids="{}runs".format)
@pytest.mark.parametrize("call", [call for call in SMALL if not call.both and call.tile is None], ids=str)
def test_runs_of_the_public_function_give_the_same_bits(call: Call, runs: int, contract_device: torch.device) -> None:
    torch.use_deterministic_algorithms(True)
    (inputs,) = draw_all(call, contract_device)
    first = run(call.case, inputs)
    for _ in range(runs - 1):
        _assert_same([first], [run(call.case, inputs)])


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_row_has_its_bits_beside_any_number_of_others(
    call: Call, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, (n,) = draw_all(call, kernel_device), call.case.rows
    # The way of all rows for some of them, too.
    rows, channels = tuning.time_contiguous, tuning.channels_last
    monkeypatch.setattr(tuning, "time_contiguous", lambda T, *_, **known: rows(T, *_, **known | {"n_rows": n}))
    monkeypatch.setattr(tuning, "channels_last", lambda T, C, *_, **known: channels(T, n, *_, **known | {"n_rows": n}))
    whole = answers(call, asked, {})
    few = 1 if call.case.dim == -1 else 2
    some = [range(few)] if INTERPRETING else [range(few), range(n - 1)]
    if call.case.dim == -2 or call.case.dtype.is_complex or call.case.T * call.case.dtype.itemsize % 128 == 0:
        # Every row begins at the beginning of a line, or lines are no matter.
        some.append(range(n - few, n))
    for kept in some:
        alone = call._replace(case=dataclasses.replace(call.case, rows=(len(kept),)))
        got = answers(alone, [_of_rows(inputs, call.case, kept) for inputs in asked], {})
        _assert_same([_kept(outputs, call.case, kept) for outputs in whole], got)


def _of_rows(inputs: Inputs, case: Case, kept: range) -> Inputs:
    """What some neighbouring rows read, in memory of their own."""
    return Inputs(**_kept(vars(inputs), case, kept))  # type: ignore[arg-type]


def _kept(tensors: Outputs, case: Case, kept: range) -> Outputs:
    """Of every tensor the part that belongs to some neighbouring rows."""

    def part(name: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or name == "cu_seqlens":
            return tensor
        along = 0 if tensor.shape == case.shape and case.dim == -1 else -1
        return tensor.narrow(along, kept.start, len(kept)).contiguous()

    return {name: part(name, tensor) for name, tensor in tensors.items()}


def _assert_same(first: list[Outputs], other: list[Outputs]) -> None:
    for before, after in zip(first, other, strict=True):
        assert before.keys() == after.keys()
        for name, one in before.items():
            again = after[name]
            assert (one is None) == (again is None)
            assert one is None or again is None or torch.equal(bits(one), bits(again)), f"{name} has other bits"
