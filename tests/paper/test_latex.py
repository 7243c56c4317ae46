"""The PDF: from whatever is stored, the same bytes every time, and a sentence where LaTeX fails."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paper import latex, numbers
from paper.__main__ import main
from paper.measurements import gather

Write = Callable[..., Path]
with_latex = pytest.mark.skipif(not latex.available(), reason="latexmk is not installed")


def pdf(results: Path, out: Path, *more: str) -> Path:
    """The PDF made from a folder of results."""
    assert main(["--results", str(results), "--out", str(out), *more]) == 0
    return out / "paper.pdf"


def problems(out: Path) -> list[str]:
    """What a reader would see of it: undefined references, and text that sticks out of its column by 2 pt or more."""
    log = (out / "aux" / "paper.log").read_text(errors="replace")
    return re.findall(r"^.*undefined.*$|^Overfull \\hbox \((?:[2-9]|\d\d+)\..*$", log, re.MULTILINE)


@with_latex
def test_two_builds_of_everything_are_the_same_bytes(synthetic: Path, built: Path, tmp_path: Path) -> None:
    first = pdf(synthetic, tmp_path / "one")
    assert problems(first.parent) == []
    assert not list(first.parent.glob("*.out")), "auxiliary files stay out of the way"
    other = tmp_path / "another folder"
    shutil.copytree(built, other)
    newest = numbers.newest(gather(synthetic))
    assert newest is not None
    second = latex.compile_pdf(other, int(newest.timestamp()))
    assert first.read_bytes() == second.read_bytes()
    figures = sorted((first.parent / "figures").glob("*.pdf"))
    assert len(figures) == 11
    for figure in figures:
        assert figure.read_bytes() == (other / "figures" / figure.name).read_bytes()


@with_latex
def test_the_published_tables_alone_make_a_pdf(write_results: Write, tmp_path: Path) -> None:
    assert pdf(write_results(), tmp_path).stat().st_size > 50_000
    assert problems(tmp_path) == []


@with_latex
def test_part_of_a_sweep_and_what_was_measured_here_make_a_pdf(
    synthetic: Path, write_results: Write, tmp_path: Path
) -> None:
    lines = (synthetic / "h200" / "speed.jsonl").read_text().splitlines()
    records = [
        json.loads(line) for line in lines if '"level": "kernel", "mode": "forward", "dtype": "bfloat16"' in line
    ]
    assert records
    here = json.loads((synthetic / "cpu" / "speed.jsonl").read_text().splitlines()[0])
    outputs = tmp_path / "outputs" / "speed" / here["case_id"]
    outputs.mkdir(parents=True)
    (outputs / "record.json").write_text(json.dumps(here))
    assert pdf(write_results(*records), tmp_path, "--also", str(tmp_path / "outputs")).exists()
    assert problems(tmp_path) == []
    assert "Synthetic CPU (test data) (measured here)" in (tmp_path / "tables" / "speed.tex").read_text()


@with_latex
def test_a_number_without_a_record_stops_the_build_with_a_sentence(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(built, folder)
    text = (folder / "main.tex").read_text()
    (folder / "main.tex").write_text(text.replace(r"\maketitle", r"\maketitle\measured{no.such.key}"))
    with pytest.raises(latex.LatexError, match=r"^LaTeX stopped with .*No stored record gives no\.such\.key") as raised:
        latex.compile_pdf(folder, 0)
    assert f"on Debian: {latex.INSTALL}." in str(raised.value)


def test_latex_is_available_only_where_latexmk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "latexmk" else None)
    assert latex.available()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not latex.available()
