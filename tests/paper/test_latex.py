"""Paper and supplement: from whatever is stored, the same bytes every time, short, and a sentence where LaTeX fails."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paper import latex, numbers
from paper.__main__ import main
from paper.measurements import gather
from tests.paper.conftest import Command

Write = Callable[..., Path]
with_latex = pytest.mark.skipif(not latex.available(), reason="latexmk is not installed")


def pdf(results: Path, out: Path, *more: str) -> Path:
    """The PDF made from a folder of results."""
    assert main(["--results", str(results), "--out", str(out), *more]) == 0
    return out / "paper.pdf"


def problems(out: Path) -> list[str]:
    """What a reader would see: undefined references, and text that sticks out of its column by 2 pt or more."""
    logs = "".join((out / "aux" / f"{name}.log").read_text(errors="replace") for name in latex.DOCUMENTS)
    return re.findall(r"^.*undefined.*$|^Overfull \\hbox \((?:[2-9]|\d\d+)\..*$", logs, re.MULTILINE)


def pages(out: Path, name: str) -> int:
    """How long a document is, as LaTeX says."""
    log = (out / "aux" / f"{name}.log").read_text(errors="replace").replace("\n", "")
    (count,) = re.findall(r"Output written on \S*?\.pdf \((\d+) pages?,", log)
    return int(count)


@with_latex
def test_two_builds_of_everything_are_the_same_bytes(synthetic: Path, built: Path, tmp_path: Path) -> None:
    first = pdf(synthetic, tmp_path / "one")
    assert problems(first.parent) == []
    assert not list(first.parent.glob("*.out")), "auxiliary files stay out of the way"
    other = tmp_path / "another folder"
    shutil.copytree(built, other)
    newest = numbers.newest(gather(synthetic))
    assert newest is not None
    paper, supplement = latex.compile_pdfs(other, int(newest.timestamp()))
    assert first.read_bytes() == paper.read_bytes()
    assert (first.parent / "supplement.pdf").read_bytes() == supplement.read_bytes()
    for kind, number in (("brief", 9), ("figures", 11)):
        figures = sorted((first.parent / kind).glob("*.pdf"))
        assert len(figures) == number
        for figure in figures:
            assert figure.read_bytes() == (other / kind / figure.name).read_bytes()
    assert 6 <= pages(first.parent, "paper") <= 8
    supplements, papers = ((first.parent / "aux" / f"{name}.aux").read_text() for name in ("supplement", "paper"))
    assert re.search(r"newlabel\{tab:gaps\}\{\{S\d+\}", supplements) and "newlabel{tab:gaps}" not in papers


@with_latex
def test_the_paper_is_as_short_with_the_stored_records(of_stored_records: Command, tmp_path: Path) -> None:
    assert of_stored_records.status == 0, of_stored_records.error
    stored = tmp_path / "stored"
    shutil.copytree(of_stored_records.folder, stored)
    latex.compile_pdfs(stored, 0)
    assert 6 <= pages(stored, "paper") <= 8
    assert problems(stored) == []


@with_latex
def test_the_published_tables_alone_make_a_pdf(write_results: Write, tmp_path: Path) -> None:
    assert pdf(write_results(), tmp_path).stat().st_size > 50_000
    assert problems(tmp_path) == []


@with_latex
def test_part_of_a_sweep_and_what_was_measured_here_make_a_pdf_that_changes_with_a_number(
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
    also = ("--also", str(tmp_path / "outputs"))
    before = pdf(write_results(*records), tmp_path, *also).read_bytes()
    assert problems(tmp_path) == []
    assert "Synthetic CPU (test data) (measured here)" in (tmp_path / "tables" / "speed.tex").read_text()
    ours = records[0]["providers"]["ours"]
    ours["samples_ms"] = [1.1 * each for each in ours["samples_ms"]]
    assert pdf(write_results(*records), tmp_path / "again", *also).read_bytes() != before


@with_latex
def test_a_number_without_a_record_stops_the_build_with_a_sentence(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(built, folder)
    text = (folder / "main.tex").read_text()
    (folder / "main.tex").write_text(text.replace(r"\maketitle", r"\maketitle\measured{no.such.key}"))
    with pytest.raises(latex.LatexError, match=r"^LaTeX stopped with .*No stored record gives no\.such\.key") as raised:
        latex.compile_pdfs(folder, 0)
    assert f"on Debian: {latex.INSTALL}." in str(raised.value)


def test_latex_is_available_only_where_latexmk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "latexmk" else None)
    assert latex.available()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not latex.available()
