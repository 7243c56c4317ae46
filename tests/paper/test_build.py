"""Everything that LaTeX inputs has a maker, whatever is stored; figures can be read; names come from records."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from paper import lines, style
from paper.__main__ import SOURCES, build, main
from paper.intervals import independent, paired
from paper.measurements import Measurements, gather
from tests.paper.conftest import Command

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


DOCUMENTS = {"main.tex", "supplement.tex"}


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_every_input_has_a_maker_and_nothing_is_made_in_vain(built: Path) -> None:
    assert inputs(built) == files(built) - DOCUMENTS
    assert set(SOURCES) < files(built)


def test_with_the_published_tables_alone_every_input_is_there(published, tmp_path: Path) -> None:
    build(published, tmp_path)
    assert inputs(tmp_path) == files(tmp_path) - DOCUMENTS


def test_every_stem_has_a_figure_and_a_table(built: Path) -> None:
    for stem in ("speed", "packing", "layouts", "few_rows", "bidirectional", "precision", "compile", "training"):
        assert "includegraphics" in (built / "figures" / f"{stem}.tex").read_text()
        assert "tabular" in (built / "tables" / f"{stem}.tex").read_text()


def test_every_reference_has_a_label(built: Path) -> None:
    text = "".join(source.read_text() for source in built.rglob("*.tex"))
    labels = re.findall(r"\\label\{([^}]+)\}", text)
    assert len(labels) == len(set(labels))
    assert set(re.findall(r"\\(?:eq)?ref\{([^}#]+)\}", text)) <= set(labels)


def test_every_citation_has_an_entry_and_every_entry_a_citation(built: Path) -> None:
    text = "".join((built / name).read_text() for name in DOCUMENTS)
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


def table_lines(built: Path, name: str, label: str) -> list[str]:
    """The lines of the body of one table."""
    text = (built / "tables" / f"{name}.tex").read_text()
    (body,) = re.findall(rf"label\{{{label}[^}}]*\}}.*?midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    return body.splitlines()


def samples(folder: Path, stem: str, **case: object) -> dict[str, list[float]]:
    """Providers' samples in the one record with these fields."""
    records = map(json.loads, (folder / "h200" / f"{stem}.jsonl").read_text().splitlines())
    (found,) = [each for each in records if all(each["case"].get(name) == value for name, value in case.items())]
    return {name: result.get("samples_ms") for name, result in found["providers"].items()} | {
        f"{name} host": result.get("host_samples_us") for name, result in found["providers"].items()
    }


def test_calls_have_host_and_device_apart_and_the_printed_ratio_beside(built: Path, synthetic: Path) -> None:
    line = table_lines(built, "api", "tab:api:forward-backward:")[1]
    case = {"mode": "forward_backward", "dtype": "float32", "T": 128}
    call, kernel = (samples(synthetic, "speed", level=level, **case) for level in ("api", "kernel"))
    shown = []
    for taken, words in ((call, ""), (call, " host"), (kernel, "")):
        ours, warp = taken[f"ours{words}"], taken[f"warp{words}"]
        shown += [f"{sorted(ours)[3]:.1f}", f"{sorted(warp)[3]:.1f}"] if words else [None, None]
        shown.append("{:.2f} ({:.2f}--{:.2f})".format(*paired(warp, ours)))
    cells = line.removesuffix(r" \\").split(" & ")
    assert [cell for cell, wanted in zip(cells[1:10], shown, strict=True) if wanted not in (None, cell)] == []
    assert cells[0] == "128" and cells[10:] == ["0.75", "1.05"]
    assert "tab:api:forward:" in (built / "tables" / "api.tex").read_text()


def test_reversed_time_and_odd_lengths_have_a_table(built: Path, synthetic: Path) -> None:
    lines_ = table_lines(built, "variants", "tab:variants:order-length")
    assert sum("from the last step to the first" in line for line in lines_) == 2
    reverse, odd = lines_[1].split(" & "), next(line for line in lines_ if line.startswith("1000")).split(" & ")
    case = {"level": "kernel", "mode": "forward", "dtype": "float32", "T": 512}
    plain, reversed_ = (samples(synthetic, "speed", reverse=each, **case) for each in (False, True))
    assert reverse[2] == "{:.2f} ({:.2f}--{:.2f})".format(*paired(reversed_["roofline"], reversed_["ours"]))
    assert reverse[3] == "--", "no peer runs backwards in this data"
    assert reverse[4] == "{:.2f} ({:.2f}--{:.2f})".format(*independent(plain["ours"], reversed_["ours"]))
    assert odd[3].endswith(" scalar") and odd[4] == "--"


