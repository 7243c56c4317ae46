"""A sweep measures what is missing, keeps what it has, and survives whatever a case does to it.

The cases are measured by tests/experiments/fake_sweep.py, which takes no time; the last tests run the real thing.
"""

import dataclasses
import fcntl
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("hydra")

from experiments import config, store, sweep
from experiments.compose import options
from experiments.config import ConfigError, Experiment, Hardware, Measure, Settings, Tracking
from experiments.device_lock import device_lock, lock_path
from experiments.events import Events
from experiments.hardware import ROOT, Machine
from experiments.progress import duration
from experiments.records import load
from experiments.supervise import claimed, supervise
from tests.experiments import fake_sweep

REAL_MEASURERS = dict(sweep.MEASURERS)
FAKE = (sys.executable, "-m", "tests.experiments.fake_sweep")
CPU = Machine("cpu")
LENGTHS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _own_locks(tmp_path, monkeypatch):
    """Lock files of this test alone, so that sweeps elsewhere on the machine are not waited for."""
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(locks))
    monkeypatch.setenv("TMPDIR", str(locks))


@pytest.fixture
def plan(tmp_path) -> Settings:
    experiment = Experiment("smoke", ("float32",), ("forward",), ("api",), (1,), (2,), LENGTHS)
    return Settings(
        experiment, Hardware("cpu", "cpu"), Measure(), Tracking("disabled"), ("ours", "ref"), str(tmp_path / "outputs")
    )


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Says what happens at which T, and returns which T were measured since."""
    log = tmp_path / "measured.log"
    monkeypatch.setattr(sweep, "MEASURERS", fake_sweep.MEASURERS)
    monkeypatch.setenv("FAKE_LOG", str(log))

    def measured(**happens: str) -> list[int]:
        monkeypatch.setenv("FAKE_MEASURE", json.dumps({name.removeprefix("T"): what for name, what in happens.items()}))
        lines = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return [int(re.search(r"-T(\d+)-", line)[1]) for line in lines]

    measured()
    return measured


def run(plan: Settings, folder, machine: Machine = CPU) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return sweep.Sweep(plan, folder, machine).run()


@pytest.fixture
def run_folder(tmp_path):
    """A folder that an entry point has claimed."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def records(plan: Settings) -> dict[int, dict]:
    found = load(os.path.join(plan.outputs, plan.experiment.stem))
    assert len({each["case_id"] for each in found}) == len(found)
    return {each["case"]["T"]: each for each in found}


def statuses(plan: Settings) -> dict[int, tuple[str, ...]]:
    return {T: tuple(each["status"] for each in found["providers"].values()) for T, found in records(plan).items()}


def test_a_case_leaves_one_complete_record(plan, fake, tmp_path):
    assert run(plan, tmp_path / "run") == sweep.DONE
    assert fake() == list(LENGTHS)
    found = records(plan)[1]
    case = plan.experiment.cases()[0]
    assert set(found) == {
        "schema", "stem", "hardware", "case_id", "case", "providers", "protocol", "provenance", "key",
    }  # fmt: skip
    assert found["case"] == dataclasses.asdict(case) and found["case_id"] == case.id
    assert found["hardware"] == "cpu"
    assert len(found["providers"]["ours"]["samples_ms"]) == plan.measure.repeats
    assert found["protocol"] == {"timing": "fake", "measure": dataclasses.asdict(plan.measure)}
    assert found["provenance"]["torch"] and found["provenance"]["source_hash"] and found["provenance"]["measured_at"]


def test_a_second_run_reuses_everything(plan, fake, tmp_path, capsys):
    run(plan, tmp_path / "run")
    before = records(plan)
    fake()
    capsys.readouterr()
    assert run(plan, tmp_path / "again") == sweep.DONE
    assert fake() == [] and records(plan) == before
    assert capsys.readouterr().out == "4 cases: 0 measured, 4 reused, 0 failed.\n"


def test_only_what_is_missing_is_measured(plan, fake, tmp_path):
    run(plan, tmp_path / "run")
    (store.folder(plan.outputs, "smoke", plan.experiment.cases()[2].id, "cpu") / "record.json").unlink()
    fake()
    run(plan, tmp_path / "again")
    assert fake() == [3]


