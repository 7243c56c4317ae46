"""Everything that LaTeX inputs has a maker, whatever is stored; figures can be read; names come from records."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from paper import lines, style
from paper.__main__ import SOURCES, build, main
from paper.measurements import Measurements, gather

Write = Callable[..., Path]
LEAST_POINTS = 7


def inputs(folder: Path) -> set[str]:
    """All files that the LaTeX sources of a build read, relative to it."""
    found = set()
    for source in folder.rglob("*.tex"):
        text = re.sub(r"(?<!\\)%.*", "", source.read_text())
        found |= {f"{name}.tex" for name in re.findall(r"\\input\{([^}#]+)\}", text)}
        found |= set(re.findall(r"\\includegraphics(?:\[[^]]*\])?\{([^}]+)\}", text))
        found |= {f"{name}.bib" for name in re.findall(r"\\bibliography\{([^}]+)\}", text)}
    return found


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_every_input_has_a_maker_and_nothing_is_made_in_vain(built: Path) -> None:
    assert inputs(built) == files(built) - {"main.tex"}
    assert set(SOURCES) < files(built)


def test_with_the_published_tables_alone_every_input_is_there(published, tmp_path: Path) -> None:
    build(published, tmp_path)
    assert inputs(tmp_path) == files(tmp_path) - {"main.tex"}


def test_every_stem_has_a_figure_and_a_table(built: Path) -> None:
    for stem in ("speed", "precision"):
        assert "includegraphics" in (built / "figures" / f"{stem}.tex").read_text()
        assert "tabular" in (built / "tables" / f"{stem}.tex").read_text()


def test_every_reference_has_a_label(built: Path) -> None:
    text = "".join(source.read_text() for source in built.rglob("*.tex"))
    labels = re.findall(r"\\label\{([^}]+)\}", text)
    assert len(labels) == len(set(labels))
    assert set(re.findall(r"\\(?:eq)?ref\{([^}#]+)\}", text)) <= set(labels)


def test_every_citation_has_an_entry_and_every_entry_a_citation(built: Path) -> None:
    text = (built / "main.tex").read_text()
    cited = {key for keys in re.findall(r"\\cite[pt]?\{([^}]+)\}", text) for key in keys.split(",")}
    entries = re.findall(r"^@\w+\{(\w+),", (built / "references.bib").read_text(), re.MULTILINE)
    assert cited == set(entries)


def test_captions_name_the_gpu_of_the_record(built: Path) -> None:
    captions = re.findall(r"\\caption\{(.*)\}\\label", (built / "figures" / "speed.tex").read_text())
    assert "Synthetic H200 (test data)" in captions[0]
    assert "H100 80GB and RTX 3080 Ti 12GB show printed medians" in captions[1]
    assert "github.com/PheelaV/associative-scan-triton" in captions[1]
    assert "16 of 585 points" in captions[0], "the two longest T: three modes in 16 bits, two in float32"


def test_a_table_holds_the_medians_of_the_raw_samples(built: Path, synthetic: Path) -> None:
    first = json.loads((synthetic / "h200" / "speed.jsonl").read_text().splitlines()[0])
    assert (first["case"]["T"], first["case"]["mode"], first["case"]["dtype"]) == (128, "forward", "float32")
    ours, warp, roofline = (first["providers"][name]["samples_ms"] for name in ("ours", "warp", "roofline"))
    fraction = sorted(a / b for a, b in zip(roofline, ours, strict=True))[3]
    ratio = sorted(a / b for a, b in zip(warp, ours, strict=True))[3]
    cells = [f"{sorted(ours)[3]:.4f}", f"{fraction:.2f}", f"{sorted(warp)[3]:.4f}", f"{ratio:.2f}", "1.00", "1.01"]
    assert " & ".join(["128", *cells]) in (built / "tables" / "speed.tex").read_text()


def test_the_layouts_are_kept_apart_and_the_legend_lists_what_is_drawn(figures: list[Figure], built: Path) -> None:
    labels = [{text.get_text() for text in figure.legends[-1].get_texts()} for figure in figures]
    assert {"rounded once", "ours", "ours, channels last", "accelerated-scan warp", "fla hgrn"} in labels
    caption = (built / "figures" / "precision.tex").read_text()
    assert "over 1000 times: fla hgrn, states, float32, T = 2048 and 8192;" in caption
    assert " & ours & ours, cl & warp & hgrn & " in (built / "tables" / "precision.tex").read_text()


def test_wrong_failed_and_unsupported_results_show_in_tables(built: Path) -> None:
    speed, precision, gaps = ((built / "tables" / f"{name}.tex").read_text() for name in ("speed", "precision", "gaps"))
    assert r"$^\dagger$: the result is outside its error budget" in speed
    assert "overfl." in precision and "diverged" in precision
    assert r"scalar & unsupported & 18 & scalar runs on cuda, and this device is cpu\_50\%." in gaps


def test_the_roofline_is_called_too_slow_where_it_is(write_results: Write, synthetic: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (synthetic / "h200" / "speed.jsonl").read_text().splitlines()[:3]]
    records[1]["protocol"]["roofline_exceeded_by"] = {"ours": 1.05}
    build(gather(write_results(*records)), tmp_path)
    caption = (tmp_path / "figures" / "speed.tex").read_text()
    assert r"In 1 of 3 cases a provider is above the roofline by more than 2\,\% (at most 5\,\%)" in caption


def test_figures_can_be_read(figures: list[Figure]) -> None:
    assert len(figures) == 5
    for figure in figures:
        assert figure.get_figwidth() == style.TEXT_WIDTH_IN, "a figure that LaTeX would scale has other type sizes"
        texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]
        assert min(text.get_fontsize() for text in texts) >= LEAST_POINTS
        box = figure.bbox
        for text in (text for text in texts if text.get_visible()):
            extent = text.get_window_extent()
            assert extent.x0 >= box.x0 - 1 and extent.x1 <= box.x1 + 1, f"{text.get_text()!r} is cut off"


def test_providers_differ_in_marker_and_line_even_without_colour() -> None:
    looks = [look for name, look in style.LOOKS.items() if name != "roofline"]
    assert len({look.marker for look in looks}) == len(looks)
    greys = {name: look for name, look in style.LOOKS.items() if look.colour in ("#666666", "#999999")}
    assert set(greys) == {"sequential", "hillis_steele", "blelloch"}, "only references share a colour"


def test_wrong_is_hollow_and_failed_is_a_cross_at_the_edge(measured: Measurements) -> None:
    rows = measured.rows
    rows = rows[rows["hardware"] == "h200"]
    speed = rows[(rows["level"] == "kernel") & (rows["mode"] == "forward") & (rows["dtype"] == "bfloat16")]
    figure, axes = style.grid(1, 2, 2.0)
    lines.draw(axes[0][0], speed[speed["provider"] == "warp"], "fraction", "warp", style.look("warp"))
    hollow = [line for line in axes[0][0].lines if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    assert [list(line.get_xdata()) for line in hollow] == [[8192, 65536]]

    precision = rows[(rows["stem"] == "precision") & (rows["dtype"] == "float16") & (rows["gates"] == "uniform_0_1")]
    lines.draw(
        axes[0][1],
        precision[precision["provider"] == "warp"],
        "states_factor",
        "warp",
        style.look("warp"),
        failed="states_failed",
    )
    crosses = [line for line in axes[0][1].lines if line.get_marker() == "x"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in crosses] == [([8192], [1.0])]
    style.pyplot.close(figure)


def test_bad_results_end_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("--results must be a folder") and "Traceback" not in said


def test_the_paper_needs_no_torch_triton_hydra_or_wandb(tmp_path: Path) -> None:
    blocked = ("torch", "triton", "hydra", "omegaconf", "wandb", "scan")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from paper import latex; latex.available = lambda: False\n"
        f"from paper.__main__ import main; sys.exit(main(['--out', {str(tmp_path)!r}]))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "There is no PDF, because latexmk is not installed; on Debian: "
        "apt-get install texlive-latex-recommended texlive-fonts-recommended latexmk."
    )
    assert list((tmp_path / "figures").glob("*.pdf"))
