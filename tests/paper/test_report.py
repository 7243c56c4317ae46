"""The report of a reproduction: one file that needs nothing else, with every claim, figure, table and machine."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paper.claims import FAILS, HOLDS, NOT_MEASURABLE, Verdict, load_claims
from paper.report import _claims, main

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects ids, links and sources."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: dict[str, list[str]] = {"id": [], "href": [], "src": []}
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def report(results: Path, outputs: Path) -> Page:
    """The page as a command writes it."""
    assert main(["--results", str(results), "--outputs", str(outputs)]) == 0
    return Page((outputs / "report" / "index.html").read_text())


@pytest.fixture(scope="module")
def page(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of a machine that measured one case of the paper's and one that it got wrong."""
    outputs = tmp_path_factory.mktemp("outputs")
    lines = (synthetic / "h200" / "speed.jsonl").read_text().splitlines()
    for line in (line for line in lines if '"kernel", "mode": "forward", "dtype": "float32"' in line):
        record = json.loads(line) | {"case_id": f"{json.loads(line)['case']['T']} <here>"}
        if record["case"]["T"] == 512:
            record["providers"]["ours"] |= {"status": "wrong", "reason": "a < b & c"}
        folder = outputs / "speed" / str(record["case"]["T"])
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record))
    return report(synthetic, outputs)


def test_the_page_is_whole_and_loads_nothing(page: Page) -> None:
    assert page.open == []
    assert "script" not in page.tags and "link" not in page.tags
    assert page.attributes["src"] and all(
        src.startswith("data:image/svg+xml;base64,") for src in page.attributes["src"]
    )
    assert len(page.attributes["id"]) == len(set(page.attributes["id"]))
    assert all(href.startswith("#") and href[1:] in page.attributes["id"] for href in page.attributes["href"])


def test_every_claim_is_there_with_its_verdict(page: Page) -> None:
    for claim in load_claims():
        assert claim.id in page.attributes["id"] and claim.said in page.words
    badges = [each for each in page.attributes["class"] if each.startswith("badge")]
    assert len(badges) == len(load_claims())
    assert {"badge fails", "badge unknown"} <= set(badges)
    assert "ours is wrong at T = 512 (forward, float32): a < b & c" in page.words


def test_claims_are_counted_by_experiment_and_those_that_fail_are_named(page: Page) -> None:
    stems = list(dict.fromkeys(claim.stem for claim in load_claims()))
    assert page.attributes["class"].count("claims") == len(stems)
    of_speed = sum(claim.stem == "speed" for claim in load_claims())
    counts = re.search(r"speed ((?:\d+ (?:hold|fail|cannot be measured here),? ?)+)", page.words)
    assert counts and sum(map(int, re.findall(r"\d+", counts[1]))) == of_speed and "fail" in counts[1]
    assert "What fails: speed-" in page.words
    assert page.attributes["href"][0] == "#" + page.words.split("What fails: ")[1].split(",")[0]


def test_an_experiment_is_folded_unless_a_claim_fails() -> None:
    claims = load_claims()
    for word, more in ((HOLDS, ""), (FAILS, " open"), (NOT_MEASURABLE, "")):
        shown = _claims([Verdict(claims[0], word, 1.0), Verdict(claims[0], HOLDS, 1.0)], "paper")
        assert f'<details class="claims"{more}>' in shown


def test_figures_tables_and_machines_are_there(page: Page) -> None:
    assert len(page.attributes["src"]) == page.tags.count("figure") >= 5
    assert page.tags.count("details") >= 6
    assert "Synthetic H200 (test data) (measured here)" in page.words
    assert "torch 0.0.0" in page.words
    assert "Measured here, on Synthetic H200 (test data): 5 cases, the last on 2030-01-02." in page.words


def test_figures_are_described_and_cells_of_words_name_their_column(page: Page) -> None:
    assert len(page.attributes["alt"]) == len(page.attributes["src"])
    for number, alt in enumerate(page.attributes["alt"], 1):
        assert re.fullmatch(rf"Figure {number}\. .{{40,}}[.] Its values are in the tables\.", alt) and "<" not in alt
    assert page.attributes["data-head"].count("Verdict") == len(load_claims())
    assert {"Paper", "Measured", "status", "reason", "With", "Records"} <= set(page.attributes["data-head"])


def test_no_latex_is_left(page: Page) -> None:
    assert not re.findall(r"\\[a-z]+|\$|\{\}", page.words.partition("Figures")[2])


def test_without_outputs_it_is_about_the_paper(
    write_results: Callable[..., Path], synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record: dict[str, Any] = json.loads((synthetic / "h200" / "speed.jsonl").read_text().splitlines()[0])
    found = report(write_results(record), tmp_path / "outputs")
    said = "Nothing was measured here: verdicts, figures and tables are those of Synthetic H200 (test data)."
    assert said in found.words
    assert capsys.readouterr().out == f"The report is {tmp_path / 'outputs' / 'report' / 'index.html'}.\n"


def test_results_that_cannot_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path / "none"), "--outputs", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: --results must be a folder of stored records")


def test_a_page_that_cannot_be_written_is_named(
    write_results: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    few = ["--results", str(write_results()), "--outputs", str(tmp_path)]
    assert main([*few, "--out", str(file / "index.html")]) == 1
    said = f"error: {file / 'index.html'} cannot be written ({{}}): name another file by --out.\n"
    assert capsys.readouterr().err in (said.format("File exists"), said.format("Not a directory"))
