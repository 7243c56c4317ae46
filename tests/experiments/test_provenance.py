"""Where a number comes from: sources with and without git, and a GPU that can or cannot be asked."""

import subprocess
import sys
import types

import pytest

from experiments import gpu_state, provenance
from experiments.hardware import ROOT, Machine

FOLDERS = ("scan", "experiments", "conf")


@pytest.fixture
def tree(tmp_path):
    """A small project under git with one commit."""
    for folder, name in (("scan", "a.py"), ("scan/kernels", "b.py"), ("experiments", "c.py"), ("conf", "d.yaml")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text("read me\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(tmp_path, *words)
    return tmp_path


def git(root, *words):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", root, *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_clean_tree_has_a_commit(tree):
    found = provenance.sources(tree)
    assert found["commit"] == git(tree, "rev-parse", "HEAD") and found["dirty"] is False
    committed = provenance.sources_at(tree, "HEAD", FOLDERS)
    assert set(committed) == {"scan/a.py", "scan/kernels/b.py", "experiments/c.py", "conf/d.yaml"}
    assert provenance.hash_of_files(committed) == found["measured_sources_hash"]
    assert provenance.sources_at(tree, "0" * 40, FOLDERS) is None


@pytest.mark.parametrize("file", ["scan/a.py", "experiments/c.py", "conf/d.yaml", "scan/new.py"])
def test_a_change_to_what_is_measured_is_dirty(tree, file):
    clean = provenance.sources(tree)
    (tree / file).write_text("changed\n")
    found = provenance.sources(tree)
    assert found["dirty"] is True
    assert (found["source_hash"] != clean["source_hash"]) == file.startswith("scan")
    assert found["measured_sources_hash"] != clean["measured_sources_hash"]


def test_a_change_elsewhere_is_not(tree):
    (tree / "README.md").write_text("changed\n")
    assert provenance.sources(tree)["dirty"] is False


def test_a_renamed_source_changes_the_hash(tree):
    before = provenance.sources(tree)["source_hash"]
    (tree / "scan" / "a.py").rename(tree / "scan" / "z.py")
    assert provenance.sources(tree)["source_hash"] != before


@pytest.mark.parametrize("commit", ["abc123", None])
def test_a_copied_tree_takes_its_commit_from_the_environment(tree, tmp_path_factory, monkeypatch, commit):
    copied = tmp_path_factory.mktemp("copy")
    subprocess.run(["cp", "-r", *(str(tree / folder) for folder in FOLDERS), str(copied)], check=True)
    monkeypatch.delenv("SCAN_COMMIT", raising=False)
    if commit:
        monkeypatch.setenv("SCAN_COMMIT", commit)
    found = provenance.sources(copied)
    assert (found["commit"], found["dirty"]) == (commit, None)
    assert found["source_hash"] == provenance.sources(tree)["source_hash"]


def test_a_copy_inside_another_repository_does_not_take_its_commit(tree, monkeypatch):
    monkeypatch.delenv("SCAN_COMMIT", raising=False)
    inner = tree / "vendored"
    (inner / "scan").mkdir(parents=True)
    assert provenance.sources(inner)["commit"] is None


def test_without_git_the_sources_are_still_hashed(tree, monkeypatch):
    expected = provenance.sources(tree)["source_hash"]
    monkeypatch.setenv("PATH", "")
    found = provenance.sources(tree)
    assert found["commit"] is None and found["source_hash"] == expected


def test_this_machine():
    found = provenance.collect_provenance(Machine("cpu"))
    assert found["gpu"] is None and found["cpu"] and found["torch"] and found["cpu_threads"] >= 1
    assert set(provenance.measured_now()) == {"measured_at"}


@pytest.mark.parametrize("fact", provenance.KEY_FACTS)
def test_every_fact_of_the_key_changes_it(fact):
    facts = dict.fromkeys(provenance.KEY_FACTS, "x")
    assert provenance.key_of({}, facts, {}) != provenance.key_of({}, facts | {fact: "y"}, {})


def test_the_key_ignores_the_moment_and_the_commit():
    facts = dict.fromkeys(provenance.KEY_FACTS, "x")
    later = facts | {"measured_at": "later", "commit": "other", "sm_clock_mhz": 1}
    assert provenance.key_of({"T": 1}, facts, {"a": 1}) == provenance.key_of({"T": 1}, later, {"a": 1})
    assert provenance.key_of({"T": 1}, facts, {"a": 1}) != provenance.key_of({"T": 2}, facts, {"a": 1})
    assert provenance.key_of({"T": 1}, facts, {"a": 1}) != provenance.key_of({"T": 1}, facts, {"a": 2})


def test_editing_what_changes_a_number_changes_the_measuring_hash(tree):
    before = provenance.sources(tree)["measuring_hash"]
    for name in ("timing.py", "providers/fla.py"):
        file = tree / "experiments" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("# edited\n")
        after = provenance.sources(tree)["measuring_hash"]
        assert after != before
        before = after
    for name in ("experiments/progress.py", "scan/other.py", "conf/other.yaml"):
        (tree / name).write_text("# edited: 1\n")
    assert provenance.sources(tree)["measuring_hash"] == before


def test_everything_that_is_named_as_measuring_exists():
    for name in provenance.MEASURING:
        assert (ROOT / "experiments" / name).exists()


def test_slow_answers_about_the_gpu_count_for_longer(monkeypatch):
    now, took, asked = [100.0], [1.0], []

    def answer(uuid):
        asked.append(uuid)
        now[0] += took[0]
        return {"sm_clock_mhz": len(asked)}

    monkeypatch.setattr(gpu_state, "gpu_state", answer)
    monkeypatch.setattr(gpu_state.time, "monotonic", lambda: now[0])
    state = gpu_state.GpuState("abc")
    assert state.now() == state.now() == {"sm_clock_mhz": 1}
    now[0] += 19
    assert state.now() == {"sm_clock_mhz": 1}
    now[0] += 2
    took[0] = 0.001
    assert state.now() == {"sm_clock_mhz": 2}
    now[0] += 0.1
    assert state.now() == {"sm_clock_mhz": 3} and asked == ["abc"] * 3


def test_nvml_is_asked_first(monkeypatch):
    nvml = types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-abc": "handle"}[uuid],
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetClockInfo=lambda handle, which: {1: 1980, 2: 3201}[which],
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [types.SimpleNamespace(pid=7)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu_state.os, "getpid", lambda: 7)
    assert gpu_state.gpu_state("abc") == {
        "driver": "580.1",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "other_gpu_processes": [],
        "gpu_state_reason": None,
    }


def test_nvidia_smi_is_asked_next(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$1" in *driver*) echo "580.2, 1500, 2600";; *) echo 11; echo 12;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu_state.os, "getpid", lambda: 11)
    found = gpu_state.gpu_state("GPU-abc")
    assert (found["driver"], found["sm_clock_mhz"], found["memory_clock_mhz"]) == ("580.2", 1500, 2600)
    assert found["other_gpu_processes"] == [12]


def test_nobody_to_ask_leaves_none_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "")
    found = gpu_state.gpu_state("abc")
    assert [found[name] for name in gpu_state.FACTS] == [None] * 4
    assert "nvml: " in found["gpu_state_reason"] and "nvidia_smi: " in found["gpu_state_reason"]


def test_processes_that_a_container_hides():
    assert gpu_state.other_processes([], 5) == ([], None)
    assert gpu_state.other_processes([5, 9], 5) == ([9], None)
    assert gpu_state.other_processes([1001], 5)[0] == []
    others, reason = gpu_state.other_processes([1001, 1002], 5)
    assert others is None
    assert reason == "2 processes are on the GPU, none under the id that this process has in its container"
