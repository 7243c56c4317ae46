"""`python -m experiments.reproduce`: measure what suits this machine, build the paper, say what came out and holds.

With --gpus N, sweeps without host times run N at a time, each alone on its GPU; then those with host times, of which
nothing is to share the host, one after the other.
"""

import argparse
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pandas as pd
import yaml

from experiments import summary
from experiments.config import ConfigError
from experiments.hardware import ROOT, Machine, ask_these_machines
from experiments.processes import Job, Steps, gpus_to_use, number_of_gpus
from experiments.progress import duration
from experiments.records import OUTPUTS, load, tidy

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


def stems() -> list[str]:
    """The paper's experiments in the order of its claims, those without a claim behind them."""
    claims = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))["claims"]
    known = sorted({file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml")} - set(WITHOUT_CLAIM))
    claimed = dict.fromkeys(claim["stem"] for claim in claims)
    return [stem for stem in (*claimed, *(stem for stem in known if stem not in claimed)) if stem in known]


def sweep_overrides(stem: str, machine: Machine, limit_minutes: float | None) -> list[str]:
    """What a stem's sweep on this machine overrides in conf/, for less of it where minutes are limited."""
    hardware = "cpu" if machine.device == "cpu" else "auto"
    overrides = [f"experiment={stem}", f"hardware={hardware}", f"outputs={OUTPUTS}"]
    if limit_minutes is None:
        return overrides
    return [*overrides, "measure=quick", *QUICK.get(stem, ()), f"limit_minutes={limit_minutes:.1f}"]


def sweep_command(stem: str, machine: Machine, limit_minutes: float | None) -> list[str]:
    """The command that measures a stem on this machine, less of it where minutes are limited."""
    return [sys.executable, "-m", "experiments", *sweep_overrides(stem, machine, limit_minutes)]


def host_counts(stem: str, machine: Machine, quick: bool) -> bool:
    """Whether the sweep has cases of level api, which take the host's time too."""
    # Only here, because what measures nothing needs no Hydra.
    from experiments.compose import compose, settings_of

    overrides = sweep_overrides(stem, machine, QUICK_MINUTES if quick else None)
    settings = settings_of(compose(*overrides), overrides, machine)
    return any(case.level == "api" for case in settings.experiment.cases() if settings.hardware.fits(case))


def sweeps(experiments: list[str], machine: Machine, quick: bool, at_a_time: int, alone: int = 0) -> Iterator[Job]:
    """The sweeps in order, each with its share of the minutes that are left when it starts, if they are limited.

    So many run at a time, but for the last `alone` of them, which run one after the other.
    """
    began = time.monotonic()
    beside = len(experiments) - alone
    for number, stem in enumerate(experiments):
        left = QUICK_MINUTES - (time.monotonic() - began) / 60
        rounds = math.ceil(max(beside - number, 0) / at_a_time) + min(alone, len(experiments) - number)
        limit = max(left, 0.1) / rounds if quick else None
        yield Job(stem, f"The sweep {stem}", sweep_command(stem, machine, limit), limit)


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
            yield f"{step.title} had no time left after {duration(step.seconds)}; its own lines above say what it left."
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
        "that can be measured here holds, 1 where one fails or a step failed, 2 where the machine cannot be asked "
        "or lacks what --gpus names, 130 where it was interrupted.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--quick", action="store_true", help="fewer sizes and repeats; sweeps stop after eight minutes together"
    )
    what.add_argument("--figures-only", action="store_true", help="measure nothing, build from what is stored")
    parser.add_argument(
        "--gpus",
        metavar="N",
        default="1",
        help="run N sweeps at a time, each alone on one of N GPUs of one kind (default: 1); those with host times run "
        "last, one at a time",
    )
    asked = parser.parse_args(arguments)
    # What a scheduler or `docker stop` sends ends the sweeps as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        number = number_of_gpus(asked.gpus)
        # Without a sweep, nothing here needs PyTorch.
        found = [] if asked.figures_only else ask_these_machines()
        gpus = gpus_to_use(number, found) if found and number > 1 else []
        return reproduce(found[0] if found else None, gpus, asked.quick)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from here.", file=sys.stderr)
        return INTERRUPTED


def reproduce(machine: Machine | None, gpus: list[str], quick: bool) -> int:
    """All steps on a machine, or without one those that measure nothing.

    Where GPUs are named, sweeps run side by side, but for those with host times, which would be those of a shared host.
    """
    steps, experiments = Steps(), stems()
    rows: dict[str, pd.DataFrame] = {}
    if machine:
        if gpus:
            alone = [stem for stem in experiments if host_counts(stem, machine, quick)]
            beside = [stem for stem in experiments if stem not in alone]
            jobs = sweeps(beside + alone, machine, quick, len(gpus), len(alone))
            steps.run_side_by_side(islice(jobs, len(beside)), gpus)
            steps.run_side_by_side(jobs, gpus[:1])
        else:
            for job in sweeps(experiments, machine, quick, at_a_time=1):
                steps.run(job)
        rows = {stem: measured_here(stem, machine) for stem in experiments}
    steps.run(Job("paper", "The paper", paper_command()))
    steps.run(Job("report", "The report", report_command()))
    if machine:
        print(f"\n== What was measured on this machine (records: {OUTPUTS})")
        for stem, found in rows.items():
            if len(found):
                print("\n" + "\n".join(summary_lines(stem, found)))
    print("\n== What could not be done here")
    said = "\n".join(shortfalls(machine, steps, quick, list(rows.values())))
    print(said or "Nothing was left out.", flush=True)
    steps.run(Job("claims", "The claims", claims_command()))
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
