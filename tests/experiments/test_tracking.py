"""The mirror: one wandb run a record, and nothing that wandb does can lose or stop a measurement."""

import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types

import pytest

from experiments import rebuild, store, tracking
from experiments.config import Tracking
from experiments.hardware import ROOT
from experiments.tracking import Tracker, series, summary, tags, usable_mode


def record(case_id="case-1", key="1" * 64, status="ok"):
    return {
        "schema": 1,
        "stem": "speed",
        "hardware": "cpu",
        "case_id": case_id,
        "case": {"stem": "speed", "T": 128},
        "providers": {
            "ours": {"status": "ok", "samples_ms": [1.0, 2.0, 3.0]},
            "roofline": {"status": "ok", "samples_ms": [1.0, 1.0]},
            "warp": {"status": status, "reason": "why"},
        },
        "protocol": {"timing": "host_clock"},
        "provenance": {"gpu": None, "cpu": "a CPU", "commit": "abc"},
        "key": key,
    }


class FakeArtifact:
    """Remembers its files."""

    def __init__(self, name, kind):
        self.name, self.kind, self.files = name, kind, {}

    def add_file(self, path, name, policy):
        assert policy == "immutable", "a copy in the home folder would be missed by a sync from elsewhere"
        self.files[name] = pathlib.Path(path).read_text(errors="replace")


class FakeWandb(types.ModuleType):
    """Remembers every run; `fails` names the step that raises, `hangs` one that does not return."""

    def __init__(self, fails="", hangs=""):
        super().__init__("wandb")
        self.fails, self.hangs, self.runs, self.never = fails, hangs, [], threading.Event()
        self.Settings = lambda **settings: settings
        self.Artifact = FakeArtifact

    def step(self, name):
        if name == self.fails:
            raise RuntimeError(f"{name} failed")
        if name == self.hangs:
            self.never.wait(30)

    def init(self, **how):
        self.step("init")
        folder = pathlib.Path(how["dir"]) / "wandb" / f"offline-run-{len(self.runs)}-{how.get('id')}" / "files"
        folder.mkdir(parents=True)
        run = types.SimpleNamespace(
            how=how, logged=[], exit_code=None, summary={}, dir=str(folder), saved=[], artifacts=[]
        )
        run.save = lambda path, base_path, policy: run.saved.append(os.path.relpath(path, base_path))
        run.log_artifact = run.artifacts.append

        def log(values):
            self.step("log")
            run.logged.append(values)

        def finish(exit_code):
            self.step("finish")
            run.exit_code = exit_code

        run.log, run.finish = log, finish
        self.runs.append(run)
        return run


@pytest.fixture
def wandb(monkeypatch):
    def install(**how):
        fake = FakeWandb(**how)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        return fake

    return install


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


def test_each_record_is_a_run_of_its_own(wandb, tmp_path):
    fake = wandb()
    tracker = Tracker(Tracking("offline"), tmp_path)
    assert tracker.mirror(record()) and tracker.mirror(record("case-2", "2" * 64, status="error"))
    first, second = (run.how for run in fake.runs)
    assert (first["name"], second["name"]) == ("case-1", "case-2")
    assert first["id"] != second["id"] and first["group"] == "speed" and first["mode"] == "offline"
    assert first["tags"] == tags(record()) and first["config"]["provenance"]["commit"] == "abc"
    assert first["settings"]["x_disable_stats"] is True
    assert [run.exit_code for run in fake.runs] == [0, 1], "a failed case is not shown as finished"


def test_samples_and_medians_are_logged(wandb, tmp_path):
    fake = wandb()
    Tracker(Tracking("offline"), tmp_path).mirror(record(status="oom"))
    assert fake.runs[0].logged == series(record()) == [
        {"ours/ms": 1.0, "roofline/ms": 1.0}, {"ours/ms": 2.0, "roofline/ms": 1.0}, {"ours/ms": 3.0},
    ]  # fmt: skip
    found = fake.runs[0].summary
    assert found == summary(record(status="oom"))
    assert found["ours/median_ms"] == found["ours/ratio_to_roofline"] == 2.0
    assert found["warp/status"] == "oom" and "warp/median_ms" not in found


