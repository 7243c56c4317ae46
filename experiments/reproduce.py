"""`python -m experiments.reproduce`: measure what suits this machine, build the paper, say what came out and holds."""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pandas as pd
import yaml

from experiments import summary
from experiments.config import ConfigError
from experiments.hardware import ROOT, Machine, ask_this_machine
from experiments.progress import duration
from experiments.records import load, tidy

OUTPUTS = ROOT / "outputs"
RESULTS = ROOT / "paper" / "results"
CLAIMS = ROOT / "paper" / "claims.yaml"
BUILD = ROOT / "paper" / "build"
WITHOUT_CLAIM = ("smoke", "tuning")
"""Experiments that say whether a sweep runs, and how the library is to be tuned: nothing to reproduce."""
QUICK = {
    "speed": ["experiment.dtype=[float32,bfloat16]", "experiment.T=[128,512]", "~experiment.also"],
    "packing": ["experiment.dtype=float32"],
    "layouts": ["experiment.dtype=float32", "~experiment.also"],
    "few_rows": ["~experiment.also.rows_64", "~experiment.also.rows_4", "~experiment.also.row_of_16_million"],
    "bidirectional": ["experiment.dtype=float32"],
    "precision": ["experiment.draws=8", "experiment.T=[128,512]"],
    "training": ["experiment.draws=20"],
}
QUICK_MINUTES = 8
"""For all sweeps together; the paper, its report and the claims take another minute or so."""
INTERRUPTED = 130


@dataclass
class Step:
    """One process of a reproduction: how it ended and how long it took."""

    title: str
    status: int
    seconds: float
    limit_minutes: float | None = None


@dataclass
class Steps:
    """All of them, in order."""

    done: list[Step] = field(default_factory=list)

    def run(self, title: str, command: list[str], limit_minutes: float | None = None) -> None:
        """Run one with its output shown."""
        print(f"\n== {title}\n{' '.join(command)}", flush=True)
        started = time.monotonic()
        status = run(command)
        self.done.append(Step(title, status, time.monotonic() - started, limit_minutes))
        print(f"== {title}: {duration(self.done[-1].seconds)}, exit status {status}", flush=True)

    @property
    def seconds(self) -> float:
        """The time of all so far."""
        return sum(step.seconds for step in self.done)


