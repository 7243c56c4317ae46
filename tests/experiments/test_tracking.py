"""The mirror: one wandb run a record, and nothing that wandb does can lose or stop a measurement."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import types

import pytest

from experiments import store, tracking
from experiments.config import Tracking
from experiments.hardware import ROOT
from experiments.tracking import Tracker, series, summary, usable_mode


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


class FakeWandb(types.ModuleType):
    """Remembers every run; `fails` names the step that raises, `hangs` one that does not return."""

    def __init__(self, fails="", hangs=""):
        super().__init__("wandb")
        self.fails, self.hangs, self.runs, self.never = fails, hangs, [], threading.Event()
        self.Settings = lambda **settings: settings

    def step(self, name):
        if name == self.fails:
            raise RuntimeError(f"{name} failed")
        if name == self.hangs:
            self.never.wait(30)

    def init(self, **how):
        self.step("init")
        run = types.SimpleNamespace(how=how, logged=[], exit_code=None, summary={})

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
    assert first["tags"] == ["cpu", "speed"] and first["config"]["provenance"]["commit"] == "abc"
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
    assert not tracker.mirror(record()) and not tracker.mirror(record())
    assert "wandb gave no answer for 0.2 s" in caplog.text
    fake.never.set()


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
