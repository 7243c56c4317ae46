"""The README's picture and table are those of the stored records, and are written by one command."""

import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from paper import readme
from paper.measurements import Measurements, ResultsError, gather
from tests.paper.conftest import REPOSITORY, SPEED_OF, speed_records

RESULTS = REPOSITORY / "paper" / "results"


def matplotlib_is_pinned() -> bool:
    return f"matplotlib=={version('matplotlib')}" in (REPOSITORY / "requirements" / "dev.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def stored() -> Measurements:
    return gather(RESULTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the README as it is committed, and without its picture."""
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    return tmp_path


def test_the_table_is_what_the_stored_records_make(stored: Measurements) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert readme.renewed(text, readme.block(stored)) == text, "`python -m paper.readme` writes it anew"


@pytest.mark.skipif(not matplotlib_is_pinned(), reason="another matplotlib than the pinned one draws other bytes")
def test_the_picture_is_what_the_stored_records_make(stored: Measurements) -> None:
    committed = (REPOSITORY / readme.PICTURE).read_bytes()
    assert committed == readme.picture(stored), "`python -m paper.readme` draws it anew"


def test_writing_it_again_changes_nothing(root: Path) -> None:
    written = []
    for _ in range(2):
        assert readme.main(["--root", str(root)]) == 0
        written.append(((root / "README.md").read_bytes(), (root / readme.PICTURE).read_bytes()))
    assert written[0] == written[1]
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["README.md", readme.PICTURE.name]


def test_another_record_makes_another_table(
    root: Path, write_results: Callable[..., Path], stored: Measurements
) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert readme.main(["--root", str(root), "--results", str(write_results(*speed_records()))]) == 0
    changed = (root / "README.md").read_text(encoding="utf-8")
    assert "Synthetic H200 (test data)" in changed and "Synthetic H200 (test data)" not in text
    assert readme.renewed(changed, readme.block(stored)) == text  # nothing else was touched


def test_the_table_says_what_the_records_do(write_results: Callable[..., Path]) -> None:
    made = readme.block(gather(write_results(*speed_records())))
    head, _, *lines = [line[2:-2].split(" | ") for line in made.splitlines() if line.startswith("|")]
    rows = {cells[0]: dict(zip(head, cells, strict=True)) for cells in lines}
    forward = rows["float32, forward"]
    assert forward["T"] == "512<br>65536", "lengths without a record are left out"
    short, long = map(float, forward["× warp"].split("<br>"))
    assert short == pytest.approx(SPEED_OF["ours"] / SPEED_OF["warp"], rel=0.02) == long
    assert forward["× jax"] != "–<br>–"
    assert re.fullmatch(r"[\d.]+<br>[\d.]+†", rows["bfloat16, forward"]["× warp"])
    words = re.sub(r"\s+", " ", made)
    assert "†: the peer's result is outside its error budget." in words
    assert "0.86 to 1.34 on H100 80GB and 0.99 to 1.01 on RTX 3080 Ti 12GB" in words


@pytest.mark.parametrize("text", ["", readme.BEGIN, f"{readme.END}\n{readme.BEGIN}"])
def test_a_readme_without_its_comments_is_left_alone(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(text)
    assert readme.main(["--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: README.md must hold the lines {readme.BEGIN}")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"] and (tmp_path / "README.md").read_text() == text


def test_a_folder_without_a_readme_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--root", str(tmp_path)]) == 1
    told = f"error: {tmp_path / 'README.md'} is missing; name the folder of README.md with --root.\n"
    assert capsys.readouterr().err == told and not list(tmp_path.iterdir())


def test_no_records_are_named(published: Measurements) -> None:
    with pytest.raises(ResultsError, match="no stored records of speed"):
        readme.block(published)
