"""Candidates are launched as they say, judged like every provider, and change a table only beyond doubt."""

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from experiments import tuned
from experiments import tuning as tune
from experiments.candidates import candidates, launch_shape, present, words
from experiments.config import Case, Measure
from experiments.correctness import chosen_rows, exact, exact_of, judge
from experiments.inputs import draw
from experiments.providers.base import Provider, outputs_of
from experiments.tuning import AT_ONCE, Candidate, launched_with, run_case
from scan import tuning
from scan.tuning import Tile

CASE = Case("tuning", "kernel", "forward", "float32", 2, 3, 128)
# A table is a dictionary by size of element, or a tile alone for 4 bytes.
TABLES = tuple(
    name for name, value in vars(tuning).items() if isinstance(value, (dict, Tile)) and not name.startswith("__")
)
# Lengths, and packings of short and of long sequences; of 4 bytes, whole tiles of long rows are shared in runs.
SHAPES = [
    (T, itemsize, n)
    for itemsize, long in ((2, 65536), (4, 65540))
    for T, n in [*((T, 0) for T in (128, 512, 1000, 4096, 4097, 33753, long)), (512, 2), (long, 4096), (long, 1)]
]
# What may be at most the registers of tiles of one warp and of two that programs share, in both directions and in one.
LIMITS_OF_BOTH = {1: (None, 80, 96, 112, 128, 144, 160, 168, 200), 2: (None, 128, 168)}
LIMITS = {1: (None, 96, 128, 160), 2: (None, 128)}
QUICK = Measure(repeats=5, target_ms=0.2, warmup_ms=0.2, longest_call_s=30)


def capped(tiles: Collection[Tile]) -> set[tuple[int, int, int | None]]:
    """The groups, warps and registers of tiles of one warp and of two."""
    return {(tile.groups, tile.num_warps, tile.registers) for tile in tiles if tile.num_warps <= 2}


def the_sweep() -> list[Case]:
    """The cases of `experiment=tuning`."""
    pytest.importorskip("hydra")
    from experiments.compose import compose, settings_of

    overrides = ["hardware=h200", "experiment=tuning"]
    return settings_of(compose(*overrides), overrides).experiment.cases()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("T", "itemsize", "n"), SHAPES)
def test_candidates_are_a_modest_set_that_fits(T: int, itemsize: int, n: int, backward: bool) -> None:
    shape: dict[str, Any] = {"backward": backward, "packed": n > 0, "n_sequences": max(1, n)}
    chosen, tried = present(T, itemsize, **shape), candidates(T, itemsize, **shape)
    assert 3 <= len(tried) == len(set(tried)) <= 24 and chosen not in tried
    for tile in tried:
        assert tile.groups * tile.width <= tuning.LARGEST_TILE and tile.width == 16 // itemsize
        assert tile.groups <= 1024 and tile.num_warps <= 16
        assert tile.rows * tile.groups in (32 * tile.num_warps * each for each in (1, 2, 4))
        assert tile.groups * tile.width < 2 * T, "no tile is half empty"
    assert len({words(tile) for tile in tried}) == len(tried)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_candidates_for_shared_rows_and_channels_are_modest_too(itemsize: int, backward: bool) -> None:
    shared: dict[str, Any] = {"backward": backward, "n_rows": 1}
    for T, packed in ((2**20, False), (1_000_003, False), (2**20, True)):
        tried, chosen = candidates(T, itemsize, packed=packed, **shared), present(T, itemsize, packed=packed, **shared)
        assert 16 <= len(tried) == len(set(tried)) == len({words(tile) for tile in tried}) <= 32
        whole = T % 1024 == 0
        for tile in tried:
            assert tile.window in ((32, 64) if whole else (128,)) and tile.rows == tile.stages == tile.run == 1
            assert tile.groups * tile.width <= tuning.LARGEST_TILE and tile != chosen and tile.width == 16 // itemsize
            assert tile.groups in (32 * tile.num_warps * each for each in ((4, 8) if whole else (1, 2, 4, 8)))
            limits = (None, 128) if tile.num_warps > 1 else (None, 128, 168)
            assert tile.registers in (LIMITS.get(tile.num_warps, (None,)) if whole else limits)
        assert chosen is not None
        assert not whole or capped({*tried, chosen}) >= {
            (groups, warps, limit) for warps, limits in LIMITS.items() for groups in (128 * warps, 256 * warps)
            for limit in limits
        }  # fmt: skip
    for n_rows, least in ((1024, 8), (3072, 16), (12288, 24)):
        channels: dict[str, Any] = {"backward": backward, "packed": False, "n_rows": n_rows, "channels": 1024}
        tried = candidates(4096, itemsize, **channels)
        assert least <= len(tried) == len(set(tried)) <= 64 and present(4096, itemsize, **channels) not in tried
        for tile in tried:
            assert bool(tile.window) == (n_rows == 1024) and tile.num_warps in (4, 8)
            assert 1 <= tile.stages <= (5 if itemsize == 2 else 3)
            assert 64 <= tile.groups * tile.width <= 256 and tile.rows * itemsize >= 16
            assert tile.rows * tile.groups * tile.width // (32 * tile.num_warps) in (16, 32, 64)
        assert len({words(tile) for tile in tried}) == len(tried)