@pytest.mark.parametrize(
    "change",
    [
        {"providers": ("ours",)},
        {"measure": Measure(repeats=9)},
        {"experiment": Experiment("smoke", ("float32",), ("forward",), ("api",), (1,), (2,), LENGTHS, seed=1)},
    ],
)
def test_changed_settings_are_measured_and_nothing_is_overwritten(plan, fake, tmp_path, change):
    run(plan, tmp_path / "run")
    keys = {each["key"] for each in records(plan).values()}
    fake()
    run(dataclasses.replace(plan, **change), tmp_path / "again")
    assert fake() == list(LENGTHS)
    outputs = tmp_path / "outputs" / "smoke"
    kept = {store.read(file)["key"] for file in outputs.glob("*/*.json")}
    assert keys < kept and len(kept) == 8


def test_changed_sources_are_measured_again(plan, fake, tmp_path, monkeypatch):
    run(plan, tmp_path / "run")
    fake()
    monkeypatch.setattr("experiments.provenance.hash_of_files", lambda files: "other")
    run(plan, tmp_path / "again")
    assert fake() == list(LENGTHS)


def test_precision_does_not_depend_on_how_time_is_measured(plan, fake, tmp_path):
    plan = dataclasses.replace(plan, experiment=dataclasses.replace(plan.experiment, stem="precision", draws=2))
    run(plan, tmp_path / "run")
    fake()
    run(dataclasses.replace(plan, measure=Measure(repeats=9)), tmp_path / "again")
    assert fake() == []


def test_a_failing_provider_leaves_its_status_and_the_sweep_goes_on(plan, fake, tmp_path, capsys):
    fake(T2="error", T3="raise")
    assert run(plan, tmp_path / "run") == sweep.FAILED
    assert statuses(plan) == {1: ("ok", "ok"), 2: ("ok", "error"), 3: ("error", "error"), 4: ("ok", "ok")}
    folders = {T: store.folder(plan.outputs, "smoke", each["case_id"], "cpu") for T, each in records(plan).items()}
    assert (folders[2] / "ref.traceback.txt").read_text() == "Traceback: it failed on purpose"
    assert "in run_case" in (folders[3] / "traceback.txt").read_text()
    assert records(plan)[3]["providers"]["ours"]["reason"] == "RuntimeError: the measuring code itself failed"
    assert not list(folders[1].glob("*traceback*"))
    assert capsys.readouterr().out.splitlines()[-1] == "4 cases: 4 measured, 0 reused, 2 failed."
    fake()
    assert run(plan, tmp_path / "again") == sweep.DONE
    assert fake() == [2, 3], "a rerun measures the failed cases, and only those"
    assert not list(folders[2].glob("*traceback*"))


def test_wrong_values_of_ours_fail_a_case(plan, fake, tmp_path):
    fake(T2="wrong")
    assert run(plan, tmp_path / "run") == sweep.FAILED


def test_fail_fast_stops_at_the_first_failed_case(plan, fake, tmp_path, capsys):
    fake(T2="error", T4="error")
    assert run(dataclasses.replace(plan, fail_fast=True), tmp_path / "run") == sweep.FAILED
    assert fake() == [1, 2]
    assert capsys.readouterr().out.endswith("Stopped at the first failed case, as fail_fast=true asks.\n")


def test_cases_that_do_not_fit_are_named_and_left_out(plan, fake, tmp_path, capsys):
    small = Hardware("cpu", "cpu", longest={"forward": 2}, rows=2)
    assert run(dataclasses.replace(plan, hardware=small), tmp_path / "run") == sweep.DONE
    assert fake() == [1, 2]
    assert "2 cases are left out: they do not fit hardware=cpu.\n" in capsys.readouterr().out


def test_progress_says_what_is_done_and_left(plan, fake, tmp_path, capsys):
    run(dataclasses.replace(plan, experiment=dataclasses.replace(plan.experiment, T=(1,))), tmp_path / "run")
    capsys.readouterr()
    fake(T3="error")
    run(plan, tmp_path / "again")
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"\[2/4\] api-forward-float32-B1-C2-T2-\w+: ours 0.2 ms, ref 0.2 ms; "
        r"1 measured, 1 reused, 0 failed, 2 left, about \d+ s",
        lines[0],
    )
    assert re.search(r"T3-\w+: ours 0.3 ms, ref error; 2 measured, 1 reused, 1 failed, 1 left", lines[1])
    assert lines[2].endswith("3 measured, 1 reused, 1 failed, none left")


