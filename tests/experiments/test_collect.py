"""Outputs become stored results only as the paper's cases, from sources that a commit holds, with the gaps named."""

import dataclasses
import json
import math
import shutil
import subprocess

import pytest

pytest.importorskip("hydra")

from experiments import collect as collecting
from experiments import store
from experiments.collect import collect, paper_settings
from experiments.compose import options
from experiments.config import ConfigError
from experiments.provenance import sources
from experiments.records import load


@pytest.fixture
def project(tmp_path):
    """A repository with one commit, and outputs that hold every case of the CPU's precision sweep but one."""
    root = tmp_path / "project"
    for folder in ("scan", "experiments", "conf"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file.py").write_text(f"# {folder}\n")
    git(root, "init", "-q")
    commit(root)
    fill(root, paper_settings("precision", "cpu"), leave_out=2)
    return root


def git(root, *words):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", root, *identity, *words], check=True, capture_output=True)


def commit(root):
    git(root, "add", "scan", "experiments", "conf")
    git(root, "commit", "-qm", "sources")


def fill(root, settings, leave_out=None, **changes):
    for index, case in enumerate(settings.experiment.cases()):
        if index != leave_out:
            put(root, settings, case, **changes)


def put(root, settings, case, provenance=None, **changes):
    name = settings.hardware.name
    record = {
        "schema": 1,
        "stem": case.stem,
        "hardware": name,
        "case_id": case.id,
        "case": dataclasses.asdict(case),
        "providers": {"ours": {"status": "ok", "samples_ms": [0.1 + 0.2, math.nan]}},
        "protocol": {},
        "provenance": {**sources(root), "gpu": None, **(provenance or {})},
        "key": "k",
    } | changes
    store.write(store.folder(root / "outputs", case.stem, case.id, name) / "record.json", record)


def lines(root, path="cpu/precision.jsonl"):
    return load(root / "results" / path)


def run(root, **how):
    return collect(root / "outputs", root / "results", root, **how)


def test_a_stem_becomes_one_file_in_the_order_of_its_cases(project):
    cases = paper_settings("precision", "cpu").experiment.cases()
    (made,) = run(project)
    assert [each["case_id"] for each in lines(project)] == [case.id for at, case in enumerate(cases) if at != 2]
    assert lines(project)[0]["providers"]["ours"]["samples_ms"] == [0.30000000000000004, None]
    assert list(made.report()) == [
        f"cpu/precision: {len(cases) - 1} of {len(cases)} cases",
        f"  gap: {cases[2].id} has not been measured",
    ]


def test_collecting_twice_changes_nothing(project):
    run(project)
    before = (project / "results" / "cpu" / "precision.jsonl").read_bytes()
    run(project)
    assert (project / "results" / "cpu" / "precision.jsonl").read_bytes() == before


def test_failed_providers_are_gaps_and_other_cases_are_left_out(project):
    settings = paper_settings("precision", "cpu")
    third = settings.experiment.cases()[2]
    failed = {"ours": {"status": "ok"}, "ref": {"status": "error", "reason": "it broke"}}
    put(project, settings, third, providers=failed)
    put(project, settings, dataclasses.replace(third, C=9))
    (made,) = run(project)
    assert made.gaps == [f"{third.id} has no ref: error: it broke"]
    assert made.left_out == [f"{dataclasses.replace(third, C=9).id} is no case of the paper"]


def test_times_taken_quickly_are_gaps(project):
    settings = paper_settings("speed", "cpu")
    paper = {"measure": dataclasses.asdict(settings.measure)}
    fill(project, settings, protocol=paper)
    first = settings.experiment.cases()[0]
    put(project, settings, first, protocol={"measure": {**paper["measure"], "repeats": 5}})
    speed = next(each for each in run(project) if each.stem == "speed")
    assert speed.gaps == [f"{first.id} has not been measured with measure=paper"]
    assert len(lines(project, "cpu/speed.jsonl")) == speed.expected - 1


def test_machines_are_kept_apart_and_can_be_chosen(project):
    fill(project, paper_settings("precision", "h200"))
    fill(project, paper_settings("precision", "nvidia_l40s"))
    assert [each.hardware for each in run(project, only="h200")] == ["h200"]
    assert not (project / "results" / "cpu").exists()
    assert [each.hardware for each in run(project)] == ["cpu", "h200", "nvidia_l40s"]
    assert all(each["hardware"] == "h200" for each in lines(project, "h200/precision.jsonl"))


def test_smoke_records_are_no_results(project):
    fill(project, paper_settings("smoke", "cpu"))
    assert [each.stem for each in run(project)] == ["precision"]


def refused(project, **how):
    with pytest.raises(ConfigError) as raised:
        run(project, **how)
    assert not (project / "results").exists()
    return str(raised.value)


def test_a_record_from_a_dirty_tree_is_refused(project):
    (project / "scan" / "file.py").write_text("# edited\n")
    settings = paper_settings("precision", "cpu")
    third = settings.experiment.cases()[2]
    put(project, settings, third)
    sentence = (
        f"Nothing was collected: precision {third.id} was measured while scan/, experiments/ or conf/ had uncommitted "
        "changes; commit them and measure again."
    )
    assert refused(project) == sentence
    commit(project)
    assert refused(project) == sentence, "committing afterwards does not make the record clean"


def test_an_edit_after_measuring_does_not_matter(project):
    (project / "scan" / "file.py").write_text("# edited\n")
    run(project)
    commit(project)
    run(project)
    assert lines(project)


@pytest.mark.parametrize("edited", ["scan", "experiments", "conf"])
def test_without_git_at_measuring_the_sources_decide(project, edited):
    settings = paper_settings("precision", "cpu")
    third = settings.experiment.cases()[2]
    clean = sources(project)
    put(project, settings, third, provenance={**clean, "dirty": None, "commit": None})
    run(project)
    assert third.id in [each["case_id"] for each in lines(project)]
    subprocess.run(["rm", "-r", project / "results"], check=True)
    (project / edited / "file.py").write_text("# edited\n")
    put(project, settings, third, provenance={**sources(project), "dirty": None, "commit": clean["commit"]})
    assert refused(project) == (
        f"Nothing was collected: precision {third.id} was measured from other sources than those of commit "
        f"{clean['commit']}; commit them and measure again."
    )


def test_an_unknown_commit_is_refused(project):
    settings = paper_settings("precision", "cpu")
    third = settings.experiment.cases()[2]
    put(project, settings, third, provenance={"dirty": None, "commit": "f" * 40})
    assert refused(project) == (
        f"Nothing was collected: precision {third.id} was measured at commit {'f' * 40}, which this repository "
        "does not have; fetch it or measure again."
    )


def test_fewer_cases_than_are_stored_are_refused(project):
    run(project)
    stored = project / "results" / "cpu" / "precision.jsonl"
    before = stored.read_bytes()
    folders = sorted((project / "outputs" / "precision").iterdir())
    lost = min(json.loads((folder / "record.json").read_text())["case_id"] for folder in folders[1:])
    for folder in folders[1:]:
        (folder / "record.json").unlink()
    with pytest.raises(ConfigError) as raised:
        run(project)
    assert str(raised.value) == (
        f"Nothing was collected: cpu/precision.jsonl holds {len(folders) - 1} cases that the outputs lack, such as "
        f"{lost}; run the whole sweep into these outputs, or delete that file first."
    )
    assert stored.read_bytes() == before


def test_nothing_to_collect_is_said(project):
    stems = ", ".join(stem for stem in options("experiment") if stem != "smoke")
    advice = f"run `python -m experiments experiment=NAME` with one of {stems} first."
    outputs = project / "outputs"
    assert refused(project, only="h100") == f"There are no records of hardware h100 below {outputs}; {advice}"
    shutil.rmtree(outputs)
    assert refused(project) == f"There are no records below {outputs}; {advice}"
    fill(project, paper_settings("smoke", "cpu"))
    assert refused(project) == f"Below {outputs} are only records of smoke, which are no results; {advice}"


def test_the_command_prints_the_outcome(project, capsys, monkeypatch):
    monkeypatch.setattr(collecting, "ROOT", project)
    outputs, results = str(project / "outputs"), str(project / "results")
    assert collecting.main([outputs, "--results", results]) == 0
    assert capsys.readouterr().out.startswith("cpu/precision: ")
    assert collecting.main([outputs, "--results", results, "--hardware", "h100"]) == 2
    assert capsys.readouterr().err.startswith("error: There are no records of hardware h100 ")
    assert json.loads((project / "results" / "cpu" / "precision.jsonl").read_text().splitlines()[0])["schema"] == 1
