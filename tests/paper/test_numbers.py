"""Numbers of the prose: right, traceable to their records, and never typed by hand."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from paper import numbers
from paper.measurements import Measurements, gather
from paper.typeset import Float, decimals, escape, listed, scientific, significant, span

SHAPES = ("layouts", "few_rows", "bidirectional")
PAPER = Path(__file__).parents[2] / "paper"
FACTS = {
    *(f"speed.api.forward{both}.float32.{who}.host_us" for both in ("", "_backward") for who in ("ours", "warp")),
    "speed.api.forward_backward.float32.ours.over_warp",
    *(f"published.{gpu}.{level}.forward_backward" for gpu in ("h100", "rtx_3080_ti") for level in ("kernel", "api")),
}
"""Ranges that the text states and that are no claims. The host times of calls, and the ratio of calls with gradients,
most of which they are, differ between two sweeps by more than a tolerance may be; what others published is quoted."""


def sources() -> list[str]:
    """The LaTeX of the paper, its appendix and its supplement, without comments."""
    names = ("main.tex", "artifact.tex", "supplement.tex")
    return [re.sub(r"(?<!\\)%.*", "", (PAPER / name).read_text()) for name in names]


def definitions(text: str) -> dict[str, str]:
    """Key -> what it prints."""
    return dict(re.findall(r"^\\definenumber\{([^}]+)\}\{(.*)\}$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def text(measured: Measurements) -> str:
    """numbers.tex of the synthetic results, with a float in every file that the prose refers to."""
    brief = (
        "method",
        "speed",
        "summary",
        "packing",
        *SHAPES,
        "compile",
        "training",
        "precision",
        "published",
        "choice",
    )
    kinds = [f"brief/{name}" for name in brief]
    kinds += [f"figures/{name}" for name in ("speed", "packing", *SHAPES, "precision", "compile", "training")]
    kinds += [f"tables/{name}" for name in ("speed", "api", "variants", "packing", *SHAPES)]
    kinds += [f"tables/{name}" for name in ("precision", "compile", "memory", "training", "gaps")]
    return numbers.make(measured, {kind: [Float(f"fig:{kind}", "")] for kind in kinds})


def test_every_number_of_the_prose_is_defined(text: str) -> None:
    defined = definitions(text)
    for prose in sources():
        used = set(re.findall(r"\\measured\{([^}#]+)\}", prose)) | {
            f"refs.{key}" for key in re.findall(r"\\refsto\{([^}#]+)\}", prose)
        }
        for key in re.findall(r"\\(?:between|stated\{[^}#]+\})\{([^}#]+)\}", prose):
            used |= {f"{key}.least", f"{key}.greatest"}
        for keys in re.findall(r"\\whenmeasured\{([^}#]+)\}", prose):
            used |= {key.strip() for key in keys.split(",")}
        assert used and used <= {*defined, "missing.others"}


def test_a_range_of_the_prose_is_a_claim_or_one_of_a_few_facts() -> None:
    ranges = {key for prose in sources() for key in re.findall(r"\\between\{([^}#]+)\}", prose)}
    assert ranges == FACTS, "a new range is two entries of claims.yaml; a fact that is gone leaves the list"
    ends = {key for prose in sources() for key in re.findall(r"\\measured\{([^}#]+\.(?:least|greatest))\}", prose)}
    assert all(key.split(".")[-2] in ("B", "C", "T", "samples", "draws") for key in ends), "sizes, and no results"


def test_no_measurement_is_typed_into_the_prose() -> None:
    for source in sources():
        prose = source.partition(r"\maketitle")[2] or source  # the appendix has no title
        prose = re.sub(r"\\(?:measured|between|refsto|whenmeasured)\{[^}]*\}", "", prose)
        prose = re.sub(r"\[0\.99,1\)|Python 3\.11 or 3\.12", "", prose)  # a draw and two versions, not measurements
        assert not re.findall(r"\d+\.\d+", prose)
        assert not re.findall(r"\d+\s*(?:\\,)?\s*(?:ms|GB/s|TB/s|times|\\times)", prose)


def test_a_number_says_the_file_case_and_provider_that_it_comes_from(text: str, synthetic: Path) -> None:
    found = re.search(
        r"^% (\S+)  case_id=(\S+)  provider=(\S+)\n"
        r"\\definenumber\{speed\.kernel\.forward\.float32\.ours\.fraction\.least\}\{([\d.]+)\}$",
        text,
        re.MULTILINE,
    )
    assert found is not None
    file, case_id, provider, printed = found.groups()
    assert Path(file) == synthetic / "h200" / "speed.jsonl"
    record = next(each for each in map(json.loads, Path(file).read_text().splitlines()) if each["case_id"] == case_id)
    ours, roofline = (record["providers"][name]["samples_ms"] for name in (provider, "roofline"))
    assert printed == f"{sorted(a / b for a, b in zip(roofline, ours, strict=True))[3]:.2f}"


def test_every_measured_number_has_a_source(text: str) -> None:
    lines = text.splitlines()
    for above, line in pairwise(lines):
        if line.startswith(r"\definenumber") and not re.match(r"\\definenumber\{(refs|missing)\.", line):
            assert above.startswith("% "), f"{line} has no source"


def test_least_and_greatest_leave_out_what_is_wrong_or_failed(text: str, measured: Measurements) -> None:
    defined = definitions(text)
    rows = measured.rows[(measured.rows["level"] == "kernel") & (measured.rows["mode"] == "forward")]
    warp = rows[(rows["provider"] == "warp") & (rows["dtype"] == "bfloat16")]
    assert set(warp["status"]) == {"ok", "wrong"}
    right = warp.loc[warp["status"] == "ok", "fraction"].max()
    assert right < warp["fraction"].max(), "the wrong ones are the fastest in this data"
    assert defined["speed.kernel.forward.bfloat16.warp.fraction.greatest"] == f"{right:.2f}"
    assert defined["precision.uniform_0_1.bfloat16.warp.failed"] == "8192"
    assert float(defined["precision.uniform_0_1.bfloat16.warp.states.greatest"]) < 3


def test_both_layouts_count_for_ours_and_one_for_its_peers(text: str) -> None:
    defined = definitions(text)
    prefix = "precision.uniform_0_1.float32"
    assert float(defined[f"{prefix}.ours.states.greatest"]) > 1.45 > 1.1 > float(defined[f"{prefix}.ours.states.least"])
    assert float(defined[f"{prefix}.hgrn.states.greatest"]) < 3.5, "with channels contiguous it is 4.5 in this data"
    assert "ours_channels_last" not in text


def test_faults_of_peers_are_quoted_from_their_records(text: str) -> None:
    defined = definitions(text)
    assert defined["faults.warp.version"] == "0.0.1"
    assert defined["faults.warp.lengths"] == "8192 and 65536"
    assert defined["faults.warp.reason"] == r"d\_gates differs by 7 times its error budget at row 3, t = 4095"
    assert defined["faults.warp.bounds"] == "warp reads past the end of its tensors"
    assert defined["faults.warp.layout"] == "copies, zeros behind"
    assert (defined["faults.hgrn.version"], defined["faults.hgrn.shortest"]) == ("0.0.2", "2048")
    assert defined["faults.hgrn.factor"].endswith(r"\times10^{5}$")


def test_a_host_is_called_noisy_only_where_it_is(text: str, measured: Measurements) -> None:
    assert "speed.api.noisy" in definitions(text)
    rows = measured.rows
    calm = Measurements(rows.assign(low_ms=rows["median_ms"] * 0.99, high_ms=rows["median_ms"]), measured.machines)
    assert "speed.api.noisy" not in definitions(numbers.make(calm, {}))


def test_variants_are_no_part_of_the_numbers_by_length(text: str) -> None:
    defined = definitions(text)
    assert (defined["speed.T.least"], defined["speed.T.greatest"]) == ("128", "65536")
    assert "missing.others" not in defined, "every experiment has synthetic records"


def test_packing_compares_many_sequences_with_few(text: str) -> None:
    defined = definitions(text)
    prefix = "packing.set_up.forward.float32"
    assert (defined[f"{prefix}.few"], defined[f"{prefix}.many"]) == ("8", "1024")
    assert defined[f"{prefix}.over_few"] in ("0.99", "1.00", "1.01")
    assert float(defined["packing.kernel.backward.float32.hgrn.fraction.least"]) == 0.02


def test_published_numbers_are_those_printed(text: str) -> None:
    defined = definitions(text)
    assert defined["published.h100.kernel.forward_backward.least"] == "0.90"
    assert defined["published.h100.kernel.forward_backward.greatest"] == "1.34"
    assert defined["published.rtx_3080_ti.api.forward_backward.least"] == "1.05"
    assert defined["published.h100.precision.bfloat16.shortest.rmse"] == r"$3.59\times10^{-3}$"


def test_the_machine_and_its_software_are_those_of_the_records(text: str) -> None:
    defined = definitions(text)
    assert defined["speed.name"] == "Synthetic H200 (test data)"
    assert defined["speed.driver"] == "0.0-test"
    assert (defined["speed.T.least"], defined["speed.T.greatest"]) == ("128", "65536")
    assert (defined["speed.samples.least"], defined["precision.draws.least"]) == ("7", "32")
    assert defined["date"] == "2030-01-02"
    assert defined["cpu.name"] == "Synthetic CPU (test data)"


def test_without_measurements_a_sentence_says_how_to_make_them(published: Measurements) -> None:
    defined = definitions(numbers.make(published, {"figures/speed": []}))
    assert defined["missing.speed"] == (
        "No measurement of the speed experiment on a GPU was stored when this copy was built, so there is no figure of "
        r"it; \texttt{python -m experiments -m experiment=speed} on a machine with a GPU, "
        r"\texttt{python -m experiments.collect} and \texttt{python -m paper} add it."
    )
    assert defined["missing.others"].startswith("Not measured on a GPU when this copy was built, and therefore without")
    assert r"few rows (\texttt{few\_rows}), " in defined["missing.others"]
    assert "no table of it" in defined["missing.variants"] and "experiment=packing" in defined["missing.packing"]
    assert not [key for key in defined if key.startswith(("speed.", "precision.", "packing.", "cpu.", "refs.", "date"))]
    assert numbers.newest(published) is None


def test_the_date_is_that_of_the_newest_measurement(synthetic: Path) -> None:
    assert numbers.newest(gather(synthetic / "h200")) == datetime(2030, 1, 2, 3, 18, 54, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "printed"),
    [(0.00893, "0.00893"), (0.0123456, "0.0123"), (1.0, "1.00"), (16.238, "16.2"), (1234.5, "1234")],
)
def test_three_significant_digits(value: float, printed: str) -> None:
    assert significant(value) == printed


def test_words_of_latex() -> None:
    assert escape("a_b 50% {x} ~ \\") == r"a\_b 50\% \{x\} \textasciitilde{} \textbackslash{}"
    assert decimals(None) == significant(float("nan")) == scientific(None) == "--"
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert [span(["a"]), span(["a", "b"]), span(["a", "b", "c"])] == [
        r"\ref{a}",
        r"\ref{a} and~\ref{b}",
        r"\ref{a}--\ref{c}",
    ]


@pytest.mark.parametrize(
    ("packing", "said"),
    [
        ("12:04 12:07", "speed"),
        ("12:00 12:03", None),
        ("12:06 12:09", None),
        ("12:04 12:30", None),
        ("11:30 12:01 12:30", None),
        ("11:59 12:08", "speed"),
        ("api 12:04 12:07", "speed and packing"),
        ("api 12:00 12:03", "packing"),
    ],
)
def test_what_ran_while_calls_of_another_were_timed_is_said(
    packing: str, said: str | None, write_results: Callable[..., Path], synthetic: Path
) -> None:
    # Cases begin at 12:00 and 12:06 with times of kernels, at 12:03 with those of calls. A pause overlaps nothing.
    records = []
    for stem, cases in (
        ("speed", ("kernel 12:00", "api 12:03", "kernel 12:06")),
        ("packing", [f"{'api' if 'api' in packing else 'kernel'} {at}" for at in packing.removeprefix("api ").split()]),
    ):
        lines = (synthetic / "h200" / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()
        for number, (line, (level, at)) in enumerate(zip(lines, map(str.split, cases), strict=False)):
            record = json.loads(line)
            record["case_id"] = f"{stem}-{number}"
            record["case"]["level"] = level
            record["provenance"]["measured_at"] = f"2026-11-30T{at}:00+00:00"
            records.append(record)
    defined = definitions(numbers.make(gather(write_results(*records)), {}))
    assert defined.get("side_by_side") == said


@pytest.mark.parametrize(("seconds", "said"), [(None, "3.0"), (90.0, "4.5")])
def test_the_last_case_counts_among_the_minutes(
    seconds: float | None, said: str, write_results: Callable[..., Path], synthetic: Path
) -> None:
    records = []
    lines = (synthetic / "h200" / "speed.jsonl").read_text(encoding="utf-8").splitlines()
    for number, (line, at) in enumerate(zip(lines, ("12:00", "12:03"), strict=False)):
        record = json.loads(line)
        record["case_id"] = f"speed-{number}"
        record["provenance"]["measured_at"] = f"2026-11-30T{at}:00+00:00"
        record["protocol"]["elapsed_s"] = {} if seconds is None else {"case": seconds}
        records.append(record)
    assert definitions(numbers.make(gather(write_results(*records)), {}))["times"] == f"speed {said} (2)"