def test_durations_read():
    assert [duration(each) for each in (0.4, 99, 100, 5999, 6000)] == ["0 s", "99 s", "2 min", "100 min", "1.7 h"]


def test_an_unknown_stem_is_named(plan, tmp_path):
    unknown = dataclasses.replace(plan, experiment=dataclasses.replace(plan.experiment, stem="sped"))
    with pytest.raises(ConfigError, match=r"^experiment.stem must be one of speed, .*, got 'sped'\.$"):
        sweep.Sweep(unknown, tmp_path, CPU)


def test_a_broken_context_is_recorded_before_the_process_ends(plan, fake, tmp_path):
    fake(T2="broken")
    assert run(plan, tmp_path / "run") == sweep.CONTEXT_BROKEN
    assert statuses(plan) == {1: ("ok", "ok"), 2: ("ok", "error")}
    assert fake(T2="broken") == [1, 2]
    assert run(plan, tmp_path / "run") == sweep.FAILED, "the next process of the same run goes on after that case"
    assert fake() == [3, 4, 2]


def test_a_case_that_broke_the_context_is_repeated_once_without_whoever_broke_it(plan, fake, tmp_path):
    fake(T2="broken")
    run(plan, tmp_path / "run")
    first = records(plan)[2]
    run(plan, tmp_path / "run")
    second = records(plan)[2]
    assert first["protocol"]["context_broken_by"] == "ref"
    assert second["protocol"]["measured_without"] == "ref" and "context_broken_by" not in second["protocol"]
    assert list(second["providers"]) == ["ours", "ref"]
    assert second["providers"]["ours"]["samples_ms"] and second["provenance"] != first["provenance"]
    assert second["providers"]["ref"] == first["providers"]["ref"]
    folder = store.folder(plan.outputs, "smoke", second["case_id"], "cpu")
    assert (folder / "ref.traceback.txt").exists()
    fake()
    assert run(plan, tmp_path / "run") == sweep.FAILED and fake() == [], "twice is enough for one sweep"
    assert run(plan, tmp_path / "again") == sweep.DONE and fake() == [2]


@pytest.mark.parametrize("happens", ["broken", "broken once"])
def test_ours_is_never_left_out(plan, fake, tmp_path, monkeypatch, happens):
    monkeypatch.setenv("FAKE_BREAKS", "ours")
    fake(T4=happens)
    assert run(plan, tmp_path / "run") == sweep.CONTEXT_BROKEN
    for_good = happens == "broken"
    assert run(plan, tmp_path / "run") == (sweep.CONTEXT_BROKEN if for_good else sweep.DONE)
    assert statuses(plan)[4] == ("error" if for_good else "ok", "ok")
    assert run(plan, tmp_path / "run") == (sweep.FAILED if for_good else sweep.DONE)
    assert fake() == [1, 2, 3, 4, 4]


def test_a_sweep_stops_cleanly_at_its_limit_and_a_rerun_completes_it(plan, fake, run_folder, tmp_path, capsys):
    limited = dataclasses.replace(plan, limit_minutes=2)
    fake(T1="error")
    sweeping = sweep.Sweep(limited, run_folder, CPU)
    over = iter([False, False, True])
    sweeping._is_over = lambda: next(over)
    assert sweeping.run() == sweep.FAILED
    assert fake() == [1, 2]
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "Stopped after 2 minutes, as limit_minutes asks.",
        "2 cases are left; the same command goes on from here.",
        "  api float32 uniform_0_1: 2 cases, from T=3 forward to T=4 forward",
        "4 cases: 2 measured, 0 reused, 1 failed.",
    ]
    assert sweep.Sweep(dataclasses.replace(plan, limit_minutes=None), tmp_path / "again", CPU)._is_over() is False
    (tmp_path / "again").mkdir()
    assert run(dataclasses.replace(plan, limit_minutes=60), tmp_path / "again") == sweep.DONE
    assert fake() == [1, 3, 4]


