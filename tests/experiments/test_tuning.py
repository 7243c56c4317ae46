"""Candidates are launched as they say, judged like every provider, and change a table only beyond doubt."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import tuned
from experiments import tuning as tune
from experiments.candidates import candidates, present, words
from experiments.config import Case, Measure
from experiments.correctness import chosen_rows, exact, judge
from experiments.inputs import draw
from experiments.providers.base import Provider
from experiments.tuning import AT_ONCE, Candidate, launched_with, run_case
from scan import tuning
from scan.tuning import Tile

CASE = Case("tuning", "kernel", "forward", "float32", 2, 3, 128)
SHAPES = [
    (T, itemsize, packed) for T in (128, 512, 1000, 4096, 65536) for itemsize in (2, 4) for packed in (False, True)
]
QUICK = Measure(repeats=5, target_ms=0.2, warmup_ms=0.2, longest_call_s=30)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("T", "itemsize", "packed"), SHAPES)
def test_candidates_are_a_modest_set_that_fits(T: int, itemsize: int, packed: bool, backward: bool) -> None:
    chosen = present(T, itemsize, backward=backward, packed=packed)
    tried = candidates(T, itemsize, backward=backward, packed=packed)
    assert 3 <= len(tried) == len(set(tried)) <= 24 and chosen not in tried
    for tile in tried:
        assert tile.groups * tile.width <= tuning.LARGEST_TILE and tile.width == 16 // itemsize
        assert tile.rows * tile.groups in (32 * tile.num_warps * each for each in (1, 2, 4))
        assert tile.groups * tile.width < 2 * T, "no tile is half empty"
    assert len({words(tile) for tile in tried}) == len(tried)


def test_a_tile_stands_in_for_tuning_and_only_meanwhile() -> None:
    launch = pytest.importorskip("scan.launch")
    choose, plans = tuning.time_contiguous, launch._plans
    tile, own = Tile(1, 16, 4, 1), {}
    with pytest.raises(RuntimeError, match="inside"), launched_with(tile, own):
        assert tuning.time_contiguous(4096, 4, backward=True, packed=True) == tile
        assert launch._plans is own
        raise RuntimeError("inside")
    assert tuning.time_contiguous is choose and launch._plans is plans


@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("lengths", ["", "1x100+1x28"])
def test_a_candidate_is_launched_as_it_says_and_computes_the_scan(
    mode: str, lengths: str, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scan import launch

    case, tile = replace(CASE, mode=mode, lengths=lengths), Tile(1, 16, 4, 1, 3)
    inputs = draw(case, str(kernel_device))
    launched: list[tuple[int, ...]] = []
    run = launch._run

    def watched(key: Any, kernel: Any, grid: Any, pointers: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        if "R" in keywords:
            launched.append(tuple(keywords[name] for name in ("R", "N", "V", "num_warps", "STAGES")))
        run(key, kernel, grid, pointers, arguments, keywords)

    monkeypatch.setattr(launch, "_run", watched)
    candidate = Candidate(tile)
    call = candidate.build(case, inputs)
    launched.clear()
    outputs = call.read(call.run())
    assert launched == [(1, 16, 4, 1, 3)]
    known = exact(case, inputs, chosen_rows(case))
    assert judge(outputs, case, known, candidate.accumulates(case, str(kernel_device))).reason is None


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
    chosen = words(present(4096, 4, backward=False, packed=False))
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
    shape: dict[str, Any] = {"backward": case.mode == "backward", "packed": bool(case.lengths)}
    providers: dict[str, Any] = {}
    for tile in candidates(case.T, itemsize, **shape):
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
    names: dict[str, Any] = {}
    exec(text, names)
    return {name: names[name] for name in ("_FORWARD", "_BACKWARD", "_PACKED_FORWARD", "_PACKED_BACKWARD")}


def test_the_tables_stay_where_nothing_is_faster_and_print_as_they_stand() -> None:
    text, said = tuned.tables([record(CASE), record(replace(CASE, mode="backward", dtype="bfloat16", T=4096))])
    now = {name: getattr(tuning, name) for name in executed(text)}
    assert executed(text) == now
    source = Path(tuning.__file__).read_text().splitlines()
    assert [line for line in text.splitlines() if line not in source] == [], "letter by letter"
    assert all(len(line) <= 120 for line in text.splitlines())
    assert len(said) == sum(len(entries) for name in ("_FORWARD", "_BACKWARD") for entries in now[name].values()) + 4
    assert said[0].endswith("stays, the best of 9")


def test_an_entry_changes_where_a_candidate_is_faster_in_all_its_cases() -> None:
    everywhere, once = Tile(1, 128, 4, 2), Tile(1, 128, 4, 4)
    records = [
        record(replace(CASE, T=4096), {everywhere: 0.9, once: 0.5}),
        record(replace(CASE, T=8192), {everywhere: 0.95, once: 3.0}),
    ]
    text, said = tuned.tables(records)
    changed, now = executed(text), executed(tuned.tables([])[0])
    assert dict(changed["_FORWARD"][4])[8192] == (1, 128, 2, 1)
    assert [line for line in said if "instead of" in line] == [
        f"forward, 4 bytes, T up to 8192: (1, 128, 2, 1) instead of {dict(now['_FORWARD'][4])[8192]}, 7.5 % faster"
    ]
    del changed["_FORWARD"][4], now["_FORWARD"][4]
    assert changed == now


def test_packed_rows_have_entries_of_their_own() -> None:
    tile = Tile(1, 256, 8, 4, 3)
    packed = replace(CASE, dtype="bfloat16", T=65536, lengths="1x65536")
    changed = executed(tuned.tables([record(packed, {tile: 0.8})])[0])
    assert changed["_PACKED_FORWARD"] == {**tuning._PACKED_FORWARD, 2: (1, 256, 4, 3)}
    assert changed["_FORWARD"] == tuning._FORWARD


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
        "# 1 cases of experiment=tuning on A card, driver 1, Triton 3, commit abc\n_FORWARD = {"
    )
    assert executed(shown.out)["_FORWARD"] == tuning._FORWARD
    assert len(shown.err.splitlines()) == len(tuned.tables([])[1])
