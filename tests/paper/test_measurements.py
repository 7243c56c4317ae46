"""Gathering: who measured what, ratios within a turn, and what is said of results that cannot be used."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper.intervals import paired
from paper.measurements import Measurements, ResultsError, fraction_of, gather, left_by_sweeps

Write = Callable[..., Path]


def one(file: Path, **keys: Any) -> dict[str, Any]:
    """The first record of a jsonl file."""
    return json.loads(file.read_text().splitlines()[0]) | keys


def outputs(folder: Path, *records: dict[str, Any]) -> Path:
    """The records as a sweep leaves them."""
    for record in records:
        (folder / record["stem"] / record["case_id"]).mkdir(parents=True)
        (folder / record["stem"] / record["case_id"] / "record.json").write_text(json.dumps(record))
    return folder


def test_machines_are_named_by_their_records_and_kept_apart(synthetic: Path, tmp_path: Path) -> None:
    mine = one(synthetic / "h200" / "speed.jsonl", case_id="synthetic-here")
    gathered = gather(synthetic, [outputs(tmp_path, mine)])
    assert [machine.title for machine in gathered.machines] == [
        "Synthetic CPU (test data)",
        "Synthetic H200 (test data)",
        "Synthetic H200 (test data) (measured here)",
        "H100 80GB (published)",
        "RTX 3080 Ti 12GB (published)",
    ]
    assert len({machine.slug for machine in gathered.machines}) == 5
    assert [machine.title for machine in gathered.having("speed", cpu=True)] == ["Synthetic CPU (test data)"]
    main = gathered.main("speed")
    assert main is not None and main.title == "Synthetic H200 (test data)"


def test_what_is_already_stored_is_not_shown_again_as_measured_here(synthetic: Path, tmp_path: Path) -> None:
    same = one(synthetic / "h200" / "speed.jsonl")
    assert all(machine.origin != "here" for machine in gather(synthetic, [outputs(tmp_path, same)]).machines)


def test_copies_that_wandb_keeps_of_what_was_measured_here_are_not_counted(synthetic: Path, tmp_path: Path) -> None:
    folder = outputs(tmp_path, one(synthetic / "h200" / "speed.jsonl", case_id="mine"))
    counts = [len(gather(synthetic, [folder]).rows), len(left_by_sweeps(folder))]
    (record,) = folder.rglob("record.json")
    kept = folder / "wandb" / "offline-run-1" / "files" / "record.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(record.read_bytes())
    assert [len(gather(synthetic, [folder]).rows), len(left_by_sweeps(folder))] == counts


def test_without_committed_measurements_the_prose_is_about_those_from_here(synthetic: Path, tmp_path: Path) -> None:
    mine = one(synthetic / "h200" / "speed.jsonl")
    main = gather(synthetic / "published", [outputs(tmp_path, mine)]).main("speed")
    assert main is not None and main.origin == "here"


def test_a_smoke_run_is_no_result(synthetic: Path, tmp_path: Path) -> None:
    smoke = one(synthetic / "h200" / "speed.jsonl", stem="smoke", case_id="synthetic-smoke")
    smoke["case"]["stem"] = "smoke"
    assert "smoke" not in set(gather(synthetic, [outputs(tmp_path, smoke)]).rows["stem"])


def test_ratios_are_taken_within_each_turn(synthetic: Path) -> None:
    record = one(synthetic / "h200" / "speed.jsonl")
    record["providers"]["ours"]["samples_ms"] = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 8.0]
    record["providers"]["roofline"]["samples_ms"] = [0.9, 1.6, 2.0, 0.8, 1.4, 3.2, 4.8]
    record["providers"]["warp"]["samples_ms"] = [2.0, 4.0, 8.0, 2.0, 4.0, 8.0]
    folder = synthetic.parent / "turns"
    (folder / "h200").mkdir(parents=True)
    (folder / "h200" / "speed.jsonl").write_text(json.dumps(record) + "\n")
    rows = gather(folder).rows.set_index("provider")
    ratios = [0.9, 0.8, 0.5, 0.8, 0.7, 0.8, 0.6]
    _, low, high = paired(ratios, [1.0] * 7)
    assert 0.5 < low < 0.8 < high < 0.9
    shown = rows.loc["ours", ["fraction", "fraction_low", "fraction_high"]].tolist()
    assert shown == pytest.approx([0.8, low, high])
    assert rows.loc["ours", "over_warp"] != rows.loc["ours", "over_warp"], "six samples of warp cannot pair with seven"
    for row in (rows.loc["ours"], rows.loc["hgrn"]):
        assert fraction_of(row, "ours") == pytest.approx((0.8, low, high)), "whichever row of the case is at hand"
    assert fraction_of(rows.loc["ours"], "roofline", of="ours")[0] == pytest.approx(1 / 0.8)
    assert all(map(math.isnan, fraction_of(rows.loc["ours"], "ours", of="nobody")))
    assert all(map(math.isnan, fraction_of(rows.loc["ours"], "ours", of="warp", time="host_samples_us")))


def test_the_ratio_of_hosts_and_of_printed_medians(measured: Measurements) -> None:
    rows = measured.rows
    calls = rows[(rows["level"] == "api") & (rows["stem"] == "speed") & (rows["hardware"] == "h200")]
    api = calls[calls["provider"] == "ours"].iloc[0]
    results = api["results"]
    ratio, low, high = fraction_of(api, "ours", of="warp", time="host_samples_us")
    assert low < ratio < high
    assert (ratio, low, high) == paired(results["warp"]["host_samples_us"], results["ours"]["host_samples_us"])
    printed = rows[
        rows["published"] & (rows["stem"] == "speed") & (rows["provider"] == "associative_scan_triton")
    ].iloc[0]
    ratio, low, high = fraction_of(printed, "associative_scan_triton", of="warp")
    assert ratio == printed["over_warp"] and math.isnan(low) and math.isnan(high)


def test_what_is_measured_beside_the_product_is_kept_apart(measured: Measurements) -> None:
    machine = measured.main("speed")
    assert machine is not None
    assert set(measured.of(machine, "speed")["kind"]) == {"plain"}
    lengths = {kind: sorted(set(measured.of(machine, "speed", kind=kind)["T"])) for kind in ("reverse", "odd", "fewer")}
    assert lengths == {"reverse": [512, 8192], "odd": [1000, 33753], "fewer": [512, 8192]}
    assert set(measured.of(machine, "packing")["kind"]) == {"plain"}


def test_a_provider_is_wrong_only_in_the_quantities_that_are(write_results: Write, synthetic: Path) -> None:
    record = one(synthetic / "h200" / "precision.jsonl")
    warp = record["providers"]["warp"] | {"status": "wrong", "reason": "d_gates is off."}
    for quantity, worst in (("states", 0.5), ("d_gates", 7e4), ("d_tokens", 1.0)):
        warp["errors"][quantity]["of_budget"] = [0.1] * 31 + [worst]
    record["providers"]["warp"] = warp
    rows = gather(write_results(record, beside_published=False)).rows.set_index("provider")
    found = {name: bool(rows.loc["warp", f"{name}_wrong"]) for name in ("states", "d_gates", "d_tokens")}
    assert found == {"states": False, "d_gates": True, "d_tokens": False}
    assert not rows.loc["ours", ["states_wrong", "d_gates_wrong"]].any()


def test_the_spread_of_a_precision_is_that_of_its_draws(synthetic: Path, measured: Measurements) -> None:
    record = one(synthetic / "h200" / "precision.jsonl")
    errors = record["providers"]["ours"]["errors"]["states"]
    factors = [a / b for a, b in zip(errors["rmse"], errors["rounding_rmse"], strict=True)]
    rows = measured.rows
    row = rows[(rows["case_id"] == record["case_id"]) & (rows["provider"] == "ours")].iloc[0]
    assert row["states_factor"] == pytest.approx(statistics.fmean(factors))
    inside = [row["states_factor_low"] <= factor <= row["states_factor_high"] for factor in factors]
    assert sum(inside) == 30, "of 32 draws, 95 % are all but the two outermost"


def test_a_provider_fails_only_in_the_quantities_that_do(measured: Measurements) -> None:
    rows = measured.rows
    warp = rows[(rows["hardware"] == "h200") & (rows["stem"] == "precision") & (rows["provider"] == "warp")]
    for dtype, status in (("bfloat16", "overflowed"), ("float16", "diverged")):
        long = warp[(warp["dtype"] == dtype) & (warp["T"] == 8192)].iloc[0]
        assert long["status"] == status
        assert (long["states_failed"], long["d_gates_failed"], long["d_tokens_failed"]) == (True, True, False)
    assert not warp.loc[warp["T"] < 8192, "states_failed"].any()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{]", "holds a line that is not JSON"),
        ('{"schema": 7}', "has schema 7, but this version reads 1."),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "speed.jsonl").write_text(content + "\n")
    with pytest.raises(ResultsError, match=said) as raised:
        gather(tmp_path)
    assert str(tmp_path / "speed.jsonl") in str(raised.value)


def test_missing_folders_are_named(tmp_path: Path, synthetic: Path) -> None:
    with pytest.raises(
        ResultsError, match=r"^--results must be a folder of stored records such as paper/results, got .*"
    ):
        gather(tmp_path / "none")
    with pytest.raises(
        ResultsError, match=r"^--also must be a folder of outputs of `python -m experiments`, got .*none\.$"
    ):
        gather(synthetic, [tmp_path / "none"])
    with pytest.raises(
        ResultsError, match=r"^There are no records below .*; restore paper/results from version control"
    ):
        gather(tmp_path)
