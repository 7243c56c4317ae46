"""Sweeps side by side: each alone on its GPU, in readable lines, and none goes on after an interruption."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments import processes, reproduce
from experiments.config import ConfigError
from experiments.hardware import Machine
from experiments.processes import Job, Steps, gpus_to_use, number_of_gpus

H200 = Machine("cuda", "NVIDIA H200", 139.8)
H100 = Machine("cuda", "NVIDIA H100", 79.2)
# Says on which GPU it is, meets the others, says so, and ends with the status it is given.
SWEEP = """
import os, pathlib, sys, time
folder, name, others, status = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
(folder / name).touch()
until = time.monotonic() + 60
while len(list(folder.iterdir())) < others and time.monotonic() < until:
    time.sleep(0.01)
print("met", others, "é", file=sys.stderr, flush=True)
sys.stdout.write("no end of line")
sys.exit(status)
"""


@pytest.fixture(autouse=True)
def no_gpus_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.02)


def job(folder, name, others=0, status=0):
    return Job(name, f"The sweep {name}", [sys.executable, "-c", SWEEP, str(folder), name, str(others), str(status)])


def test_two_sweeps_run_at_a_time_and_an_error_in_one_loses_no_other(tmp_path, capfd):
    steps = Steps()
    sweeps = [job(tmp_path, "a", others=2, status=3), job(tmp_path, "b", others=2), job(tmp_path, "c", others=3)]
    steps.run_side_by_side(iter(sweeps), ["4", "GPU-x"])
    assert {step.title: step.status for step in steps.done} == {"The sweep a": 3, "The sweep b": 0, "The sweep c": 0}
    lines = capfd.readouterr().out.splitlines()
    for name in "abc":
        own = [line for line in lines if line.startswith(f"{name} | ")]
        assert own[1:] == [f"{name} | met {3 if name == 'c' else 2} é", f"{name} | no end of line"]
    assert {"a | on 4", "b | on GPU-x"} < set(lines) and {"c | on 4", "c | on GPU-x"} & set(lines)
    assert lines.index("== The sweep b") < lines.index("a | met 2 é")
    command = lines[lines.index("== The sweep b") + 1]
    assert command.startswith(f"CUDA_VISIBLE_DEVICES=GPU-x {sys.executable} -c")
    assert "== The sweep a: 0 s, exit status 3" in lines
    assert lines.index("== The sweep c") > min(lines.index(f"{name} | no end of line") for name in "ab")


def test_one_gpu_takes_one_sweep_at_a_time(tmp_path, capfd):
    Steps().run_side_by_side(iter([job(tmp_path, "a"), job(tmp_path, "b")]), ["0"])
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith(("==", "a |", "b |"))]
    assert [line[:12] for line in lines] == [
        "== The sweep", "a | on 0", "a | met 0 é", "a | no end o", "== The sweep",
        "== The sweep", "b | on 0", "b | met 0 é", "b | no end o", "== The sweep",
    ]  # fmt: skip


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interruption_ends_every_sweep_and_says_how_to_go_on(tmp_path, stubborn, sent, gpus):
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" if stubborn else ""
    sweep = f"{ignoring}\nimport os, time\nprint('is', os.getpid(), flush=True)\ntime.sleep(600)"
    script = (
        "import sys\n"
        "from experiments import processes, reproduce\n"
        "from experiments.hardware import Machine\n"
        "processes.GRACE_S = 0.5\n"
        "reproduce.ask_these_machines = lambda: [Machine('cuda', 'NVIDIA H200')] * 2\n"
        f"reproduce.sweep_command = lambda *given: [sys.executable, '-c', {sweep!r}]\n"
        f"sys.exit(reproduce.main(['--gpus', '{gpus}']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=reproduce.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        found: list[int] = []
        for line in process.stdout:
            found += [int(each) for each in re.findall(r"^(?:\w+ [|] )?is (\d+)$", line)]
            if len(found) == gpus:
                break
        process.send_signal(sent)
        assert process.wait(60) == 130
        said = process.stderr.read()
        # One sweep at a time writes to the same place.
        assert said.endswith("Interrupted; the same command goes on from here.\n") and (
            gpus == 1 or said.count("\n") == 1
        )
    for each in found:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def test_what_cannot_start_ends_the_others(tmp_path):
    began = time.monotonic()
    waiting = Job("a", "The sweep a", [sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(FileNotFoundError):
        Steps().run_side_by_side(iter([waiting, Job("b", "The sweep b", [str(tmp_path / "none")])]), ["0", "1"])
    assert time.monotonic() - began < 60


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    """A machine of two H200, with fake sweeps: two that meet, two with host times; which of them fails can be set."""
    statuses: dict[str, int] = {}
    for name in ("OUTPUTS", "RESULTS", "BUILD"):
        monkeypatch.setattr(reproduce, name, tmp_path / name)
    (tmp_path / "met").mkdir()
    monkeypatch.setattr(reproduce, "stems", lambda: ["layouts", "speed", "precision", "memory"])
    monkeypatch.setattr(reproduce, "ask_these_machines", lambda: [H200, H200])
    monkeypatch.setattr(processes, "run", lambda command: 0)
    others = {"layouts": 2, "precision": 2, "speed": 3, "memory": 4}
    monkeypatch.setattr(
        reproduce,
        "sweep_command",
        lambda stem, *given: job(tmp_path / "met", stem, others[stem], statuses.get(stem, 0)).command,
    )
    return statuses


@pytest.mark.parametrize("failed", [False, True])
def test_a_reproduction_on_two_gpus(two_gpus, capfd, failed):
    two_gpus["speed"] = int(failed)
    assert reproduce.main(["--gpus", "2"]) == failed
    shown = capfd.readouterr().out
    lines = [line for line in shown.splitlines() if re.match(r"== The sweep|\w+ [|] (on|met)", line)]
    assert {"layouts | on 0", "precision | on 1", "layouts | met 2 é", "precision | met 2 é"} < set(lines[:8])
    # What has host times waits until both have ended, and nothing runs beside it.
    assert [line.partition(":")[0] for line in lines[8:]] == [
        "== The sweep speed", "speed | on 0", "speed | met 3 é", "== The sweep speed",
        "== The sweep memory", "memory | on 0", "memory | met 4 é", "== The sweep memory",
    ]  # fmt: skip
    assert "Host times" not in shown
    failure = "The sweep speed ended with exit status 1; its own lines above say why.\n"
    assert (failure in shown) == failed and "== The claims: 0 s, exit status 0\n" in shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("3", "--gpus 3 expects 3 GPUs, but PyTorch sees 2 here; take --gpus 2."),
        ("0", "--gpus expects how many GPUs to use, a whole number from 1 on, got '0'; leave it out for one."),
        ("x", "--gpus expects how many GPUs to use, a whole number from 1 on, got 'x'; leave it out for one."),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_starts(two_gpus, capfd, asked, said):
    assert reproduce.main(["--gpus", asked]) == 2
    assert capfd.readouterr() == ("", f"error: {said}\n")


def test_host_times_follow_from_the_levels_of_cases(monkeypatch):
    counts = {stem: reproduce.host_counts(stem, H200, quick=False) for stem in reproduce.stems()}
    assert {stem for stem, alone in counts.items() if not alone} == {"layouts", "few_rows", "precision"}
    assert reproduce.host_counts("bidirectional", H200, quick=True)
    monkeypatch.setitem(reproduce.QUICK, "bidirectional", ["~experiment.also"])
    assert not reproduce.host_counts("bidirectional", H200, quick=True)
    monkeypatch.setattr("experiments.compose.ask_this_machine", lambda: pytest.fail("PyTorch was asked again"))
    assert reproduce.host_counts("speed", Machine("cuda", "Another GPU", 8.0), quick=True)


def test_figures_alone_need_no_gpus(two_gpus, monkeypatch, capfd):
    monkeypatch.setattr(reproduce, "ask_these_machines", lambda: pytest.fail("PyTorch was asked"))
    assert reproduce.main(["--figures-only", "--gpus", "2"]) == 0
    assert "Host times" not in capfd.readouterr().out


@pytest.mark.parametrize("asked", ["", "-1", "1.5", "²", "two"])
def test_a_number_of_gpus_is_a_whole_one(asked):
    with pytest.raises(ConfigError, match=re.escape(f"got {asked!r}")):
        number_of_gpus(asked)
    assert number_of_gpus("12") == 12


def test_the_gpus_that_are_visible_are_divided(monkeypatch):
    assert gpus_to_use(2, [H200] * 3) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-ab,-1,3")
    assert gpus_to_use(2, [H200] * 2) == ["5", "GPU-ab"]


@pytest.mark.parametrize(
    ("visible", "found", "said"),
    [
        (None, [Machine("cpu")], "but PyTorch sees none here; leave --gpus out."),
        (None, [H200], "but PyTorch sees 1 here; leave --gpus out."),
        ("2", [H200], "sees 1 here; leave --gpus out, or name more in CUDA_VISIBLE_DEVICES, which is '2'."),
        (None, [H200, H100], "of one kind, but the first 2 here are of 2: NVIDIA H200, NVIDIA H100; name those of one "
         "kind in CUDA_VISIBLE_DEVICES."),
    ],
)  # fmt: skip
def test_gpus_that_are_missing_or_differ_are_said(monkeypatch, visible, found, said):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError, match=re.escape(said)):
        gpus_to_use(2, found)