def test_a_single_case_that_is_left_is_named(plan):
    assert sweep.left(plan.experiment.cases()[3:]) == [
        "1 case is left; the same command goes on from here.",
        "  api float32 uniform_0_1: T=4 forward",
    ]


def test_the_limit_counts_from_the_start_of_the_whole_sweep(plan, fake, run_folder, capfd):
    limited = dataclasses.replace(plan, limit_minutes=10)
    Events(run_folder).add("sweep started", at=time.time() - 601)
    assert sweep.Sweep(limited, run_folder, CPU).run() == sweep.DONE
    assert fake() == []
    again = run_folder.with_name("again")
    again.mkdir()
    assert supervise(limited, again, FAKE) == sweep.DONE
    assert fake() == list(LENGTHS) and Events(again).opened() == pytest.approx(time.time(), abs=300)


def test_a_lock_holder_is_waited_for_and_its_records_are_used(plan, fake, tmp_path, capsys):
    first = plan.experiment.cases()[0]
    only = dataclasses.replace(plan, experiment=dataclasses.replace(plan.experiment, T=(1,)))
    holding, path = threading.Event(), lock_path("cpu")

    def measure_elsewhere():
        with device_lock("cpu", lambda: None):
            holding.set()
            while "Waiting: another process measures on this CPU." not in "".join(heard):
                heard.append(capsys.readouterr().out)
                time.sleep(0.01)
            frame = sweep.Sweep(only, tmp_path / "run", CPU)
            record = frame._frame(first) | {"providers": {"ours": {"status": "ok"}}}
            store.write(store.folder(plan.outputs, "smoke", first.id, "cpu") / "record.json", record)

    heard: list[str] = []
    (tmp_path / "run").mkdir()
    other = threading.Thread(target=measure_elsewhere)
    other.start()
    holding.wait()
    assert run(only, tmp_path / "run") == sweep.DONE
    other.join()
    assert fake() == []
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it any longer


def test_a_sweep_whose_supervisor_is_gone_measures_no_further(plan, fake, run_folder):
    orphan = sweep.Sweep(plan, run_folder, CPU)
    orphan.launcher = -1
    assert orphan.run() == sweep.FAILED and fake() == []


def test_two_devices_have_two_locks():
    assert lock_path("GPU-a") != lock_path("GPU-b")
    with device_lock("GPU-a", pytest.fail), device_lock("GPU-b", pytest.fail):
        pass


def test_a_sweep_locks_the_gpu_itself_under_whatever_index_it_is_seen(plan, fake, run_folder, monkeypatch):
    taken = []
    monkeypatch.setattr(sweep, "device_lock", lambda device, on_wait: taken.append(device) or nullcontext())
    sweeping = sweep.Sweep(plan, run_folder, CPU)
    sweeping.machine = Machine("cuda", "NVIDIA H200", 139.8, "0123-4567")
    assert sweeping.run() == sweep.DONE
    assert taken == ["0123-4567"] * len(LENGTHS)


def test_a_torn_last_event_is_ignored(tmp_path):
    events = Events(tmp_path)
    events.add("case ended", case_id="a", failures=[])
    with events.path.open("a") as file:
        file.write('{"event": "case en')
    assert events.ended() == {"a": []} and events.in_flight() is None


def test_the_supervisor_goes_on_after_a_crash_and_a_broken_context(plan, fake, run_folder, capfd):
    fake(T1="broken", T3="die")
    assert supervise(plan, run_folder, FAKE) == sweep.FAILED
    assert fake() == [1, 2, 3, 4, 1]
    assert statuses(plan) == {1: ("ok", "error"), 2: ("ok", "ok"), 3: ("error", "error"), 4: ("ok", "ok")}
    crashed = records(plan)[3]
    reasons = {each["reason"] for each in crashed["providers"].values()}
    assert reasons == {"The process ended by signal SIGSEGV while it measured ours."}
    shown = capfd.readouterr().out
    assert "The sweep ended with exit status 75; it goes on in a fresh process.\n" in shown
    assert "The sweep ended by signal SIGSEGV; it goes on in a fresh process.\n" in shown
    assert shown.splitlines()[-1] == "4 cases: 2 measured, 1 reused, 2 failed."