def run(command: list[str]) -> int:
    """A process of its own; its exit status."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def stems() -> list[str]:
    """The paper's experiments in the order of its claims, those without a claim behind them."""
    claims = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))["claims"]
    known = sorted({file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml")} - set(WITHOUT_CLAIM))
    claimed = dict.fromkeys(claim["stem"] for claim in claims)
    return [stem for stem in (*claimed, *(stem for stem in known if stem not in claimed)) if stem in known]


def sweep_command(stem: str, machine: Machine, limit_minutes: float | None) -> list[str]:
    """The command that measures a stem on this machine, less of it where minutes are limited."""
    hardware = "cpu" if machine.device == "cpu" else "auto"
    command = [sys.executable, "-m", "experiments", f"experiment={stem}", f"hardware={hardware}", f"outputs={OUTPUTS}"]
    if limit_minutes is None:
        return command
    return [*command, "measure=quick", *QUICK.get(stem, ()), f"limit_minutes={limit_minutes:.1f}"]


def measured() -> bool:
    """Whether sweeps left anything here, now or before."""
    return any((OUTPUTS / stem).is_dir() for stem in stems())


def paper_command() -> list[str]:
    """The command that builds figures, tables and PDF from the stored results and from what was measured here."""
    command = [sys.executable, "-m", "paper", "--results", str(RESULTS), "--out", str(BUILD)]
    return command + (["--also", str(OUTPUTS)] if measured() else [])


def report_command() -> list[str]:
    """The command that writes the HTML report."""
    return [sys.executable, "-m", "paper.report", "--results", str(RESULTS), "--outputs", str(OUTPUTS)]


def claims_command() -> list[str]:
    """The command that judges the claims: by what was measured here, or else by the stored results."""
    origin = "outputs" if measured() else "paper"
    where = ["--results", str(RESULTS), "--outputs", str(OUTPUTS)]
    return [sys.executable, "-m", "paper.claims", "--from", origin, *where]


def measured_here(stem: str, machine: Machine) -> pd.DataFrame:
    """The rows of a stem that were measured on this machine's device."""
    records = load(OUTPUTS / stem) if (OUTPUTS / stem).is_dir() else []
    return tidy([record for record in records if record["provenance"]["gpu"] == machine.name])


def summary_lines(stem: str, rows: pd.DataFrame) -> Iterable[str]:
    """What the records of a stem say: `<stem>_lines` of experiments.summary, or how many cases there are."""
    lines: Callable[[pd.DataFrame], Iterable[str]] | None = getattr(summary, f"{stem}_lines", None)
    return lines(rows) if lines else [f"{stem}: {rows['case_id'].nunique()} cases"]


def shortfalls(machine: Machine | None, steps: Steps, quick: bool, rows: list[pd.DataFrame]) -> Iterator[str]:
    """What this run could not do or did smaller than the paper, and why."""
    if machine is None:
        yield "Nothing was measured, because --figures-only asked for it."
    elif machine.device == "cpu":
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
    for step in steps.done:
        if step.limit_minutes is not None and step.seconds >= 60 * step.limit_minutes:
            yield f"{step.title} was stopped after {duration(step.seconds)}; its own lines above say what it left."
        if step.status:
            yield f"{step.title} ended with exit status {step.status}; its own lines above say why."
    found = [each for each in rows if len(each)]
    if found:
        yield from (f"No result: {line}" for line in summary.unmeasured_lines(pd.concat(found)))


def main(arguments: list[str]) -> int:
    """Run the steps; the exit status is 0 only if each succeeded and no claim that can be measured here fails."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce",
        description="Measure what suits this machine, build the paper and a report, and judge the paper's claims.",
        epilog="Started again, it measures only what is missing, failed or stale. Exit status: 0 where every claim "
        "that can be measured here holds, 1 where one fails or a step failed, 2 where the machine cannot be asked, "
        "130 where it was interrupted.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--quick", action="store_true", help="fewer sizes and repeats; sweeps stop after eight minutes together"
    )
    what.add_argument("--figures-only", action="store_true", help="measure nothing, build from what is stored")
    asked = parser.parse_args(arguments)
    try:
        # Without a sweep, nothing here needs PyTorch.
        machine = None if asked.figures_only else ask_this_machine()
        return reproduce(machine, asked.quick)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from here.", file=sys.stderr)
        return INTERRUPTED


def reproduce(machine: Machine | None, quick: bool) -> int:
    """All steps on a machine, or without one those that measure nothing."""
    steps, experiments = Steps(), stems()
    rows: dict[str, pd.DataFrame] = {}
    if machine:
        for number, stem in enumerate(experiments):
            left = QUICK_MINUTES - steps.seconds / 60
            limit = max(left, 0.1) / (len(experiments) - number) if quick else None
            steps.run(f"The sweep {stem}", sweep_command(stem, machine, limit), limit)
            rows[stem] = measured_here(stem, machine)
    steps.run("The paper", paper_command())
    steps.run("The report", report_command())
    if machine:
        print(f"\n== What was measured on this machine (records: {OUTPUTS})")
        for stem, found in rows.items():
            if len(found):
                print("\n" + "\n".join(summary_lines(stem, found)))
    print("\n== What could not be done here")
    print("\n".join(shortfalls(machine, steps, quick, list(rows.values()))) or "Nothing was left out.", flush=True)
    steps.run("The claims", claims_command())
    print("\n".join(["", "== Where everything is", *where()]), flush=True)
    return int(any(step.status for step in steps.done))


def where() -> Iterator[str]:
    """Where the report and the PDF are, or without LaTeX the PDF's figures and tables."""
    yield f"Report: {OUTPUTS / 'report' / 'index.html'}"
    yield f"Figures and tables: {BUILD}"
    if shutil.which("latexmk"):
        yield f"PDF: {BUILD / 'paper.pdf'}, and every case: {BUILD / 'supplement.pdf'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