def test_fewer_gradients_stand_beside_both(built: Path, synthetic: Path) -> None:
    first = table_lines(built, "variants", "tab:variants:gradients")[1].removesuffix(r" \\").split(" & ")
    case = {"level": "kernel", "mode": "backward", "dtype": "float32", "T": 512, "reverse": False}
    both, tokens = (samples(synthetic, "speed", needs=needs, **case)["ours"] for needs in (None, "tokens"))
    assert first[0] == "512" and len(first) == 9
    assert first[8] == "{:.2f} ({:.2f}--{:.2f})".format(*independent(tokens, both))
    assert "of the bytes it is 4/5 of gates only, 3/5 of tokens only" in (built / "tables" / "variants.tex").read_text()


def test_packings_are_spelled_out_and_the_pair_of_calls_compared(built: Path) -> None:
    tokens = [line.split(" & ")[:4] for line in table_lines(built, "packing", "tab:packing:tokens") if " & " in line]
    assert [line for line in tokens if "addlinespace" not in line[0]][:4] == [
        [r"1$\times$65536", "1", "65536", "65536"],
        [r"32$\times$1000..2147", "32", "2147", "50352"],
        [r"1$\times$32768 + 64$\times$512", "65", "32768", "65536"],
        [r"4096$\times$1..64", "4096", "64", "133120"],
    ]
    calls = [line.split(" & ") for line in table_lines(built, "packing", "tab:packing:set-up") if " & " in line]
    assert [line[1] for line in calls] == ["8", "1024"] * 2
    assert all(line[5].startswith("no") for line in calls)
    assert calls[0][3].startswith("1.00 (") and 0.97 < float(calls[1][3][:4]) < 1.03


def test_shapes_have_a_line_each_and_peers_beside(built: Path, synthetic: Path) -> None:
    lines_ = [line.removesuffix(r" \\").split(" & ") for line in table_lines(built, "layouts", "tab:layouts:")]
    shapes = [line[:3] for line in lines_ if len(line) > 1]
    assert shapes[:6] == [
        ["512", "1536", "8"], ["2048", "1536", "8"], ["4096", "100", "8"], ["4096", "1537", "8"], ["8192", "1536", "8"],
        ["65536", "1536", "2"],
    ]  # fmt: skip
    case = {"mode": "forward", "dtype": "float32", "T": 512}
    taken = samples(synthetic, "layouts", **case)
    limit = "{:.2f} ({:.2f}--{:.2f})".format(*paired(taken["roofline"], taken["ours"]))
    cells = [
        f"{sorted(taken['ours'])[3]:.4f}",
        limit,
        *(f"{sorted(taken[name])[3]:.4f}" for name in ("transposed", "hgrn")),
    ]
    assert lines_[1][3:7] == cells and len(lines_[1]) == 3 + 2 * 4
    assert lines_[3][6].endswith(r"$^\dagger$")
    few = [line.removesuffix(r" \\").split(" & ") for line in table_lines(built, "few_rows", "tab:few-rows:")]
    assert [line[:2] for line in few if len(line) > 1] == [
        ["1", "131072"], ["512", "131072"], ["4096", "1024"], ["512", "131072"],
    ]  # fmt: skip
    assert few[-1][4] == "--" != few[-1][5], "complex numbers, which scalar does not take"


def test_each_form_of_both_directions_has_a_table_and_calls_another(built: Path) -> None:
    def cells(label: str) -> list[list[str]]:
        lines_ = table_lines(built, "bidirectional", f"tab:bidirectional:{label}:")
        return [line.split(" & ") for line in lines_ if " & " in line]

    assert [len(cells(form)) for form in ("branched", "shared", "shared-sum")] == [6, 6, 6]
    for mode, least in (("forward-backward", 1.58), ("forward", 1.98)):
        calls = cells(f"calls:{mode}")
        assert len(calls) == 3 * 2 * 2 and {line[0] for line in calls} == {"128", "1024"}
        assert all(least <= float(line[4].split(" ")[0]) <= least + 0.04 for line in calls)