def test_the_supervisor_stops_without_progress(plan, run_folder, capfd):
    dying = (sys.executable, "-c", "import os; os.abort()")
    assert supervise(plan, run_folder, dying) == sweep.FAILED
    assert capfd.readouterr().err.endswith(
        "error: The sweep ended by signal SIGABRT without measuring anything; see above.\n"
    )


def test_the_supervisor_stops_at_a_crash_if_asked(plan, fake, run_folder):
    fake(T2="die")
    assert supervise(dataclasses.replace(plan, fail_fast=True), run_folder, FAKE) == sweep.FAILED
    assert fake() == [1, 2]


def test_sigkill_loses_doubles_and_tears_nothing(plan, fake, run_folder, tmp_path):
    fake(T3="sleep")
    settings = json.dumps(plan.to_dict())
    code = (
        "import json, pathlib; from experiments.config import Settings; from experiments.supervise import supervise;"
        f"supervise(Settings.from_dict(json.loads({settings!r})), pathlib.Path({str(run_folder)!r}), {FAKE!r})"
    )
    # The number of threads is a part of the key, and pytest's workers have one.
    threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    sweeping = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=threads, start_new_session=True)
    log = tmp_path / "measured.log"
    while not (log.exists() and len(log.read_text().split()) == 3):
        assert sweeping.poll() is None
        time.sleep(0.02)
    os.killpg(sweeping.pid, signal.SIGKILL)
    sweeping.wait()
    assert sorted(records(plan)) == [1, 2]
    before = records(plan)
    assert fake() == [1, 2, 3]
    assert run(plan, tmp_path / "again") == sweep.DONE
    assert fake() == [3, 4]
    assert sorted(records(plan)) == [1, 2, 3, 4]
    assert {T: records(plan)[T] for T in before} == before
    assert not list(tmp_path.glob("outputs/**/*.tmp"))


def test_an_interrupt_ends_the_sweep_and_says_how_to_go_on(fake, tmp_path):
    fake(T64="sleep")
    words = ["experiment=smoke", "hardware=cpu", "tracking=disabled", f"outputs={tmp_path / 'outputs'}"]
    sweeping = launch(*words, start_new_session=True)
    while not (tmp_path / "measured.log").exists():
        assert sweeping.poll() is None
        time.sleep(0.02)
    os.killpg(sweeping.pid, signal.SIGINT)
    out, err = sweeping.communicate()
    assert (sweeping.returncode, out, err) == (130, "", "Stopped; the same command goes on from here.\n")


def test_two_sweeps_at_once_share_the_cases(plan, fake, tmp_path):
    plans = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(json.dumps(plan.to_dict()))
        plans.append(subprocess.Popen([*FAKE, str(tmp_path / name / "plan.json")], cwd=ROOT))
    assert [each.wait() for each in plans] == [sweep.DONE, sweep.DONE]
    assert Counter(fake()) == Counter(LENGTHS)


def test_a_used_run_folder_is_refused(tmp_path):
    with claimed(tmp_path / "run") as outcome:
        outcome.status = 0
    with pytest.raises(ConfigError) as raised, claimed(tmp_path / "run"):
        pass
    assert str(raised.value) == (
        f"The folder {tmp_path / 'run'} holds an earlier run; leave hydra.run.dir alone or name a folder without a run "
        "(records are resumed from outputs, not from there)."
    )
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == {"exit_status": 0, "problem": None}


def launch(*words: str, command=FAKE, cwd=ROOT, **how) -> subprocess.Popen:
    """The entry point with the fake sweep behind it."""
    code = (
        "import runpy, sys; from experiments import supervise;"
        f"supervise.supervise.__defaults__ = ({command!r},);"
        f"sys.argv = ['experiments', *{words!r}];"
        "runpy.run_module('experiments', run_name='__main__')"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], cwd=cwd, env=environment, **pipes, **how)


def test_eight_starts_in_the_same_second_have_eight_folders(tmp_path):
    nothing = (sys.executable, "-S", "-c", "")
    started = [
        launch("experiment=smoke", "hardware=cpu", f"outputs={tmp_path}", command=nothing, cwd=tmp_path)
        for _ in range(8)
    ]
    assert [each.wait() for each in started] == [0] * 8, started[0].stderr.read()
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 8
    assert all((folder / "status.json").exists() and (folder / "plan.json").exists() for folder in folders)


