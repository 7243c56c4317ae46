"""Figures and tables of compiled layers, of memory and of trainings, from synthetic records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paper.__main__ import build
from paper.measurements import gather
from tests.paper.step_records import compile_records, memory_records, training_records

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def built(write_results: Write, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    cpu = compile_records("cpu", (512,)) + memory_records("cpu") + training_records("cpu", (64,))
    build(gather(write_results(*compile_records(), *memory_records(), *training_records(), *cpu)), folder)
    return folder


def test_steps_have_a_figure_of_the_gpu_and_tables_of_every_machine(built: Path) -> None:
    figures = (built / "figures" / "compile.tex").read_text()
    assert figures.count("includegraphics") == 1 and "Synthetic H200 (test data)" in figures
    assert "Hollow: the result is outside its error budget." in figures
    assert list((built / "figures").glob("compile-*.pdf"))
    tables = (built / "tables" / "compile.tex").read_text()
    assert tables.count("begin{tabular}") == 4, "two dtypes on two machines"
    assert "Synthetic CPU (test data)" in tables


def test_a_row_of_steps_holds_ratio_host_breaks_and_memory(built: Path) -> None:
    lines = (built / "tables" / "compile.tex").read_text().splitlines()
    ours = next(line for line in lines if line.startswith("ours, compiled &"))
    assert "1.00 (1.00--1.00)" in ours and ours.endswith(r"& 0 & 10.0 \\")
    warp = next(line for line in lines if line.startswith("warp, compiled &"))
    assert warp.endswith(r"& 1 & 11.4 \\")
    replayed = next(line for line in lines if line.startswith("warp, reduce-overhead &"))
    assert replayed.endswith(r"& 1 & -- \\"), "memory of CUDA graphs is not counted"
    eager = next(line for line in lines if line.startswith("ours, eager &"))
    assert eager.endswith(r"& -- & 11.0 \\")
    assert any(r"$^\dagger$" in line for line in lines if line.startswith("warp"))


def test_memory_is_one_table_with_both_layouts(built: Path) -> None:
    text = (built / "tables" / "memory.tex").read_text()
    assert text.count("begin{tabular}") == 2
    assert "float32, time last" in text and "bfloat16, channels last" in text
    assert r"ours & 6.00 & 5.00 & 6.00 & 5.00 & 6.00 & 5.00 & 6.00 & 5.00 \\" in text
    assert r"accelerated-scan warp & 8.00 & 7.00 & -- & -- & 8.00 & 7.00 & -- & -- \\" in text
    assert r"torch associative\_scan & 13.50$^\dagger$ & 12.50$^\dagger$" in text


def test_what_was_not_measured_is_among_the_gaps(built: Path) -> None:
    gaps = (built / "tables" / "gaps.tex").read_text()
    assert "has no backward that compiles for CUDA" in gaps and "warp takes channels first" in gaps


def test_trainings_have_a_figure_and_a_table_of_every_machine(built: Path) -> None:
    figures = (built / "figures" / "training.tex").read_text()
    assert figures.count("includegraphics") == 2 and "Synthetic CPU (test data)" in figures
    assert figures.count("Hollow: the curve is not the exact one.") == 1, "on the GPU"
    assert len(list((built / "figures").glob("training-*.pdf"))) == 2
    tables = (built / "tables" / "training.tex").read_text()
    assert tables.count("begin{tabular}") == 2 and tables.count("float32, $T=") == 3


def test_a_row_of_trainings_holds_losses_distance_times_tokens_and_memory(built: Path) -> None:
    text = (built / "tables" / "training.tex").read_text()
    shortest, longest = (text.partition(f"bfloat16, $T={T}$")[2].splitlines() for T in (256, 4096))
    ours = next(line for line in shortest if line.startswith("ours &")).removesuffix(r" \\").split(" & ")
    first, last, off, _, over_ours, tokens, held = ours[1:]
    assert 2 <= float(first) <= 2.1 and 0.7 <= float(last) <= 0.9
    assert (off, over_ours, held) == ("0.50", "1.00 (1.00--1.00)", "4.0") and float(tokens) == pytest.approx(
        2, rel=0.03
    )
    warp = next(line for line in longest if line.startswith("accelerated-scan warp &"))
    assert warp.startswith("accelerated-scan warp & 2.500 & -- & -- & ") and r"$^\dagger$ & 1.4" in warp
    assert not any(line.startswith("sequential &") for line in longest[:4])
    gaps = (built / "tables" / "gaps.tex").read_text()
    assert "the loss is not finite from step 20 on" in gaps
