"""`python -m experiments.reproduce`: measure what suits this machine, build the paper, say what came out."""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from experiments.config import ConfigError
from experiments.hardware import ROOT, Machine, ask_this_machine
from experiments.progress import duration
from experiments.records import load, tidy
from experiments.summary import packing_lines, precision_lines, speed_lines, unmeasured_lines

OUTPUTS = ROOT / "outputs"
RESULTS = ROOT / "paper" / "results"
STEMS = {"speed": speed_lines, "packing": packing_lines, "precision": precision_lines}
QUICK = {
    "speed": ["measure=quick", "experiment.dtype=[float32,bfloat16]", "experiment.T=[128,512]", "~experiment.also"],
    "packing": ["measure=quick", "experiment.dtype=float32"],
    "precision": ["experiment.draws=8", "experiment.T=[128,512]"],
}


def sweep_command(stem: str, machine: Machine, quick: bool) -> list[str]:
    """The command that measures a stem on this machine."""
    hardware = "cpu" if machine.device == "cpu" else "auto"
    command = [sys.executable, "-m", "experiments", f"experiment={stem}", f"hardware={hardware}", f"outputs={OUTPUTS}"]
    return command + (QUICK[stem] if quick else [])


def paper_command() -> list[str]:
    """The command that builds figures, tables and PDF from the stored results and from what was measured here."""
    command = [sys.executable, "-m", "paper", "--results", str(RESULTS)]
    measured = any((OUTPUTS / stem).is_dir() for stem in STEMS)
    return command + (["--also", str(OUTPUTS)] if measured else [])


def run(title: str, command: list[str]) -> int:
    """Run one step with its output shown, and say how long it took."""
    print(f"\n== {title}\n{' '.join(command)}", flush=True)
    started = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"== {title}: {duration(time.monotonic() - started)}, exit status {status}", flush=True)
    return status


def measured_here(stem: str, machine: Machine) -> pd.DataFrame:
    """The rows of a stem that were measured on this machine's device."""
    records = load(OUTPUTS / stem) if (OUTPUTS / stem).is_dir() else []
    return tidy([record for record in records if record["provenance"]["gpu"] == machine.name])


def shortfalls(machine: Machine, statuses: dict[str, int], quick: bool, rows: list[pd.DataFrame]) -> Iterator[str]:
    """What this run could not do or did smaller than the paper, and why."""
    if machine.device == "cpu":
        stored = sorted(
            each.name for each in RESULTS.iterdir() if each.is_dir() and each.name not in ("published", "cpu")
        )
        source = f"those of {', '.join(stored)} from" if stored else "only published ones, from"
        yield f"No GPU was measured, because PyTorch sees none here; the report shows {source} paper/results."
        if any(map(len, rows)):
            yield "The CPU sweep is smaller than the GPU sweep (conf/axes): its peers were written for GPUs."
    if not shutil.which("latexmk"):
        yield "No PDF was typeset, because latexmk is not installed."
    if quick:
        yield "Fewer sizes, dtypes, draws and repeats than in the paper, because --quick asked for it."
    for title, status in statuses.items():
        if status:
            yield f"{title} ended with exit status {status}; its own lines above say why."
    measured = [each for each in rows if len(each)]
    if measured:
        yield from (f"No result: {line}" for line in unmeasured_lines(pd.concat(measured)))


def main(arguments: list[str]) -> int:
    """Run the steps; the exit status is 0 only if each of them succeeded."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="fewer sizes and repeats: a few minutes anywhere")
    what.add_argument("--figures-only", action="store_true", help="measure nothing, build from what is stored")
    asked = parser.parse_args(arguments)
    try:
        machine = ask_this_machine()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    statuses = {}
    if not asked.figures_only:
        for stem in STEMS:
            statuses[f"The sweep {stem}"] = run(f"Measuring {stem}", sweep_command(stem, machine, asked.quick))
    statuses["The paper"] = run("Building the paper", paper_command())
    rows = {stem: measured_here(stem, machine) for stem in STEMS}
    print(f"\n== What was measured on this machine (records: {OUTPUTS})")
    for stem, lines in STEMS.items():
        if len(rows[stem]):
            print("\n" + "\n".join(lines(rows[stem])))
    print("\n== What could not be done here")
    print("\n".join(shortfalls(machine, statuses, asked.quick, list(rows.values()))) or "Nothing was left out.")
    print("\n== Where the report is")
    print("\n".join(report_lines(ROOT / "paper" / "build")), flush=True)
    return max(statuses.values())


def report_lines(build: Path) -> Iterator[str]:
    """Where the PDF is, or without LaTeX its figures and tables."""
    if shutil.which("latexmk"):
        yield f"PDF: {build / 'paper.pdf'}"
    yield f"Figures and tables: {build}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