@pytest.mark.parametrize("words", [["hydra.job.chdir=true"], ["outputs=here"]])
def test_whatever_folder_a_sweep_starts_in_its_files_lie_in_outputs(tmp_path, monkeypatch, words):
    monkeypatch.setenv("SCAN_OUTPUTS", str(tmp_path / "outputs"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = launch("experiment=smoke", "hardware=cpu", "tracking=disabled", *words, cwd=elsewhere)
    assert done.wait() == 0, done.stderr.read()
    outputs = elsewhere / "here" if "outputs=here" in words else tmp_path / "outputs"
    assert {each.name for each in outputs.iterdir()} == {"runs", "smoke"}
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.parent.name != "locks"]
    assert files and all(file.is_relative_to(outputs) for file in files)


@pytest.mark.parametrize("fail_fast", [False, True])
def test_failed_jobs_of_a_multirun(tmp_path, monkeypatch, fail_fast):
    monkeypatch.setenv("FAKE_MEASURE", json.dumps({"64": "error", "66": "error"}))
    words = ["experiment=smoke", "hardware=cpu", "tracking=disabled", f"outputs={tmp_path}", f"fail_fast={fail_fast}"]
    done = launch("-m", *words, "experiment.T=64,65,66", "experiment.dtype=float32", "experiment.mode=forward")
    out, err = done.communicate()
    assert done.returncode == sweep.FAILED, out + err
    found = {each["case"]["T"]: each for each in load(tmp_path / "smoke")}
    assert sorted(found) == ([64] if fail_fast else [64, 65, 66])
    ended = {T: json.loads(next((tmp_path / "runs").glob(f"*/{T - 64}/status.json")).read_text()) for T in found}
    assert {T: each["exit_status"] for T, each in ended.items()} == {T: int(T != 65) for T in found}
    for T in found:
        kept = store.folder(tmp_path, "smoke", found[T]["case_id"], "cpu").glob("*.traceback.txt")
        assert bool(list(kept)) == (T != 65)


def test_a_wrong_setting_ends_in_one_sentence(tmp_path):
    done = launch("experiment=smoke", "hardware=cpu", "experiment.T=0", f"outputs={tmp_path}")
    out, err = done.communicate()
    assert (done.returncode, out, err) == (sweep.UNUSABLE, "", "error: T must be an integer of at least 1, got 0.\n")


def test_a_preset_for_another_machine_ends_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = launch("experiment=smoke", "hardware=h100", "tracking=disabled", f"outputs={tmp_path}")
    out, err = done.communicate()
    assert (done.returncode, out) == (sweep.UNUSABLE, "")
    assert err == (
        "error: hardware=h100 expects a GPU whose name contains 'H100', but PyTorch sees no GPU here; "
        "take hardware=auto or the preset of this machine.\n"
    )


def test_smoke_runs_for_real_and_then_reuses_everything(tmp_path):
    words = ["experiment=smoke", "hardware=cpu", "measure=quick", "tracking=disabled", f"outputs={tmp_path}"]
    real = [sys.executable, "-m", "experiments", *words, "providers.names=[ours,sequential,warp,roofline]"]
    first = subprocess.run(real, cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.splitlines()[-1] == "4 cases: 4 measured, 0 reused, 0 failed."
    for found in load(tmp_path / "smoke"):
        ended = {name: each["status"] for name, each in found["providers"].items()}
        assert ended == {"ours": "ok", "sequential": "ok", "warp": "unsupported", "roofline": "ok"}
        assert len(found["providers"]["ours"]["samples_ms"]) == 5
        assert found["protocol"]["timing"] == "host_clock"
    again = subprocess.run(real, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, "4 cases: 0 measured, 4 reused, 0 failed.\n")


def test_every_stem_names_a_module_that_measures():
    stems = {stem: importlib.import_module(each.module) for stem, each in REAL_MEASURERS.items()}
    assert set(options("experiment")) == set(stems)
    parameters = {tuple(inspect.signature(module.run_case).parameters) for module in stems.values()}
    assert parameters == {("case", "providers", "settings", "device", "emit")}


def test_every_provider_of_a_setting_exists():
    from experiments.providers.registry import PROVIDERS

    assert tuple(PROVIDERS) == config.PROVIDERS