@pytest.mark.parametrize("step", ["init", "log", "finish"])
def test_whatever_fails_is_a_warning_and_is_not_tried_again(wandb, tmp_path, caplog, step):
    fake = wandb(fails=step)
    tracker = Tracker(Tracking("offline"), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not tracker.mirror(record()) and not tracker.mirror(record("case-2"))
    assert [each.getMessage() for each in caplog.records] == [
        f"Tracking is off from here on (RuntimeError: {step} failed); records are complete, and "
        f"`python -m experiments.tracking mirror {tmp_path}` mirrors them later."
    ]
    assert len(fake.runs) <= 1


@pytest.mark.parametrize("step", ["init", "finish"])
def test_whatever_hangs_is_left_behind(wandb, tmp_path, caplog, monkeypatch, step):
    fake = wandb(hangs=step)
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.2)
    tracker = Tracker(Tracking("offline"), tmp_path)
    before = set(threading.enumerate())
    assert not tracker.mirror(record()) and not tracker.mirror(record())
    assert "wandb gave no answer for 0.2 s" in caplog.text
    fake.never.set()
    # What goes on imports parts of pandas, which the next test would find half there.
    for left in set(threading.enumerate()) - before:
        left.join(60)


def test_a_call_has_at_most_a_minute():
    assert tracking.PATIENCE_S <= 60


