"""Rows that programs share: each scans one tile, and composes the maps of the tiles before it (kernels/exchange.py).

Tiles are small here, so that a few hundred steps fill many of them and several windows; stress.py has real ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from scan import launch, repeat, tuning
from tests.scan.cases import DTYPES, Case, bits, draw, grid
from tests.scan.runs import Outputs, check, run

# NumPy's remarks on arithmetic with infinities, in the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

BOTH = {"dim": (-1, -2), "reverse": (False, True)}
GROUPS = 8  # of a tile: 128 bytes of a row, from where on groups are counted in rows that begin anywhere


def _share(
    monkeypatch: pytest.MonkeyPatch, window: int, groups: int = GROUPS, num_warps: int = 1, run: int = 1
) -> list[launch.Launch]:
    """Lets programs share rows in tiles of `groups`, windows of `window` and runs; the launches made from then on.

    In tiles of one warp maps are composed in strips, and kept in all lanes.
    """

    def rows(T: int, itemsize: int, **_: object) -> tuning.Tile:
        return tuning.Tile(1, groups, 16 // itemsize, num_warps, window=window, run=run)

    def channels(T: int, C: int, itemsize: int, **_: object) -> tuning.Tile:
        return tuning.Tile(2, groups, 4, 4, window=window, run=run)

    made: list[launch.Launch] = []
    launches = launch._run

    def noted(key: object, pointers: tuple[Tensor | None, ...], launched: launch.Launch) -> None:
        made.append(launched)
        launches(key, pointers, launched)

    monkeypatch.setattr(tuning, "time_contiguous", rows)
    monkeypatch.setattr(tuning, "channels_last", channels)
    monkeypatch.setattr(launch, "_run", noted)
    # Launches are kept by shape, as a process has one tuning.
    monkeypatch.setattr(launch, "_plans", {})
    monkeypatch.setattr(repeat, "_calls", repeat.Known(9))
    return made


def _steps(case: Case) -> int:
    """Steps of a tile."""
    return GROUPS * (16 // case.dtype.itemsize if case.dim == -1 else 4)


def _around(case: Case, tiles: int, more: int, packed: bool) -> Case:
    """The case with rows of so many tiles and `more` steps, and sequences that end on and beside borders of tiles."""
    S = _steps(case)
    T = tiles * S + more
    ends = [0, S, S, 2 * S - 1, 2 * S + 1, 4 * S, 5 * S - 1, 5 * S, 6 * S + 1]
    lengths = tuple(b - a for a, b in itertools.pairwise(end for end in ends if end <= T - 3))
    return dataclasses.replace(case, T=T, lengths=lengths if packed else None)


def _assert_shared(made: list[launch.Launch], case: Case) -> None:
    """Forward and backward were launched, each with a program for every tile."""
    made = [launched for launched in made if launched.n_exchanged is not None]
    rows = math.prod(case.rows) if case.dim == -1 else math.prod(case.rows[:-1]) * -(-case.rows[-1] // 2)
    for launched in made:
        assert launched.n_exchanged and launched.grid[0] % rows == 0
        assert launched.grid[0] // rows in range(-(-case.T // _steps(case)), case.T // _steps(case) + 3)
    assert len(made) == 2


# One window filled, one step more, the next window filled but for a step, two windows, more than are composed at once.
# Where maps can be composed in strips also in tiles of several warps, which do not.
@pytest.mark.parametrize(("tiles", "more"), [(2, 0), (2, 1), (4, -1), (4, 0), (7, 5)])
@pytest.mark.parametrize(
    ("case", "packed", "num_warps"),
    [
        pytest.param(case, packed, num_warps, id=f"{case}-{'packed-' * packed}{num_warps}")
        for case, packed in itertools.product(grid(T=(0,), initial=(True,), **BOTH), (False, True))
        for num_warps in ((1, 4) if case.dim == -1 and not packed else (1,))
    ],
)
def test_around_tiles_and_windows_of_two(
    case: Case, packed: bool, num_warps: int, tiles: int, more: int, kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = _share(monkeypatch, 2, num_warps=num_warps)
    case = _around(dataclasses.replace(case, rows=(2,) if case.dim == -1 else (3,)), tiles, more, packed)
    check(case, kernel_device)
    _assert_shared(made, case)


# As long as a window, longer, and not a part of it; longer than a row.
@pytest.mark.parametrize("run_of", [2, 3, 16])
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(0,), rows=((2, 3),), initial=(True,), **BOTH), ids=str)
def test_runs_of_tiles(
    case: Case, packed: bool, run_of: int, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _share(monkeypatch, 2, run=run_of)
    case = _around(case, 7, 5, packed)
    check(case, kernel_device)
    _assert_shared(made, case)


@pytest.mark.parametrize(
    ("blocks", "tiles", "run_of"), [(1, 1, 1), (5, 7, 1), (5, 7, 3), (5, 6, 3), (4, 3, 16), (1, 9, 4)]
)
def test_a_program_has_the_tile_that_its_number_says(
    blocks: int, tiles: int, run_of: int, kernel_device: torch.device
) -> None:
    from tests.scan.own_tile import own_tile

    taken = torch.full((blocks * tiles, 2), -1, dtype=torch.int32, device=kernel_device)
    own_tile[(blocks * tiles,)](None, taken, tiles, RUN=run_of)
    order = [tuple(pair) for pair in taken.tolist()]
    # Each tile once, and the tiles of a row in their order: a program waits for smaller numbers.
    assert sorted(order) == list(itertools.product(range(blocks), range(tiles)))
    assert all([tile for block, tile in order if block == each] == list(range(tiles)) for each in range(blocks))
    # A run is that of one row.
    runs = [order[at : at + run_of] for at in range(0, blocks * (tiles // run_of) * run_of, run_of)]
    assert all(len({block for block, _ in one}) == 1 for one in runs)


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(0,), rows=((1,),), initial=(True,), dim=(-1, -2)), ids=str)
def test_windows_of_four(
    case: Case, packed: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 4)
    check(_around(dataclasses.replace(case, reverse=packed != (case.dim == -1)), 21, 3, packed), kernel_device)


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(0,), dtype=DTYPES, initial=(False, True), dim=(-1, -2)), ids=str)
def test_every_dtype(case: Case, packed: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    _share(monkeypatch, 2)
    log = case.initial != packed
    check(_around(dataclasses.replace(case, log=log, reverse=log != (case.dim == -1)), 3, -3, packed), kernel_device)


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(0,), upstream=("states", "final"), initial=(False, True), **BOTH), ids=str)
def test_one_of_two_gradients_arrives(
    case: Case, packed: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2)
    check(_around(dataclasses.replace(case, rows=(1,)), 3, 2, packed), kernel_device)


# Sequences that fill whole tiles, which are scanned without resets where they are large enough.
QUICK = grid(T=(1536,), rows=((1,),), lengths=((700, 0, 500, 330),), initial=(True,), **BOTH)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_tiles_in_which_no_sequence_ends(
    case: Case, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2, groups=64)
    check(case, kernel_device)


@pytest.mark.parametrize("layout", ["gaps", "offset", "swapped", "strided"])
@pytest.mark.parametrize("case", grid(T=(0,), rows=((2, 2),), dim=(-1, -2)), ids=str)
def test_any_place_in_memory(
    layout: str, case: Case, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2)
    layouts = {"gates_layout": layout, "tokens_layout": layout, "upstream_layout": layout}
    check(_around(dataclasses.replace(case, **layouts), 3, -10, layout == "gaps"), kernel_device)


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(0,), rows=((3,),), initial=(True,), **BOTH), ids=str)
def test_a_row_does_not_see_the_others(
    case: Case, packed: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2)
    case = _around(case, 4, 3, packed)

    def own(outputs: Outputs) -> Outputs:
        along = {name: t.select(case.dim - 1 if case.dim == -1 else -1, 1) for name, t in outputs.items()
                 if t is not None and t.shape == case.shape}  # fmt: skip
        return along | {name: outputs[name][..., 1] for name in ("final_state", "d_initial_state")}  # type: ignore[index]

    clean, inputs = own(run(case, draw(case, kernel_device))), draw(case, kernel_device)
    for tensor in (inputs.gates, inputs.tokens, inputs.d_states, inputs.initial_state, inputs.d_final_state):
        assert tensor is not None
        channels = tensor.movedim(-2, -1) if tensor.shape == case.shape and case.dim == -1 else tensor
        channels[..., 0], channels[..., 2] = math.nan, math.inf
    _assert_same(clean, own(run(case, inputs)))


@pytest.mark.parametrize("bad", [2, 4])
@pytest.mark.parametrize("case", grid(T=(0,), rows=((1,),), initial=(True,), **BOTH), ids=str)
def test_a_sequence_keeps_its_poison(
    case: Case, bad: int, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2)
    case = _around(case, 5, 6, True)
    start, stop = case.offsets[bad : bad + 2]
    border = min(-(-start // _steps(case)) * _steps(case), stop - 1)

    def others(outputs: Outputs) -> Outputs:
        kept: Outputs = {}
        for name, tensor in outputs.items():
            assert tensor is not None
            if name in ("final_state", "d_initial_state"):
                kept[name] = torch.cat([tensor[:bad], tensor[bad + 1 :]])
            else:
                kept[f"{name} before"] = tensor.narrow(case.dim, 0, start)
                kept[f"{name} after"] = tensor.narrow(case.dim, stop, case.T - stop)
        return kept

    clean = others(run(case, draw(case, kernel_device)))
    for value, gates in ((math.nan, True), (1e30, True), (math.nan, False), (math.inf, False)):
        inputs = draw(case, kernel_device)
        for tensor in (inputs.gates,) if gates else (inputs.tokens, inputs.d_states):
            assert tensor is not None
            for step in (start, border, stop - 1):
                tensor.select(case.dim, step).fill_(value)
        if not gates:
            assert inputs.initial_state is not None and inputs.d_final_state is not None
            inputs.initial_state[bad], inputs.d_final_state[bad] = value, -value
        _assert_same(clean, others(run(case, inputs)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("case", [*grid(T=(128,), rows=((1,),), **BOTH), *QUICK], ids=str)
def test_a_gate_that_is_not_finite_is_never_forgotten(
    case: Case, value: float, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(monkeypatch, 2, GROUPS if case.lengths is None else 64)
    # Where tiles begin, and where the row or the sequence ends, both in scan order.
    begins, end = ((0, 32), 128) if case.lengths is None else ((512,), 836) if case.reverse else ((256,), 700)
    for begin, behind in itertools.product(begins, (0, 1)):
        inputs = draw(case, kernel_device)
        # A gate of zero behind it, in the same tile: their product is NaN, which marks a reset.
        for step, gate in ((begin + behind, value), (begin + behind + 3, 0.0)):
            inputs.gates.select(case.dim, case.T - 1 - step if case.reverse else step).fill_(gate)
        states = run(case, inputs)["states"]
        assert states is not None
        in_order = states.flip(case.dim) if case.reverse else states
        assert not in_order.narrow(case.dim, begin + behind, end - begin - behind).isfinite().any()


def test_the_exchange_is_zeroed_and_large_enough(kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _share(monkeypatch, 2)
    zeros, wholes, margin = torch.zeros, [], 32

    def poisoned(*shape: int, dtype: torch.dtype | None = None, **keywords: object) -> Tensor:
        if dtype != torch.int64:
            return zeros(*shape, dtype=dtype, **keywords)  # type: ignore[call-overload, no-any-return]
        (n,) = shape
        whole = torch.full([n + 2 * margin], -1, dtype=dtype, **keywords)  # type: ignore[call-overload]
        wholes.append(whole)
        return whole[margin : margin + n].zero_()

    for dtype, dim in ((torch.float32, -1), (torch.float64, -2)):
        case = _around(Case(0, dtype, rows=(3,), dim=dim, initial=True), 3, 4, False)
        inputs = draw(case, kernel_device)
        wanted = run(case, inputs)
        made.clear()
        wholes.clear()
        with monkeypatch.context() as patched:
            patched.setattr(torch, "zeros", poisoned)
            patched.setattr(launch, "_plans", {})
            _assert_same(wanted, run(case, inputs))
        for whole, launched in zip(wholes, made, strict=True):
            assert (whole[:margin] == -1).all() and (whole[-margin:] == -1).all(), "beside the exchange was written"
            words = whole[margin:-margin]
            assert not words[:16].any(), "programs took tickets, where their numbers say what is theirs"
            # A map, of one word or two, of each row and tile; of a window in the place of its last tile.
            tiles = launched.grid[0] // (3 if dim == -1 else 2)
            assert (words[16:] != 0).sum() == (dtype.itemsize // 4) * 3 * tiles


def test_cases_end_where_they_should() -> None:
    assert [_around(Case(0), *each, False).T for each in ((2, 0), (2, 1), (3, -1), (7, 5))] == [64, 65, 95, 229]
    assert _around(Case(0), 7, 5, True).offsets == [0, 32, 32, 63, 65, 128, 159, 160, 193]


def _assert_same(first: Outputs, *others: Outputs) -> None:
    for other in others:
        assert first.keys() == other.keys()
        for name, before in first.items():
            after = other[name]
            assert before is not None and after is not None
            assert torch.equal(bits(before), bits(after)), f"{name} has other bits"