def brief_lines(built: Path, name: str, label: str) -> list[list[str]]:
    """The cells of one of the paper's own tables; a heading is one cell."""
    text = (built / "brief" / f"{name}.tex").read_text()
    (body,) = re.findall(rf"label\{{{label}\}}.*?midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    return [line.removesuffix(r" \\").split(" & ") for line in body.splitlines()]


def test_the_summary_has_least_median_and_most_of_every_experiment(built: Path, measured: Measurements) -> None:
    lines_ = brief_lines(built, "summary", "tab:brief:summary")
    rows = measured.rows
    rows = rows[(rows["hardware"] == "h200") & (rows["stem"] == "speed") & (rows["level"] == "kernel")]
    rows = rows[(rows["kind"] == "plain") & (rows["recorded_as"] == "ours") & (rows["dtype"] == "float32")]
    forward = rows.loc[rows["mode"] == "forward", "fraction"]
    assert lines_[1][0] == "float32"
    assert lines_[1][2:5] == [f"{value:.2f}" for value in (forward.min(), forward.median(), forward.max())]
    headings = " ".join(line[0] for line in lines_ if len(line) == 1)
    for words in ("no power of two", "gradient of gates only", "packed", "channels last", "few rows", "shared, added"):
        assert words in headings
    assert [line[2] for line in lines_ if len(line) > 1].count("--") == 4, "fewer gradients have no forward"


def test_who_is_fastest_is_computed(built: Path, synthetic: Path, write_results: Write, tmp_path: Path) -> None:
    found = {line[0]: line[1:5] for line in brief_lines(built, "choice", "tab:brief:choice")}
    assert found["kernels, 16 bits"][:2] == ["30", "ours"] and found["channels last"][3].startswith("transposed")
    assert found["from the last step to the first"][1:4] == ["ours", "--", "none ran it"]
    assert found["least memory, forward and backward"][1:3] == ["ours", "6.00 tensors"]
    records = [json.loads(line) for line in (synthetic / "h200" / "speed.jsonl").read_text().splitlines()]
    records = [each for each in records if each["case"]["dtype"] == "float32" and each["case"]["level"] == "kernel"]
    records = [each for each in records if each["case"]["T"] <= 512 and each["case"]["mode"] == "forward"]
    for each, factor in zip(records[:2], (0.5, 1.0), strict=True):
        each["providers"]["linrec"]["samples_ms"] = [
            factor * sample for sample in each["providers"]["ours"]["samples_ms"]
        ]
    build(gather(write_results(*records[:2])), tmp_path)
    found = {line[0]: line[1:5] for line in brief_lines(tmp_path, "choice", "tab:brief:choice")}
    assert found[r"kernels, float32, $T\le2048$"] == ["2", "linrec in 1 and even in 1", "0.50 to 1.00", "linrec"]


def test_published_tables_stand_beside_ours(built: Path, synthetic: Path) -> None:
    speed = brief_lines(built, "published", "tab:brief:published")
    assert speed[0][:3] == ["128", "0.75", "1.05"] and len(speed) == 10 and len(speed[0]) == 13
    taken = samples(synthetic, "speed", level="kernel", mode="forward", dtype="float32", T=128, reverse=False)
    assert speed[0][9] == f"{paired(taken['warp'], taken['ours'])[0]:.2f}"
    assert speed[1][3] == "--", "no call was measured at 256 in this data"
    assert any(cell.endswith(r"$^\dagger$") for cell in speed[-1]), "warp is wrong at the longest in this data"
    errors = brief_lines(built, "published", "tab:brief:errors")
    assert ["8192", "2.06e-03", "overflowed"] in [line[:3] for line in errors]


def test_layouts_show_one_shape_and_the_rest_is_in_the_table(figures: list[Figure]) -> None:
    labelled = {text.get_text() for figure in figures for legend in figure.legends for text in legend.get_texts()}
    assert {"transposed around ours", "ours, two launches", "warp between flips"} < labelled
    ticks = [[tick.get_text() for tick in figure.axes[-1].get_xticklabels()] for figure in figures]
    assert ["512", "2k", "8k"] in ticks and ["1 ×\n128k", "512 ×\n128k", "4096 ×\n1k"] in ticks


def test_a_part_that_was_not_measured_is_said(write_results: Write, synthetic: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (synthetic / "h200" / "speed.jsonl").read_text().splitlines()]
    kept = [each for each in records if not each["case"]["reverse"] and not each["case"].get("needs")]
    build(gather(write_results(*kept)), tmp_path)
    assert "from the last step to the first: not measured" in (tmp_path / "tables" / "variants.tex").read_text()
    defined = (tmp_path / "numbers.tex").read_text()
    assert r"\definenumber{missing.packing}{No measurement of the packing experiment" in defined
    assert not (tmp_path / "tables" / "packing.tex").read_text().strip()


def test_the_layouts_are_kept_apart_and_the_legend_lists_what_is_drawn(figures: list[Figure], built: Path) -> None:
    labels = [{text.get_text() for legend in figure.legends for text in legend.get_texts()} for figure in figures]
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
    assert len(figures) == 20
    for figure in figures:
        widths = (style.TEXT_WIDTH_IN, style.COLUMN_WIDTH_IN)
        assert figure.get_figwidth() in widths, "a figure that LaTeX would scale has other type sizes"
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


def test_a_folder_that_cannot_be_built_in_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["--out", str(file / "build")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(str(file)) and said.endswith(
        "): --results must be a folder that can be read, --out one that can be written.\n"
    )


def test_bad_results_end_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("--results must be a folder") and "Traceback" not in said


def test_the_paper_needs_no_torch_triton_hydra_or_wandb(of_stored_records: Command) -> None:
    assert of_stored_records.status == 0, of_stored_records.error
    assert of_stored_records.out.splitlines()[-1] == (
        "There is no PDF, because latexmk is not installed; on Debian: "
        "apt-get install texlive-latex-recommended texlive-fonts-recommended latexmk."
    )
    assert list((of_stored_records.folder / "figures").glob("*.pdf"))


def test_interrupted_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paper.__main__.gather", interrupted)
    assert main(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("", "Interrupted; the same command builds all of it anew.\n")
