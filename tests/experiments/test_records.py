"""Records: written whole or not at all, read back as one tidy table, without any GPU software."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments import store
from experiments.hardware import ROOT
from experiments.records import load, median_interval, record_files, tidy

CASE = {"stem": "speed", "level": "api", "mode": "forward", "dtype": "float32", "B": 8, "C": 1536, "T": 128}


def record(**changes):
    samples = {"ours": [2.0, 3.0, 1.0, 2.5, 2.2], "roofline": [1.0, 1.0, 1.1, 0.9, 1.0]}
    return {
        "schema": 1,
        "stem": "speed",
        "hardware": "h200",
        "case_id": "case",
        "case": CASE,
        "providers": {name: {"status": "ok", "reason": None, "samples_ms": each} for name, each in samples.items()},
        "protocol": {"timing": "events"},
        "provenance": {"gpu": "NVIDIA H200", "cpu": "Xeon", "commit": "abc", "dirty": False, "measured_at": "now"},
        "key": "k",
        **changes,
    }


def row(of, provider="ours"):
    table = tidy([of])
    return table[table["provider"] == provider].iloc[0]


def test_a_case_and_provider_is_a_row():
    table = tidy([record(), record(case_id="other")])
    assert list(zip(table["case_id"], table["provider"], strict=True)) == [
        ("case", "ours"), ("case", "roofline"), ("other", "ours"), ("other", "roofline"),
    ]  # fmt: skip
    assert set(CASE) <= set(table.columns)


def test_times_are_the_median_its_interval_and_the_ratio_to_the_roofline_of_the_record():
    found = row(record())
    assert (found["median_ms"], found["low_ms"], found["high_ms"], found["samples"]) == (2.2, 1.0, 3.0, 5)
    assert found["ratio_to_roofline"] == 2.2
    assert row(record(), "roofline")["ratio_to_roofline"] == 1.0
    assert found["timing"] == "events" and found["device"] == "NVIDIA H200" and not found["published"]


def test_without_roofline_or_samples_there_is_no_number():
    gone = record(providers={"ours": {"status": "oom", "reason": "out of memory"}})
    found = row(gone)
    assert found["status"] == "oom" and found["reason"] == "out of memory"
    assert math.isnan(found["median_ms"]) and math.isnan(found["ratio_to_roofline"])


def test_published_medians_stand_without_samples():
    printed = record(published={"source": "README", "table": "Forward-only"}, provenance=None, protocol=None)
    printed["providers"] = {"warp": {"status": "ok", "median_ms": 0.5}}
    found = row(printed, "warp")
    assert found["published"] and found["table"] == "Forward-only"
    assert found["median_ms"] == 0.5 and math.isnan(found["low_ms"])


def test_published_errors_stand_without_draws():
    printed = record(published={"source": "README", "table": "Accuracy"})
    printed["providers"] = {"ours": {"status": "ok", "rmse": 6.55e-8}}
    found = row(printed)
    assert found["states_rmse"] == 6.55e-8 and math.isnan(found["states_factor"])


def test_errors_are_means_over_draws_and_count_what_is_not_finite():
    errors = {"rmse": [2.0, None, 4.0], "rounding_rmse": [1.0, 1.0, 1.0], "max_abs_err": [5.0, None, 7.0]}
    drawn = record(
        providers={"ours": {"status": "overflowed", "errors": {"states": {**errors, "nonfinite": [0, 9, 0]}}}}
    )
    found = row(drawn)
    assert (found["states_rmse"], found["states_factor"]) == (3.0, 3.0)
    assert (found["states_max_abs_err"], found["states_nonfinite"]) == (7.0, 9)
    assert math.isnan(found["d_gates_rmse"])


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8, 20, 101])
def test_the_interval_covers_the_median_as_often_as_it_says(n):
    low, high = median_interval(range(n))
    assert low + high == n - 1, "symmetric"
    rank = int(low) + 1
    covered = 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n
    narrower = 1 - 2 * sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    assert (covered >= 0.95 or n < 6) and narrower < 0.95


def test_the_interval_on_random_samples():
    draws = np.random.default_rng(0).exponential(size=(4000, 9))
    inside = [low <= math.log(2) <= high for low, high in (median_interval(each) for each in draws.tolist())]
    assert 0.95 <= np.mean(inside) <= 0.975  # the order statistics of nine samples cover 96.1 %


def test_load_reads_files_and_folders_in_a_stable_order(tmp_path):
    for name in ("b", "a"):
        store.write(tmp_path / "speed" / name / "record.json", record(case_id=name))
    (tmp_path / "speed" / "a" / "replaced-1.json").write_text("{}")
    lines = tmp_path / "results" / "speed.jsonl"
    lines.parent.mkdir()
    lines.write_text("".join(json.dumps(record(case_id=name)) + "\n" for name in "dc"))
    assert [each["case_id"] for each in load(tmp_path / "speed")] == ["a", "b"]
    assert [each["case_id"] for each in load(lines)] == ["d", "c"]
    assert [each["case_id"] for each in load(str(tmp_path))] == ["d", "c", "a", "b"]


def test_what_is_no_whole_record_is_named(tmp_path):
    (tmp_path / "case").mkdir()
    cut = tmp_path / "case" / "record.json"
    cut.write_text('{"schema": 1, "case_id')
    with pytest.raises(ValueError, match="holds a line that is not JSON") as raised:
        load(tmp_path)
    assert str(raised.value).startswith(f"{cut} holds a line that is not JSON (Unterminated string")
    assert str(raised.value).endswith("; restore or delete it.")


def test_copies_that_wandb_keeps_are_no_records(tmp_path):
    store.write(tmp_path / "speed" / "a" / "record.json", record(case_id="a"))
    store.write(tmp_path / "wandb" / "offline-run-1" / "files" / "record.json", record(case_id="a"))
    assert record_files(tmp_path) == [tmp_path / "speed" / "a" / "record.json"]
    assert [each["case_id"] for each in load(tmp_path)] == ["a"]


def test_load_says_what_it_cannot_read(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised:
        load(missing)
    assert str(raised.value) == f"Records are read from a folder or a jsonl file, and {missing} is neither."
    newer = tmp_path / "record.json"
    store.write(newer, record(schema=2))
    with pytest.raises(ValueError) as raised:
        load(newer)
    assert str(raised.value) == f"A record in {newer} has schema 2, but this version reads 1."


def test_infinities_become_null_and_nothing_else_changes(tmp_path):
    path = tmp_path / "case" / "record.json"
    values = {"a": [1.5, math.inf, -math.inf, math.nan, 0.1], "b": {"c": math.nan}}
    store.write(path, record(values=values))
    assert json.loads(path.read_text()) == record(values={"a": [1.5, None, None, None, 0.1], "b": {"c": None}})
    assert path.read_text().count("\n") == 1


def test_a_write_that_dies_leaves_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    store.write(path, record(case_id="old"))

    def die(*_):
        raise KeyboardInterrupt

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, step, die)
            store.write(path, record(case_id="new"))
        assert store.read(path)["case_id"] == "old"
        assert [each["case_id"] for each in load(tmp_path)] == ["old"]
    store.write(path, record(case_id="new"))
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"], "leftovers of the dead writes are gone"


def test_a_stale_record_is_kept_beside_the_new_one(tmp_path):
    path = tmp_path / "record.json"
    store.write(path, record(case_id="old", key="first"))
    store.write(path, record(case_id="new", key="second"))
    assert store.read(path)["case_id"] == "new"
    assert store.read(tmp_path / "replaced-first.json")["case_id"] == "old"


def test_what_counts_as_done(tmp_path):
    def with_statuses(**statuses):
        return record(providers={name: {"status": status} for name, status in statuses.items()})

    assert store.state(None, "k") == "missing"
    assert store.state(record(), "other key") == "stale"
    assert store.state(with_statuses(ours="ok", warp="wrong", ref="oom", hgrn="unsupported"), "k") == "current"
    assert store.state(with_statuses(ours="diverged"), "k") == "current"
    assert store.state(with_statuses(ours="ok", warp="error"), "k") == "failed"
    assert store.state(with_statuses(ours="wrong"), "k") == "failed"
    (tmp_path / "record.json").write_text('{"schema": 1, "ca')
    assert store.read(tmp_path / "record.json") is None


def test_records_need_neither_torch_nor_hydra():
    banned = ["torch", "triton", "hydra", "omegaconf", "wandb", "scan"]
    code = f"import sys, experiments.records; print([name for name in {banned} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("named", [None, "", "elsewhere"])
def test_every_command_finds_records_where_sweeps_leave_them(named, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "SCAN_OUTPUTS"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if named is None else {"SCAN_OUTPUTS": named})
    asked = (
        "import os, experiments.compose, experiments.reproduce as r; from experiments.records import OUTPUTS; "
        "print(OUTPUTS, r.OUTPUTS, os.environ['SCAN_OUTPUTS'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) == {str(tmp_path / "elsewhere" if named else ROOT / "outputs")}
    for module in ("experiments.collect", "experiments.tuned", "paper.claims", "paper.report"):
        shown = subprocess.run(
            [sys.executable, "-m", module, "--help"], cwd=tmp_path, env=environment | {"COLUMNS": "1000"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert f"default: {found.stdout.split()[0]}" in shown.stdout