@pytest.mark.parametrize("backward", [False, True])
def test_candidates_for_runs_are_tiles_of_one_or_two_warps(backward: bool) -> None:
    shape: dict[str, Any] = {"backward": backward, "packed": False, "n_rows": 1536}
    tried, chosen = candidates(65536, 4, **shape), present(65536, 4, **shape)
    assert chosen is not None and chosen.run > 1 and chosen not in tried
    assert 24 <= len(tried) == len(set(tried)) == len({words(tile) for tile in tried}) <= 48
    for tile in tried:
        assert tile.rows == tile.stages == 1 and tile.width == 4 and tile.num_warps in (1, 2)
        assert tile.groups in (128 * tile.num_warps, 256 * tile.num_warps) and 65536 % tile.steps == 0
        assert tile.window in (32, 64) and tile.run in (16, tile.window)
    # Packed ones forward are those, too; rows that end within a tile are walked, and those of 2 bytes.
    packed: dict[str, Any] = {**shape, "packed": True, "n_sequences": 64}
    assert (candidates(65536, 4, **packed) == tried) is not backward
    for T, itemsize in ((65537, 4), (65536, 2), (4096, 4)):
        assert all(tile.window == 0 for tile in candidates(T, itemsize, **shape))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_candidates_for_both_directions_hold_a_row_as_the_present_tile_does(itemsize: int, backward: bool) -> None:
    shape: dict[str, Any] = {"backward": backward, "packed": False, "directions": "shared"}
    for T in (longest for longest, tile in entries_of(shared_table(backward), itemsize) if not tile.window):
        chosen, tried = present(T, itemsize, **shape), candidates(T, itemsize, **shape)
        assert chosen == tuning.shared(T, itemsize, backward=backward, even=True) and chosen not in tried
        assert chosen is not None
        assert 1 <= len(tried) == len(set(tried)) <= 12
        for tile in tried:
            steps = tile.rows * tile.groups * tile.width / (32 * tile.num_warps)
            assert tile.groups * tile.width == T and tile.stages == 1 and not tile.window
            assert steps / tile.width in (1, 2, 4, 8) and steps <= 32 and tile.num_warps <= 32
            assert tile.rows == 1 or (tile.groups <= 32 and tile.num_warps == 1 and tile.rows in (2, 4))
            wanted = {None, 80, 96, 112, 128} if steps >= 16 else {None}
            limits = {each.registers for each in (*tried, chosen) if each._replace(registers=tile.registers) == tile}
            assert tile.registers in wanted and limits - {chosen.registers} == wanted - {chosen.registers}
        assert len({words(tile) for tile in tried}) == len(tried)
    # Longer rows programs share: at most as many as the window says, whatever row of the entry it is.
    for longest, taken in entries_of(shared_table(backward), itemsize):
        for T in (longest // 2 + 8, longest) if taken.window else ():
            chosen, tried = present(T, itemsize, **shape), candidates(T, itemsize, **shape)
            assert chosen == taken and taken not in tried
            assert 16 <= len(tried) == len(set(tried)) == len({words(tile) for tile in tried}) <= 24
            for tile in tried:
                steps = tile.groups * tile.width // (32 * tile.num_warps)
                assert tile.window == max(128, longest // tile.steps) and steps in (16, 32, 64)
                assert tile.rows == tile.stages == 1 and tile.steps < tuning.LARGEST_TILE
                assert tile.num_warps in (1, 2, 4) and (tile.num_warps > 1 or tile.groups <= 256)
            assert capped({*tried, taken}) == {
                (groups, warps, limit) for warps, limits in LIMITS_OF_BOTH.items()
                for groups in (128 * warps, 256 * warps) for limit in limits
            }  # fmt: skip
    # Two scans are as fast.
    for T, n_rows in ((4097, 12288), (16_388 * 4, 64)):
        assert present(T, itemsize, n_rows=n_rows, **shape) is None
        assert candidates(T, itemsize, n_rows=n_rows, **shape) == []


def test_every_table_is_regenerated() -> None:
    assert set(tuned.TABLES) == set(TABLES), "experiments/tuned.py has to know each table, and the sweep its entries"


def sizes_of(name: str) -> dict[int, Any]:
    """What a table holds, by size of element."""
    table = getattr(tuning, name)
    return {4: table} if isinstance(table, Tile) else table


def entries_of(name: str, itemsize: int) -> list[Any]:
    """What a table holds for a size of element: entries with what they are for, or one for all."""
    value = sizes_of(name)[itemsize]
    return [(None, value)] if isinstance(value, Tile) else list(value)


def shared_table(backward: bool) -> str:
    return "_SHARED_BACKWARD" if backward else "_SHARED_FORWARD"


def test_the_sweep_covers_every_entry_of_every_table() -> None:
    cases = the_sweep()
    entries = {
        (name, itemsize, at)
        for name in TABLES
        for itemsize in sizes_of(name)
        for at in range(len(entries_of(name, itemsize)))
    }
    assert {tuned.place(vars(case)) for case in cases} == entries
    tried = [tile for case in cases for tile in candidates(case.T, tuned.ITEMSIZES[case.dtype], **launch_shape(case))]
    assert 2890 < len(tried) < 2990, "the README says how many, and how long they take"
    assert {tile.num_warps for tile in tried} == {1, 2, 4, 8, 16, 32} and max(tile.groups for tile in tried) == 1024


@hypothesis.given(
    T=st.integers(1, 100_000), n=st.integers(0, 3000), C=st.sampled_from((1, 3, 383, 384, 1000, 8191, 8192)),
    dim=st.sampled_from((-1, -2)), dtype=st.sampled_from(tuple(tuned.ITEMSIZES)),
    mode=st.sampled_from(("forward", "backward")),
)  # fmt: skip
@hypothesis.settings(max_examples=500)
def test_a_record_is_about_the_entry_that_its_launch_takes(
    T: int, n: int, C: int, dim: int, dtype: str, mode: str
) -> None:
    n = min(n, T) if dim == -1 else 0
    lengths = f"{n - 1}x1+1x{T - n + 1}" if n else ""
    case = replace(CASE, B=1, C=C, T=T, dim=dim, dtype=dtype, mode=mode, lengths=lengths)
    entry, itemsize = tuned.place(vars(case)), tuned.ITEMSIZES[dtype]
    launched = present(T, itemsize, **launch_shape(case))
    if entry is None:
        assert dim == -2 and T <= 64, "a rule and no table chooses for few steps of channels"
        return
    name, size, at = entry
    assert size == itemsize
    _, taken = entries_of(name, itemsize)[at]
    if not isinstance(taken, Tile):
        rows, groups, num_warps, stages = taken
        taken = Tile(rows, groups, 16 // itemsize, num_warps, stages)
    assert launched == taken


@pytest.mark.parametrize("dtype", tuned.ITEMSIZES)
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_a_record_of_both_directions_is_about_the_entry_that_holds_a_row(dtype: str, mode: str) -> None:
    itemsize = tuned.ITEMSIZES[dtype]
    name = shared_table(mode == "backward")
    for T in (8, 128, 136, 1000, 4096, 4104, 7168, 8192, 16384, 16392, 2**17):
        case = replace(CASE, C=192, T=T, dtype=dtype, mode=mode, directions="shared")
        entry = tuned.place(vars(case))
        assert entry is not None and entry[:2] == (name, itemsize)
        least, longest = (0, *(each for each, _ in entries_of(name, itemsize)))[entry[2] :][:2]
        # Rows that would leave a quarter of the largest tile empty are those of the next entry.
        assert least < T <= longest or (least == 8192 and T < 6144)
        assert entries_of(name, itemsize)[entry[2]][1] == present(T, itemsize, **launch_shape(case))
    # Vectors that are cut, few long rows and longer ones, which are two scans, and what is not measured as `shared`.
    others: list[dict[str, Any]] = [{"T": T} for T in (129, 1001, 4101, 16392, 2**18)]
    for other in (*others, {"directions": "shared_sum"}, {"directions": "branched"}, {"dim": -2}):
        case = replace(CASE, **{"dtype": dtype, "mode": mode, "directions": "shared", **other})
        assert tuned.place(vars(case)) is None


def test_saying_what_is_taken_leaves_the_tables_alone() -> None:
    before = {name: dict(sizes_of(name)) for name in TABLES}
    others: list[dict[str, Any]] = [
        {}, {"C": 1, "T": 100_000}, {"C": 200, "T": 2**16}, {"dim": -2, "T": 1000}, {"directions": "shared"},
    ]  # fmt: skip
    for case in (replace(CASE, **other) for other in others):
        assert tuned.place(vars(case)) is not None
    assert {name: sizes_of(name) for name in TABLES} == before
    tables = (tuning._LAST_FEW_SHORT, tuning._SPLIT_FORWARD, sizes_of("_RUNS_FORWARD"))
    assert all(tile.num_warps > 0 for table in tables for tile in table.values())


def test_a_tile_stands_in_for_tuning_and_only_meanwhile() -> None:
    launch = pytest.importorskip("scan.launch")
    before = tuning.time_contiguous, tuning.channels_last, tuning.shared, launch._plans
    tile, own = Tile(1, 16, 4, 1), {}
    with pytest.raises(RuntimeError, match="inside"), launched_with(tile, own, backward=True):
        assert tuning.time_contiguous(4096, 4, backward=True, packed=True) == tile
        assert tuning.channels_last(4096, 8, 4, backward=True, n_rows=8) == tile
        # Of both directions, the kernel that is measured and not the other.
        assert tuning.shared(4096, 4, backward=True, even=True) == tile
        assert tuning.shared(4096, 4, backward=False, even=True) == dict(tuning._SHARED_FORWARD[4])[4096]
        assert launch._plans is own
        raise RuntimeError("inside")
    assert (tuning.time_contiguous, tuning.channels_last, tuning.shared, launch._plans) == before


@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize(
    ("lengths", "dim", "tile"),
    [
        ("", -1, Tile(1, 16, 4, 1, 3)), ("1x100+1x28", -1, Tile(1, 16, 4, 1, 3)),
        ("", -1, Tile(1, 16, 4, 2, window=4)), ("", -2, Tile(8, 8, 8, 4, 2)),
    ],
    ids=["rows", "packed", "shared", "channels"],
)  # fmt: skip
def test_a_candidate_is_launched_as_it_says_and_computes_the_scan(
    mode: str, lengths: str, dim: int, tile: Tile, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scan import launch

    case = replace(CASE, mode=mode, lengths=lengths, dim=dim)
    inputs = draw(case, str(kernel_device))
    launched: list[tuple[int, ...]] = []
    run = launch._run

    def watched(key: Any, pointers: Any, made: launch.Launch) -> None:
        if "R" in made.keywords:
            launched.append(tuple(made.keywords[name] for name in ("R", "N", "V", "num_warps", "STAGES", "WINDOW")))
        run(key, pointers, made)

    monkeypatch.setattr(launch, "_run", watched)
    candidate = Candidate(tile)
    call = candidate.build(case, inputs)
    launched.clear()
    outputs = call.read(call.run())
    assert launched == [(*tile[:5], tile.window)]
    known = exact(case, inputs, chosen_rows(case))
    assert judge(outputs, case, known, candidate.accumulates(case, str(kernel_device))).reason is None


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_a_candidate_for_both_directions_is_launched_as_it_says_in_its_mode(
    mode: str, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scan import launch

    case = replace(CASE, mode=mode, directions="shared")
    inputs = draw(case, str(kernel_device))
    launched: list[tuple[Any, ...]] = []
    run = launch._run

    def watched(key: Any, pointers: Any, made: launch.Launch) -> None:
        launched.append((key[0], *(made.keywords[name] for name in ("R", "N", "V", "num_warps"))))
        run(key, pointers, made)

    monkeypatch.setattr(launch, "_run", watched)
    monkeypatch.setattr(launch, "_plans", {})
    tiles = (Tile(4, 32, 4, 1), Tile(1, 32, 4, 1, registers=96), Tile(1, 64, 4, 2))
    now = present(128, 4, backward=False, packed=False, directions="shared")
    assert now is not None
    made: list[tuple[Any, ...]] = [("forward_shared", *now[:4])] if mode == "backward" else []
    calls = [Candidate(tile).build(case, inputs) for tile in tiles]
    assert launched == made, "the states that backward reads are made once, under the present choice"
    known = exact_of(case, inputs, chosen_rows(case))
    for tile, call in zip(tiles, calls, strict=True):
        launched.clear()
        outputs = call.read(call.run())
        assert launched == [(f"{mode}_shared", *tile[:4])]
        assert judge(outputs, case, known, torch.float32).reason is None
    assert len(launch._plans) <= len(made), "plans of candidates are kept apart"


def test_backward_of_all_candidates_reads_the_same_states(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASE, mode="backward")
    inputs = draw(case, "cpu")
    made: list[Tensor] = []

    class OnTheCpu(Candidate):
        def implementation(self, inputs: Any) -> Any:
            from scan import cpu

            return cpu

        def saved(self, inputs: Any, forward: Callable[[], Tensor]) -> Tensor:
            made.append(super().saved(inputs, forward))
            return made[-1]

    for tile in (Tile(1, 16, 4, 1), Tile(1, 32, 4, 1)):
        OnTheCpu(tile).build(case, inputs).run()
    assert made[0] is made[1]


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_candidates_for_both_directions_launch_their_tile_and_share_the_states(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_shared = pytest.importorskip("scan.launch_shared")
    case = replace(CASE, mode=mode, directions="shared")
    inputs, taken, read = draw(case, "cpu"), [], []

    def tiles() -> tuple[Tile | None, ...]:
        return tuple(tuning.shared(case.T, 4, backward=backward, even=True) for backward in (False, True))

    def forward(gates: Tensor, tokens: Tensor, *_: Any) -> tuple[Any, None]:
        taken.append(("forward", *tiles()))
        outputs = launch_shared.Outputs(None, torch.empty_like(tokens), torch.empty_like(tokens), None, None)
        return outputs, None

    def backward(gates: Tensor, states: Tensor, states_reverse: Tensor, *_: Any) -> tuple[Any, None]:
        taken.append(("backward", *tiles()))
        read.append((states, states_reverse))
        return (torch.empty_like(gates), torch.empty_like(gates)), None

    monkeypatch.setattr(launch_shared, "forward", forward)
    monkeypatch.setattr(launch_shared, "backward", backward)
    now, tried = tiles(), (Tile(4, 32, 4, 1), Tile(1, 32, 4, 1, registers=96))
    calls = [Candidate(tile).build(case, inputs) for tile in tried]
    assert taken == ([] if mode == "forward" else [("forward", *now)])
    taken.clear()
    for call in calls:
        assert set(call.read(call.run())) == set(outputs_of(case))
    ways = [(tile, now[1]) if mode == "forward" else (now[0], tile) for tile in tried]
    assert taken == [(mode, *way) for way in ways] and tiles() == now
    assert all(a is b for each in read for a, b in zip(each, read[0], strict=True))


@pytest.mark.parametrize(
    "other", [{"T": 2**18}, {"directions": "branched"}, {"directions": "shared_sum"}, {"dim": -2}], ids=str
)
def test_both_directions_without_a_table_are_not_tried(other: dict[str, Any]) -> None:
    case = replace(CASE, **{"directions": "shared", **other})
    measured = run_case(case, ("ours",), QUICK, "cpu", lambda *_: None)
    (result,) = measured["providers"].values()
    assert result["status"] == "unsupported" and result["reason"].startswith("Both directions have tables where")


def test_without_a_gpu_nothing_is_tried() -> None:
    measured = run_case(replace(CASE, B=8, C=1536, T=16384), ("ours",), QUICK, "cpu", lambda *_: None)
    (result,) = measured["providers"].values()
    assert result["status"] == "unsupported" and result["reason"].endswith("runs on cuda, and this device is cpu.")


def test_a_few_take_turns_with_the_present_choice_and_what_cannot_be_launched_is_a_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heats: list[list[str]] = []

    def take_turns(case: Case, providers: dict[str, Provider], *_: Any) -> dict[str, Any]:
        heats.append(list(providers))
        results: dict[str, Any] = {
            name: {"status": "ok", "reason": None, "detail": {}, "samples_ms": [float(len(heats))] * 5}
            for name in providers
        }
        if len(heats) == 1:
            results[list(providers)[1]] = {"status": "error", "reason": "OutOfResources: shared memory."}
        return {"providers": results, "protocol": {"elapsed_s": {"case": 1.0}, "timing": "graph_replay"}}

    monkeypatch.setattr(tune, "take_turns", take_turns)
    monkeypatch.setattr(Candidate, "devices", ("cpu",))
    measured = run_case(replace(CASE, T=4096), ("ours",), QUICK, "cpu", lambda *_: None)
    now = present(4096, 4, backward=False, packed=False)
    assert now is not None
    chosen = words(now)
    names = [words(tile) for tile in candidates(4096, 4, backward=False, packed=False)]
    assert all(heat[0] == chosen and len(heat) <= AT_ONCE + 2 for heat in heats)
    assert sum(heat.count("roofline") for heat in heats) == 1
    results = measured["providers"]
    assert set(results) == {chosen, *names, "roofline"}
    assert results[names[0]] == {"status": "unsupported", "reason": "OutOfResources: shared memory."}
    assert results[names[-1]]["detail"]["beside_ms"] == results[names[-1]]["samples_ms"] == [float(len(heats))] * 5
    assert measured["protocol"]["elapsed_s"] == {"case": float(len(heats))}
    json.dumps(measured, allow_nan=False)


def record(case: Case, faster: dict[Tile, float] | None = None, status: str = "ok", gpu: str = "A card") -> dict:
    """Every candidate twice as slow as the present choice, but those that are named."""
    itemsize = {"float32": 4, "bfloat16": 2}[case.dtype]
    providers: dict[str, Any] = {}
    for tile in candidates(case.T, itemsize, **launch_shape(case)):
        noise = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.0]
        samples = [(faster or {}).get(tile, 2.0) * each for each in noise]
        detail = {"tile": tile._asdict(), "present": False, "beside_ms": [1.0] * 7}
        providers[words(tile)] = {"status": status, "reason": None, "samples_ms": samples, "detail": detail}
    facts = {"gpu": gpu, "driver": "1", "triton": "3", "commit": "abc"}
    return {
        "schema": 1, "stem": "tuning", "hardware": "a_card", "case_id": case.id, "case": vars(case),
        "providers": providers, "provenance": facts,
    }  # fmt: skip


def executed(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"Tile": Tile}
    exec(text, names)
    return {name: names[name] for name in TABLES}


def test_the_tables_stay_where_nothing_is_faster_and_print_as_they_stand() -> None:
    text, said = tuned.tables([record(CASE), record(replace(CASE, mode="backward", dtype="bfloat16", T=4096))])
    now = {name: getattr(tuning, name) for name in executed(text)}
    assert executed(text) == now
    assert all(f"\n{block}\n" in Path(tuning.__file__).read_text() for block in text.split("\n\n")), "letter by letter"
    assert all(len(line) <= 120 for line in text.splitlines())
    assert len(said) == sum(len(entries_of(name, size)) for name in now for size in sizes_of(name))
    assert said[0].endswith(f"stays, the best of {1 + len(candidates(128, 4, backward=False, packed=False))}")


def test_an_entry_changes_where_a_candidate_is_faster_in_all_its_cases() -> None:
    everywhere, once = Tile(1, 256, 8, 4, 3), Tile(1, 512, 8, 8, 3)
    many = replace(CASE, B=8, C=1536, dtype="bfloat16")
    records = [
        record(replace(many, T=32768), {everywhere: 0.9, once: 0.5}),
        record(replace(many, T=65536), {everywhere: 0.95, once: 3.0}),
    ]
    text, said = tuned.tables(records)
    changed, now = executed(text), executed(tuned.tables([])[0])
    assert dict(changed["_FORWARD"][2])[None] == (1, 256, 4, 3)
    assert [line for line in said if "instead of" in line] == [
        f"forward, 2 bytes, T above 16384: (1, 256, 4, 3) instead of {dict(now['_FORWARD'][2])[None]}, 7.5 % faster"
    ]
    del changed["_FORWARD"][2], now["_FORWARD"][2]
    assert changed == now


@pytest.mark.parametrize(
    ("case", "name", "at"),
    [
        (replace(CASE, T=4097), "_RAGGED_FORWARD", 0),
        (replace(CASE, T=33753, mode="backward"), "_RAGGED_BACKWARD", 1),
        (replace(CASE, T=133120, lengths="4096x1..64"), "_PACKED_FORWARD", 0),
        (replace(CASE, T=65536, lengths="4x16384", mode="backward"), "_PACKED_BACKWARD", 1),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else str(value),
)
def test_rows_that_end_within_a_tile_and_packed_rows_have_tables_of_their_own(case: Case, name: str, at: int) -> None:
    tile = Tile(1, 128, 8, 2, 3)
    case = replace(case, B=8, C=1536, dtype="bfloat16")
    text, said = tuned.tables([record(case, {tile: 0.8})])
    changed, now = executed(text), executed(tuned.tables([])[0])
    entries = list(now[name][2])
    entries[at] = (entries[at][0], (1, 128, 2, 3))
    assert changed[name][2] == tuple(entries) and len([line for line in said if "instead of" in line]) == 1
    assert {**changed, name: 0} == {**now, name: 0}


@pytest.mark.parametrize(
    ("cases", "name", "at", "tile"),
    [
        ([replace(CASE, B=1, C=64, T=2**20)], "_SPLIT_FORWARD", None, Tile(1, 1024, 4, 4, window=64)),
        ([replace(CASE, B=1, C=C, T=T) for C, T in ((64, 65536), (1, 2**20))], "_SPLIT_FORWARD", None,
         Tile(1, 256, 4, 1, registers=160, window=32)),
        ([replace(CASE, B=1, C=64, T=65536, lengths="64x1024", mode="backward")], "_SPLIT_PACKED_BACKWARD", None,
         Tile(1, 256, 4, 1, registers=160, window=32)),
        ([replace(CASE, B=1, C=C, T=T, mode="backward") for C, T in ((64, 65537), (1, 1000003))],
         "_SPLIT_RAGGED_BACKWARD", None, Tile(1, 512, 4, 8, window=128)),
        ([replace(CASE, B=1, C=C, T=65536) for C in (512, 12288)], "_RUNS_FORWARD", None,
         Tile(1, 512, 4, 2, registers=128, window=32, run=32)),
        ([replace(CASE, T=128, directions="shared")], "_SHARED_FORWARD", 0, Tile(4, 32, 4, 1, registers=96)),
        ([replace(CASE, B=1, C=512, T=65536, mode="backward")], "_RUNS_BACKWARD", None,
         Tile(1, 128, 4, 1, registers=96, window=64, run=16)),
        ([replace(CASE, T=4096, directions="shared")], "_SHARED_FORWARD", 5, Tile(1, 1024, 4, 32)),
        ([replace(CASE, T=8192, directions="shared", mode="backward")], "_SHARED_BACKWARD", 5,
         Tile(1, 512, 4, 2, registers=168, window=128)),
        ([replace(CASE, C=768, T=T, directions="shared", mode="backward") for T in (65536, 2**17)], "_SHARED_BACKWARD",
         6, Tile(1, 128, 4, 1, registers=112, window=256)),
        ([replace(CASE, T=T, directions="shared", mode="backward") for T in (1024, 768)], "_SHARED_BACKWARD", 3,
         Tile(1, 256, 4, 2, registers=128)),
        ([replace(CASE, dim=-2, B=8, C=1536, T=1024)], "_LAST_FORWARD", 0, Tile(64, 8, 8, 8, 2)),
        ([replace(CASE, dim=-2, B=1, C=1024, T=16384)], "_LAST_FEW_FORWARD", None, Tile(16, 16, 8, 4, window=32)),
        ([replace(CASE, dim=-2, B=8, C=1537, T=2048)], "_LAST_ODD_FORWARD", None, Tile(32, 8, 16, 4)),
    ],
    ids=[
        "few rows", "few rows and a row", "few packed rows", "few ragged rows", "runs", "both directions",
        "runs backward", "longer rows of both directions", "rows of both directions that programs share",
        "the longest of those", "two lengths of both directions", "channels", "few channels", "odd channels",
    ],
)  # fmt: skip
def test_shared_rows_and_channels_have_tables_of_tiles(
    cases: list[Case], name: str, at: int | None, tile: Tile
) -> None:
    text, said = tuned.tables([record(case, {tile: 0.8}) for case in cases])
    changed, now = executed(text), executed(tuned.tables([])[0])
    before = entries_of(name, 4)[at or 0][1]
    (line,) = [line for line in said if "instead of" in line]
    assert line.endswith(f"{tuned.as_python(tile)} instead of {tuned.as_python(before)}, 20.0 % faster")
    wanted = tile if at is None else (*now[name][4][:at], (now[name][4][at][0], tile), *now[name][4][at + 1 :])
    assert changed[name] == (wanted if isinstance(now[name], Tile) else {**now[name], 4: wanted})
    assert {**changed, name: 0} == {**now, name: 0}
    assert all(len(line) <= 120 for line in text.splitlines())
    # In the form in which it stands; where entries go by length, but for the ends of lines.
    back, stood = text.replace(tuned.as_python(tile), tuned.as_python(before)), tuned.tables([])[0]
    assert back == stood if at is None else back.split() == stood.split()
    # Only where all cases of an entry agree.
    stays = record(replace(cases[0], seed=1), {tile: 1.5})
    assert executed(tuned.tables([*(record(case, {tile: 0.8}) for case in cases), stays])[0]) == now


@pytest.mark.parametrize(("factor", "status"), [(0.995, "ok"), (0.5, "wrong")])
def test_noise_and_wrong_results_change_nothing(factor: float, status: str) -> None:
    tile = Tile(1, 128, 4, 2)
    text, _ = tuned.tables([record(replace(CASE, T=8192), {tile: factor}, status)])
    assert executed(text) == executed(tuned.tables([])[0])


def test_the_command_prints_tables_and_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuned.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: There are no records of tuning on a GPU below {tmp_path}; run "
        "`python -m experiments experiment=tuning` first.\n"
    )
    for name, hardware in (("one", "a_card"), ("two", "b_card")):
        (tmp_path / "tuning" / name).mkdir(parents=True)
        made = {**record(CASE), "hardware": hardware}
        (tmp_path / "tuning" / name / "record.json").write_text(json.dumps(made))
    assert tuned.main([str(tmp_path)]) == 2
    assert "choose one with --hardware" in capsys.readouterr().err
    assert tuned.main([str(tmp_path), "--hardware", "b_card"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(
        "# 1 cases of experiment=tuning on A card, driver 1, Triton 3, commit abc\n\n# Longest T, then"
    )
    assert executed(shown.out)["_FORWARD"] == tuning._FORWARD
    assert len(shown.err.splitlines()) == len(tuned.tables([])[1])
