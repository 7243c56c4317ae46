"""Promises of the repository as a whole: package, imports, pinned versions and what no tracked file may hold."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import scan
from experiments import provenance
from experiments.compose import compose, settings_of
from experiments.records import load
from experiments.reproduce import stems

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(work|root|home/\w+|opt/(pypi|wheels)|tmp/\w+)\b",
    "the host of a package index": r"\b(pypi|pythonhosted|anaconda|download\.pytorch)\.org\b|--(extra-)?index-url",
}


def _python(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process as a user starts it, which is not in Triton's interpreter."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=inherited | environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout, so nothing says which files belong to it")
    return [file for name in listing.stdout.split("\0") if name and (file := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of everything that stands beside the package."""
    source = tmp_path_factory.mktemp("wheel") / "source"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "outputs", "multirun", "wandb")
    shutil.copytree(ROOT, source, ignore=hidden)
    built = _python("-c", "from setuptools.build_meta import build_wheel; build_wheel('dist')", cwd=source)
    assert built.returncode == 0, built.stderr
    (found,) = (source / "dist").glob("*.whl")
    return found


def test_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    library = {str(file.relative_to(ROOT)) for file in (ROOT / "scan").rglob("*.py")} | {"scan/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == library
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_version_has_one_source(wheel: Path) -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert wheel.name == f"linear_scan-{scan.__version__}-py3-none-any.whl"
    assert f"\nversion: {scan.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {scan.__version__}" in (ROOT / "CHANGELOG.md").read_text()


NOTHING_BUT_TORCH = """
import sys
for name in ("triton", "hydra", "wandb", "pandas", "matplotlib", "numpy"):
    sys.modules[name] = None
import torch, scan
gates, tokens = torch.full((1, 3), 0.5, requires_grad=True), torch.ones(1, 3)
states = scan.linear_scan(gates, tokens).states
states.sum().backward()
print(torch.cuda.is_available(), states.tolist(), gates.grad.tolist())
"""


def test_import_and_use_with_neither_gpu_nor_triton() -> None:
    # Without visible devices PyTorch loads no driver; None in sys.modules makes an import fail as if not installed.
    done = _python("-c", NOTHING_BUT_TORCH, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False [[1.0, 1.5, 1.75]] [[0.0, 1.5, 1.5]]"


def test_import_alone_loads_no_triton() -> None:
    loaded = "import sys, torch; before = 'triton' in sys.modules; import scan; print(before, 'triton' in sys.modules)"
    assert _python("-c", loaded, CUDA_VISIBLE_DEVICES="").stdout.strip() == "False False"


def test_import_rules_are_kept() -> None:
    done = _python("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert done.returncode == 0, done.stdout + done.stderr


def _name(requirement: str) -> str:
    """The normalised name of a requirement."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_every_dependency_is_pinned_for_development() -> None:
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    assert {_name(r) for r in wanted} - {_name(pin) for pin in pins} == set()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_are_free_of(what: str, tracked: list[Path]) -> None:
    pattern = re.compile(FORBIDDEN[what].encode())
    found = [
        f"{file.relative_to(ROOT)}: {match[0].decode()}"
        for file in tracked
        if file != Path(__file__)
        for match in pattern.finditer(file.read_bytes())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text", "hit"),
    [
        ("a path of one machine", "see /home/someone/checkout", True),
        ("a path of one machine", "read '/tmp/record.json'", True),
        ("a path of one machine", "tests/home/x, ../work/x and /usr/bin/env", False),
        ("the host of a package index", "pip install --index-url x", True),
        ("the host of a package index", "https://pypi.org/simple", True),
        ("the host of a package index", "https://pytorch.org", False),
    ],
)
def test_the_forbidden_is_recognised(what: str, text: str, hit: bool) -> None:
    assert bool(re.search(FORBIDDEN[what], text)) is hit


def test_no_file_is_a_drawer_for_odds_and_ends(tracked: list[Path]) -> None:
    assert [file.name for file in tracked if file.name in {"utils.py", "common.py", "helpers.py", "misc.py"}] == []


def _skips_without_reason(source: str) -> list[int]:
    """Lines that skip a test, or expect it to fail, and do not say why."""
    tree = ast.parse(source)
    silent = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"skip", "skipif", "xfail"}
        and not any(keyword.arg == "reason" for keyword in node.keywords)
        and not (node.func.attr == "skip" and node.args)
    ]
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bare = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "xfail"} and id(node) not in called
    ]
    return silent + bare


def test_every_skip_says_why(tracked: list[Path]) -> None:
    tests = [file for file in tracked if file.suffix == ".py" and (ROOT / "tests") in file.parents]
    assert tests
    silent = {str(file.relative_to(ROOT)): _skips_without_reason(file.read_text()) for file in tests}
    assert {name: lines for name, lines in silent.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("pytest.skip('why')\npytest.skip(reason='why')\npytest.mark.skipif(True, reason='why')", []),
        ("pytest.skip()\npytest.mark.skipif(True)\n@pytest.mark.skip\ndef test(): pass", [1, 2, 3]),
    ],
)
def test_a_skip_without_reason_is_recognised(source: str, lines: list[int]) -> None:
    assert _skips_without_reason(source) == lines


@pytest.fixture(scope="module")
def of_the_h200() -> dict[str, list[dict[str, Any]]]:
    """The stored records of each experiment."""
    return {file.stem: load(file) for file in sorted((ROOT / "paper" / "results" / "h200").glob("*.jsonl"))}


def test_the_stored_records_of_the_h200_are_of_one_library(of_the_h200: dict[str, list[dict[str, Any]]]) -> None:
    records = [record for of_stem in of_the_h200.values() for record in of_stem]
    assert len(records) > 400 and len({record["provenance"]["source_hash"] for record in records}) == 1


def test_the_stored_records_of_the_h200_are_all_cases_of_their_experiments(
    of_the_h200: dict[str, list[dict[str, Any]]],
) -> None:
    # A claim about every case would hold on what is left of them.
    assert set(of_the_h200) == set(stems())
    for stem, records in of_the_h200.items():
        words = [f"experiment={stem}", "hardware=h200"]
        settings = settings_of(compose(*words), words)
        asked = {case.id for case in settings.experiment.cases() if settings.hardware.fits(case)}
        found = [record["case_id"] for record in records]
        assert len(found) == len(set(found)) and set(found) == asked, stem


# What no stored time and no stored error comes from: what is refused and in which words, helpers around packed batches,
# the definitions. (Calls with packed rows are checked each time: a check that takes longer is to be measured.)
BESIDE = ("scan/checks.py", "scan/packing.py", "scan/reference.py")


def test_the_stored_records_of_the_h200_are_of_the_library_that_is_checked_in(
    of_the_h200: dict[str, list[dict[str, Any]]],
) -> None:
    def measured(files: dict[str, bytes]) -> str:
        return provenance.hash_of_files({name: file for name, file in files.items() if name not in BESIDE})

    commits = {stem: [each["provenance"]["commit"] for each in records] for stem, records in of_the_h200.items()}
    at = {name: provenance.sources_at(ROOT, name, ("scan",)) for of_stem in commits.values() for name in set(of_stem)}
    known = {name: files for name, files in at.items() if files is not None}
    if known.keys() != at.keys():
        pytest.skip("a checkout without the history that the records name")
    said = {(r["provenance"]["commit"], r["provenance"]["source_hash"]) for each in of_the_h200.values() for r in each}
    assert said == {(name, provenance.hash_of_files(files)) for name, files in known.items()}, "of another scan/"
    here = measured(provenance.sources_in(ROOT, ("scan",)))
    old = {name for name, files in known.items() if measured(files) != here}
    stale = {stem: sum(commit in old for commit in of_stem) for stem, of_stem in commits.items()}
    told = [f"{stem} ({count} of {len(commits[stem])} records)" for stem, count in stale.items() if count]
    sweeps = [f"python -m experiments -m experiment={stem} hardware=h200" for stem, count in stale.items() if count]
    after = ["python -m experiments.collect", "python -m paper.readme", "python -m paper.claims --from paper"]
    assert commits
    assert not told, (
        f"Measured with another scan/ than the one checked in: {', '.join(told)}. On an H200 run:\n"
        + "\n".join([*sweeps, *after])
    )
