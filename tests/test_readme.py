"""The README's code runs as it stands, and what its commands name exists."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

BLOCKS = [
    pytest.param(match["kind"], match["code"], id=f"line {README[: match.start()].count(chr(10)) + 1}")
    for match in re.finditer(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", README, re.MULTILINE | re.DOTALL)
]
# A command is an indented line, or stands in backquotes.
COMMANDS = sorted(
    {
        line.strip()
        for line in re.findall(r"^    (?:\w+=\S+ )?((?:make|python) .+)$|`((?:make|python) [^`]+)`", README, re.M)
        for line in line
        if line
    }
)


@pytest.mark.parametrize(("kind", "code"), BLOCKS)
def test_code_runs(kind: str, code: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    # The blocks choose their device themselves; under the interpreter that has to be the CPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device.type == "cuda")
    if kind == "pycon":
        example = doctest.DocTestParser().get_doctest(code, {}, "README.md", "README.md", 0)
        report: list[str] = []
        outcome = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
        assert outcome.attempted and not outcome.failed, "".join(report)
    else:
        assert kind == "python"
        exec(compile(code, "README.md", "exec"), {})


def test_code_is_found() -> None:
    assert WHOLE in COMMANDS
    assert [block.values[0] for block in BLOCKS] == ["pycon", "python", "python", "python"]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_make_knows_the_verb(command: str) -> None:
    made = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


# Smoke takes no arguments, and asked for help it would do all it can; tests/experiments/test_smoke.py has it do that.
WHOLE = "python -m experiments.smoke"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m ") and c != WHOLE])
def test_python_knows_the_command(command: str) -> None:
    _, _, module, *arguments = shlex.split(command)
    shown = ["--cfg", "job"] if module == "experiments" and arguments != ["--help"] else ["--help"]
    composed = [argument for argument in arguments if argument != "-m"]
    ran = subprocess.run(
        [sys.executable, "-m", module, *composed, *shown], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:paper|conf|requirements|docs|scan|tests)/[\w/.]*)`", README)))
)
def test_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()
