"""Whatever ends a sweep, at whatever moment: the same command started again has every record once, and whole."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import store, sweep
from experiments.config import Experiment, Hardware, Measure, Settings, Tracking
from experiments.hardware import ROOT

KILLS, CASES = 20, 60
FAKE = (sys.executable, "-m", "tests.experiments.fake_sweep")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """Lock files of this test alone, and as many threads in every process: their number is a part of the key."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "locks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def plan_of(tmp_path: Path, cases: int, tracking: str = "disabled", target_ms: float = 0.1) -> Settings:
    experiment = Experiment("smoke", ("float32",), ("forward",), ("api",), (1,), (2,), tuple(range(1, cases + 1)))
    measure = Measure(target_ms=target_ms, warmup_ms=0.1)
    outputs = str(tmp_path / "outputs")
    return Settings(experiment, Hardware("cpu", "cpu"), measure, Tracking(tracking), ("ours", "sequential"), outputs)


def start(plan: Settings, run_folder: Path, *fake: str, before: str = "", **how) -> subprocess.Popen:
    """The supervisor of a sweep, in a session of its own; the sweep measures for real unless a `fake` one is named."""
    run_folder.mkdir()
    code = (
        f"import json, pathlib, sys; {before}\n"
        "from experiments.config import Settings; from experiments.supervise import SWEEP, supervise\n"
        f"plan = Settings.from_dict(json.loads({json.dumps(plan.to_dict())!r}))\n"
        f"sys.exit(supervise(plan, pathlib.Path({str(run_folder)!r}), {fake!r} or SWEEP))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True, **pipes, **how)


def stored(plan: Settings) -> dict[str, str]:
    """The text of every record by its folder; each is whole, and none was measured a second time under another key."""
    files = sorted(Path(plan.outputs).rglob("record.json"))
    for file in files:
        record = json.loads(file.read_text())
        assert file.parent.name == f"{record['case_id']}-cpu" and set(record["providers"]) == set(plan.providers)
    assert not list(Path(plan.outputs).rglob("replaced-*"))
    return {file.parent.name: file.read_text() for file in files}


def fine(text: str) -> bool:
    """Whether a record holds a result of every provider."""
    return not store.failures(json.loads(text))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def finished(plan: Settings, sweeping: subprocess.Popen, kept: dict[str, str]) -> None:
    """A sweep that came to its end has one sound record of every case, and those that were there as they were."""
    out, err = sweeping.communicate()
    assert sweeping.returncode == sweep.DONE, out + err
    final = stored(plan)
    assert sorted(final) == sorted(f"{case.id}-cpu" for case in plan.experiment.cases())
    assert all(map(fine, final.values())) and {name: final[name] for name in kept} == kept
    assert out.splitlines()[-1].startswith(f"{len(final)} cases: ") and out.splitlines()[-1].endswith(", 0 failed.")
    assert not list(Path(plan.outputs).rglob("*.tmp"))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks /proc for the processes to kill")
def test_twenty_kills_lose_double_and_tear_nothing(tmp_path):
    """The supervisor, the process that measures, or both are killed at moments that nothing chooses."""
    draw, moments, starts, kills = random.Random(), [], 0, 0
    plan, kept = plan_of(tmp_path, CASES, target_ms=4), {}
    while kills < KILLS:
        starts += 1
        sweeping = start(plan, tmp_path / f"run-{starts}")
        # One in five while it starts, the others while it measures.
        log, measures = tmp_path / f"run-{starts}" / "events.log", draw.random() > 0.2
        while measures and sweeping.poll() is None and not (log.exists() and "case started" in log.read_text()):
            time.sleep(0.01)
        moments.append(draw.uniform(0, 0.8))
        try:
            sweeping.wait(moments[-1])
        except subprocess.TimeoutExpired:
            below = children(sweeping.pid)
        else:  # all was measured before the kill: go on in a folder where nothing is
            finished(plan, sweeping, kept)
            plan, kept = plan_of(tmp_path / f"again-{starts}", CASES, target_ms=4), {}
            continue
        whom = draw.choice(["both", "measuring", "supervisor"]) if below else "both"
        if whom == "measuring":
            os.kill(below[0], signal.SIGKILL)  # the supervisor goes on until it is killed as well
            time.sleep(draw.uniform(0, 1))
        if whom == "supervisor":
            os.kill(sweeping.pid, signal.SIGKILL)  # the process that measures ends its case and stops by itself
        else:
            os.killpg(sweeping.pid, signal.SIGKILL)
        sweeping.communicate()
        kills += 1
        now = stored(plan)
        assert {name: now.get(name) for name in kept} == kept, f"seconds before the kills: {moments}"
        kept = {name: text for name, text in now.items() if fine(text)}
    finished(plan, start(plan, tmp_path / "last"), kept)


def limited(size: int):
    """No file of the process and of those that it starts may grow beyond so many bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("full", ["events", "record"])
def test_a_full_disk_ends_a_sweep_in_one_sentence_and_loses_nothing(tmp_path, full):
    plan = plan_of(tmp_path, 8)
    whole = start(plan_of(tmp_path / "whole", 8), tmp_path / "measured", *FAKE) if full == "record" else None
    size = 12_000
    if whole is not None:
        assert whole.communicate() and whole.returncode == sweep.DONE
        size = min(len(text) for text in stored(plan_of(tmp_path / "whole", 8)).values()) - 1
    ended = start(plan, tmp_path / "run", *FAKE, preexec_fn=limited(size))
    out, err = ended.communicate()
    assert ended.returncode == sweep.FAILED and "Traceback" not in err, err
    assert err.splitlines()[-1] == (
        f"error: There is no room left to write below {plan.outputs} (File too large); make room and start the same "
        "command again, every record that was written is kept."
    )
    # What was being measured when the disk was full is measured again, even if its record found room.
    before = {name: text for name, text in stored(plan).items() if fine(text)}
    assert (0 < len(before) < 8) if full == "events" else not before
    assert not list(Path(plan.outputs).rglob("*.tmp"))
    again = start(plan, tmp_path / "again", *FAKE)
    out, err = again.communicate()
    assert again.returncode == sweep.DONE, err
    assert f"{8 - len(before)} measured, {len(before)} reused" in out
    assert len(stored(plan)) == 8 and {name: stored(plan)[name] for name in before} == before


DEAD = {
    "import": "raise ImportError('no wandb today')",
    "init": "def init(**how): raise RuntimeError('no run today')",
    "hanging init": "import time\ndef init(**how): time.sleep(600)",
    "hanging finish": "import time\nclass Run:\n    summary = {}\n    def log(self, values): pass\n"
    "    def finish(self, exit_code): time.sleep(600)\ndef init(**how): return Run()",
}


@pytest.mark.parametrize("how", DEAD)
def test_a_dead_wandb_loses_nothing_and_keeps_no_process(tmp_path, monkeypatch, how):
    package = tmp_path / "packages"
    package.mkdir()
    settings = "\ndef Settings(**settings): return settings\n" if how != "import" else ""
    (package / "wandb.py").write_text(DEAD[how] + settings)
    patient = tmp_path / "impatient_sweep.py"
    patient.write_text(
        "import os, sys\nfrom experiments import sweep, tracking\nfrom tests.experiments import fake_sweep\n"
        "tracking.PATIENCE_S = 0.5\nsweep.MEASURERS = {stem: sweep.Measurer('tests.experiments.fake_sweep', each.times)"
        " for stem, each in fake_sweep.MEASURERS.items()}\n"
        "status = sweep.main(sys.argv[1:])\nsys.stdout.flush()\nos._exit(status)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), str(ROOT)]))
    plan = plan_of(tmp_path, 3, tracking="offline")
    ended = start(plan, tmp_path / "run", sys.executable, str(patient))
    out, err = ended.communicate(timeout=60)
    assert ended.returncode == sweep.DONE, err
    assert len(stored(plan)) == 3 and all(map(fine, stored(plan).values()))
    assert "Traceback" not in err and "Tracking is off" in out + err
