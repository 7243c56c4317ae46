"""The workflows: pinned actions, no foreign code on our machine, versions and commands that exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from container.__main__ import VERBS

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Known actions by commit; the comment behind `uses` names the version.
ACTIONS = {
    "actions/checkout": ("11bd71901bbe5b1630ceea73d27597364c9af683", "v4.2.2"),
    "actions/setup-python": ("a26af69be951a213d495a4c3e4e4022e16d87065", "v5.6.0"),
    "actions/upload-artifact": ("ea165f8d65b6e75b540449e92b4886f43607fa02", "v4.6.2"),
    "docker/setup-buildx-action": ("e468171a9de216ec08956ac3ada2f0791b6bd435", "v3.11.1"),
    "docker/build-push-action": ("263435318d21b8e681c14492fe198d362a7d2c83", "v6.18.0"),
}


def _load(file: Path) -> dict[Any, Any]:
    return yaml.safe_load(file.read_text())


def _on(workflow: dict[Any, Any]) -> dict[str, Any]:
    # YAML 1.1 reads the word `on` as true.
    return workflow[True]


STEPS = [
    pytest.param(step["run"], id=f"{file.stem}-{job}-{number}")
    for file in FILES
    for job, what in _load(file)["jobs"].items()
    for number, step in enumerate(what["steps"])
    if "run" in step
]
PINS = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements" / "dev.txt").read_text(), re.M))
CI, GPU, RELEASE = (_load(ROOT / ".github" / "workflows" / f"{name}.yml") for name in ("ci", "gpu", "release"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    lines = re.findall(r"uses: (.*)", file.read_text())
    assert lines
    for line in lines:
        found = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v[\d.]+)", line)
        assert found and ACTIONS[found[1]] == (found[2], found[3]), line


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_job_has_a_limit_and_few_rights(file: Path) -> None:
    workflow = _load(file)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert set(job.get("permissions", {})) <= {"contents"}


@pytest.mark.parametrize("script", STEPS)
def test_steps_are_shell_without_expressions_of_foreign_text(script: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    # What an expression inserts is not quoted: values go through the environment.
    assert "${{" not in script


def test_ci_covers_every_python_with_every_pair() -> None:
    matrix = CI["jobs"]["tests"]["strategy"]["matrix"]
    changing = ("torch", "triton", "setuptools", "numpy")
    assert {name: matrix[name] for name in changing} == {name: [PINS[name]] for name in changing}
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == pythons
    lock = (ROOT / "requirements" / "image.txt").read_text()
    assert [each["python"] for each in matrix["include"]] == pythons
    for each in matrix["include"]:
        for name in changing:
            assert f"\n{name}=={each[name]} " in lock


def test_ci_replaces_pins_that_are_there() -> None:
    (script,) = [step["run"] for step in CI["jobs"]["tests"]["steps"] if "sed" in step.get("run", "")]
    for name in re.findall(r"s/\^(\w+)==", script):
        assert name in PINS


def test_ci_runs_what_ci_run_runs() -> None:
    assert any("bash .ci/run" in step.get("run", "") for step in CI["jobs"]["tests"]["steps"])
    scripts = [step["run"] for step in CI["jobs"]["codegen"]["steps"] if "run" in step]
    assert any("triton==3.9.0" in script for script in scripts) and scripts[-1].endswith("-m codegen")


def test_no_fork_reaches_the_gpu() -> None:
    assert "pull_request_target" not in _on(GPU)
    (job,) = GPU["jobs"].values()
    assert "self-hosted" in job["runs-on"]
    assert job["if"] == (
        "github.event_name != 'pull_request' || github.event.pull_request.head.repo.full_name == github.repository"
    )
    for workflow in (CI, RELEASE):
        assert all("self-hosted" not in other["runs-on"] for other in workflow["jobs"].values())


def test_gpu_jobs_wait_for_each_other() -> None:
    assert GPU["concurrency"] == {"group": "gpu", "cancel-in-progress": False}


def test_gpu_filter_names_what_exists() -> None:
    paths = _on(GPU)["push"]["paths"]
    assert paths == _on(GPU)["pull_request"]["paths"]
    for path in paths:
        assert list(ROOT.glob(path.removesuffix("/**"))), path


def test_gpu_steps_use_the_verbs_of_the_image() -> None:
    scripts = "\n".join(step["run"] for step in GPU["jobs"]["gpu"]["steps"] if "run" in step)
    verbs = re.findall(r"^\$RUN (\w+)", scripts, re.M)
    assert set(verbs) <= set(VERBS)
    assert verbs == ["smoke", "test", "experiments", "experiments", "reproduce"]
    uploads = [step for step in GPU["jobs"]["gpu"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert [step["if"] for step in uploads] == ["always()"]
    assert "-v $PWD/outputs:/outputs" in scripts and uploads[0]["with"]["path"] == "outputs"
    assert "$RUN test -m gpu\n" in scripts and "\n$RUN reproduce --quick" in scripts
    assert scripts.count("$RUN experiments experiment=smoke ") == 2
    assert {"paper/claims.yaml", "paper/claims.py"} <= {
        file.relative_to(ROOT).as_posix() for path in _on(GPU)["push"]["paths"] for file in ROOT.glob(path)
    }


def test_release_checks_the_version_of_the_tag() -> None:
    scripts = [step["run"] for step in RELEASE["jobs"]["build"]["steps"] if "run" in step]
    assert any("linear_scan-${GITHUB_REF_NAME#v}-py3-none-any.whl" in script for script in scripts)
    assert _on(RELEASE) == {"push": {"tags": ["v*"]}}