def test_disabled_does_not_import_wandb(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    assert not Tracker(Tracking("disabled"), tmp_path).mirror(record())
    assert not caplog.records and not list(tmp_path.iterdir())
    code = "import sys, experiments.sweep, experiments.tracking; print('wandb' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_without_wandb_a_sweep_is_not_tracked(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert not Tracker(Tracking("offline"), tmp_path).mirror(record())
    assert "Tracking is off: wandb cannot be imported" in caplog.text


def test_online_without_a_key_goes_on_offline(wandb, tmp_path, caplog):
    fake = wandb()
    assert Tracker(Tracking("online"), tmp_path).mirror(record())
    assert fake.runs[0].how["mode"] == "offline"
    assert caplog.messages == [
        "Tracking goes on offline: there is no key for api.wandb.ai (set WANDB_API_KEY or run `wandb login`)."
    ]


def test_online_without_a_server_goes_on_offline_before_wandb_starts(wandb, monkeypatch, caplog):
    fake = wandb()
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert usable_mode("online") == "offline" and not fake.runs
    assert "127.0.0.1 cannot be reached" in caplog.text


def test_online_with_key_and_server_stays_online(wandb, monkeypatch, tmp_path):
    import socket

    wandb()
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert usable_mode("online") == "online"


def test_offline_needs_no_account_no_network_and_no_terminal(tmp_path):
    pytest.importorskip("wandb")
    code = (
        "import json, pathlib, sys; from experiments.config import Tracking; from experiments.tracking import Tracker;"
        f"records = json.loads({json.dumps([record(), record('case-2', '2' * 64)])!r});"
        f"tracker = Tracker(Tracking(), pathlib.Path({str(tmp_path)!r}));"
        "sys.exit(not all([tracker.mirror(each) for each in records]))"
    )
    alone = ["unshare", "--map-root-user", "--net"]
    cut_off = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    done = subprocess.run(
        [*(alone if cut_off else []), sys.executable, "-c", code],
        cwd=ROOT, preexec_fn=lambda: os.close(0), capture_output=True, text=True,
        timeout=60, env=os.environ | {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"), key=lambda each: each.name[-1])
    names = ["case-1", "case-2"]
    for name, folder in zip(names, folders, strict=True):
        stored = next(folder.glob("*.wandb")).read_bytes()
        assert [each for each in names if each.encode() in stored] == [name]


def test_stored_records_are_mirrored_once(wandb, tmp_path, capsys):
    fake = wandb()
    for number in "12":
        store.write(tmp_path / "speed" / number / "record.json", record(f"case-{number}", number * 64))
    (tmp_path / "wandb" / f"offline-run-20260101_000000-{'1' * 24}").mkdir(parents=True)
    assert tracking.main(["mirror", str(tmp_path)]) == 0
    assert [run.how["name"] for run in fake.runs] == ["case-2"]
    assert capsys.readouterr().out == "1 records mirrored, 1 already were.\n"


def test_mirroring_says_where_it_stopped(wandb, tmp_path, capsys):
    wandb(fails="init")
    store.write(tmp_path / "speed" / "1" / "record.json", record())
    assert tracking.main(["mirror", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "0 of 1 records mirrored.\n"
    assert tracking.main(["mirror", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err == (
        f"error: Records are read from a folder or a jsonl file, and {tmp_path / 'nothing'} is neither.\n"
    )


def test_a_failing_tracker_costs_a_sweep_nothing(wandb, tmp_path, monkeypatch):
    from experiments import sweep
    from experiments.config import Experiment, Hardware, Measure, Settings
    from experiments.hardware import Machine
    from experiments.records import load
    from tests.experiments import fake_sweep

    wandb(fails="log")
    monkeypatch.setattr(sweep, "MEASURERS", fake_sweep.MEASURERS)
    experiment = Experiment("smoke", ("float32",), ("forward",), ("api",), (1,), (2,), (1, 2, 3))
    plan = Settings(
        experiment, Hardware("cpu", "cpu"), Measure(), Tracking("offline"), ("ours",), str(tmp_path / "out")
    )
    assert sweep.Sweep(plan, tmp_path, Machine("cpu")).run() == sweep.DONE
    assert len(load(tmp_path / "out")) == 3


def test_tags_say_hardware_choices_and_provenance():
    plain = record()
    assert tags(plain) == ["cpu", "speed", "T=128", "a CPU", "commit abc"]
    case = {"stem": "speed", "level": "kernel", "mode": "forward", "dtype": "bfloat16", "T": 64, "dim": -2}
    provenance = {"gpu": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0", "commit": "f" * 40, "dirty": True}
    found = tags({**record(status="error"), "case": case | {"lengths": "2x32"}, "provenance": provenance})
    assert found == [
        "cpu", "speed", "kernel", "forward", "bfloat16", "T=64", "channels last", "packed", "NVIDIA H200",
        "torch 2.11.0", "triton 3.6.0", "commit " + "f" * 12, "uncommitted changes", "failed",
    ]  # fmt: skip
    assert all(len(tag) <= 64 for tag in tags({**plain, "provenance": {"cpu": "x" * 90}})), "wandb refuses longer ones"


def test_losses_are_logged_beside_the_times_of_steps():
    trained = record()
    trained["providers"] = {"ours": {"status": "ok", "samples_ms": [1.0, 2.0], "losses": [3.0, 2.5]}}
    assert series(trained) == [{"ours/ms": 1.0, "ours/loss": 3.0}, {"ours/ms": 2.0, "ours/loss": 2.5}]


def test_a_run_holds_the_record_and_its_table_as_files_and_as_an_artifact(wandb, tmp_path):
    fake = wandb()
    assert Tracker(Tracking("offline"), tmp_path).mirror(record())
    (run,) = fake.runs
    (artifact,) = run.artifacts
    assert (artifact.name, artifact.kind) == (f"speed-{'1' * 24}", "record")
    assert run.saved == list(artifact.files) == ["record.json", "results.csv"]
    store.write(tmp_path / "record.json", record())
    assert artifact.files["record.json"] == (tmp_path / "record.json").read_text()
    head, *rows = artifact.files["results.csv"].splitlines()
    assert {"provider", "status", "median_ms"} <= set(head.split(",")) and len(rows) == 3


def test_figures_and_tables_are_logged_as_artifacts_of_one_run(wandb, tmp_path, capsys):
    fake, build = wandb(), tmp_path / "build"
    for name in ("figures/speed-h200.pdf", "tables/speed.tex", "paper.pdf", "main.tex"):
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).write_text(name)
    assert tracking.main(["figures", str(build), str(tmp_path)]) == 0
    (run,) = fake.runs
    assert run.how["group"] == "paper" and run.exit_code == 0
    assert [(each.name, each.kind, each.files) for each in run.artifacts] == [
        ("paper-figures", "paper", {"figures/speed-h200.pdf": "figures/speed-h200.pdf"}),
        ("paper-tables", "paper", {"tables/speed.tex": "tables/speed.tex"}),
        ("paper-paper", "paper", {"paper.pdf": "paper.pdf"}),
    ]
    assert capsys.readouterr().out == f"The figures and tables of {build} were logged.\n"
    assert tracking.main(["figures", str(tmp_path / "no"), str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: Figures are logged from a folder that `python -m paper` built, and {tmp_path / 'no'} has none.\n"
    )
    wandb(fails="init")
    assert tracking.main(["figures", str(build), str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"The figures and tables of {build} were not logged.\n"


def measured(case_id, key, at, **changes):
    """A record with a time."""
    made = record(case_id, key) | changes
    return made | {"provenance": made["provenance"] | {"measured_at": at}}


def files(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.json")}


def test_records_come_back_from_real_offline_runs_byte_by_byte(tmp_path):
    pytest.importorskip("wandb")
    swept, outputs = tmp_path / "swept", tmp_path / "rebuilt"
    for number, values in (("1", [1.5, float("nan")]), ("2", [0.1])):
        made = measured(f"case-{number}", number * 64, "2026-01-01", values=values)
        store.write(store.folder(swept, "speed", f"case-{number}", "cpu") / store.RECORD, made)
    words = [sys.executable, "-m", "experiments.tracking"]
    mirrored = subprocess.run([*words, "mirror", str(swept)], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert (mirrored.returncode, mirrored.stdout) == (0, "2 records mirrored, 0 already were.\n"), mirrored.stderr
    assert not list((tmp_path / ".local").rglob("record.json")), "all of a run lies in the outputs"
    for said in ("2 records written, 0 were there, 0 unusable", "0 records written, 2 were there, 0 unusable"):
        again = subprocess.run(
            [*words, "rebuild", str(swept / "wandb"), str(outputs)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (again.returncode, again.stdout) == (0, f"2 runs: {said}.\n"), again.stderr
    assert files(outputs / "speed") == files(swept / "speed") and len(files(outputs)) == 2


def test_the_newest_measurement_of_a_case_becomes_its_record(tmp_path):
    early, late = measured("case-1", "1" * 64, "2026-01-01"), measured("case-1", "2" * 64, "2026-01-02")
    repeated = measured("case-1", "2" * 64, "2026-01-03")
    found = [(each["key"], json.dumps(each)) for each in (repeated, early, late)]
    assert rebuild.write(found, tmp_path) == (3, [])
    folder = store.folder(tmp_path, "speed", "case-1", "cpu")
    assert store.read(folder / store.RECORD) == repeated
    assert store.read(folder / f"replaced-{'1' * 12}.json") == early
    assert rebuild.write(found[1:], tmp_path) == (0, []), "what is there is newer"


def test_runs_without_a_usable_record_are_named(tmp_path, capsys):
    for name, text in (("torn", '{"schema": 1'), ("old", '{"schema": 0}'), ("part", '{"schema": 1, "stem": "speed"}')):
        folder = tmp_path / "wandb" / f"offline-run-20260101_000000-{name}" / "files"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(text)
    assert tracking.main(["rebuild", str(tmp_path / "wandb"), str(tmp_path / "outputs")]) == 1
    out, err = capsys.readouterr()
    assert out == "3 runs: 0 records written, 0 were there, 3 unusable.\n"
    assert "-torn: its record is torn" in err and "-old: its record has another schema than 1.\n" in err
    assert "-part: its record has no hardware, case_id" in err
    nowhere = tmp_path / "no"
    assert tracking.main(["rebuild", str(nowhere), str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: Records are rebuilt from a folder of wandb runs such as outputs/wandb, and {nowhere} is none.\n"
    )


def test_records_come_back_from_a_server(wandb, tmp_path, monkeypatch, capsys):
    fake, asked = wandb(), []

    class File:
        def __init__(self, text):
            self.text = text

        def download(self, root, replace):
            path = pathlib.Path(root) / "record.json"
            path.write_text(self.text)
            return path.open()

    def run(name, *texts):
        return types.SimpleNamespace(id=name, files=lambda names: [File(text) for text in texts if names])

    class Api:
        def __init__(self, timeout):
            assert 0 < timeout <= 60

        def runs(self, project):
            asked.append(project)
            return [run("a", json.dumps(measured("case-1", "1" * 64, "2026-01-01"))), run("figures")]

    fake.Api = Api
    assert tracking.main(["rebuild", "me/linear-scan", str(tmp_path), "--online"]) == 0
    assert asked == ["me/linear-scan"]
    assert capsys.readouterr().out == "1 runs: 1 records written, 0 were there, 0 unusable.\n"
    assert store.read(store.folder(tmp_path, "speed", "case-1", "cpu") / store.RECORD)["key"] == "1" * 64

    def refuse(self, project):
        raise RuntimeError("no such project")

    monkeypatch.setattr(Api, "runs", refuse)
    assert tracking.main(["rebuild", "me/other", str(tmp_path), "--online"]) == 2
    assert capsys.readouterr().err == ("error: The runs of me/other cannot be read (RuntimeError: no such project).\n")
