"""Finished outputs -> paper/results/<hardware>/<stem>.jsonl: `python -m experiments.collect [outputs]`.

Only records of the paper's sweep, measured from sources that a commit holds; whatever is missing from it is named.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import store
from experiments.compose import compose, options, settings_of
from experiments.config import ConfigError, Settings
from experiments.hardware import ROOT
from experiments.provenance import MEASURED_SOURCES, hash_of_files, sources_at
from experiments.records import OUTPUTS, load

RESULTS = ROOT / "paper" / "results"
NO_RESULT = "smoke"
"""The experiment that only shows that a sweep runs."""


@dataclass
class Collected:
    """What became of one stem on one machine."""

    stem: str
    hardware: str
    expected: int
    lines: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def report(self) -> Iterable[str]:
        """The outcome in lines for people."""
        yield f"{self.hardware}/{self.stem}: {len(self.lines)} of {self.expected} cases"
        yield from (f"  gap: {gap}" for gap in self.gaps)
        yield from (f"  left out: {why}" for why in self.left_out)


def paper_settings(stem: str, hardware: str) -> Settings:
    """The paper's sweep of a stem on a machine; a machine without a preset has no limits."""
    preset = [f"hardware={hardware}"]
    if hardware not in options("hardware"):
        preset = ["hardware=auto", f"hardware.name={hardware}", "hardware.device=cuda"]
    overrides = [f"experiment={stem}", *preset]
    return settings_of(compose(*overrides), overrides)


def choose(records: Iterable[Mapping[str, Any]], settings: Settings) -> Collected:
    """The records of the paper's cases in its order, one line each, and which cases have none."""
    by_case = {record["case_id"]: record for record in records}
    cases = [case for case in settings.experiment.cases() if settings.hardware.fits(case)]
    chosen = Collected(settings.experiment.stem, settings.hardware.name, len(cases))
    paper_measure = dataclasses.asdict(settings.measure)
    for case in cases:
        record = by_case.pop(case.id, None)
        if record is None:
            chosen.gaps.append(f"{case.id} has not been measured")
        elif record["protocol"].get("measure", paper_measure) != paper_measure:
            chosen.gaps.append(f"{case.id} has not been measured with measure=paper")
        else:
            chosen.lines.append(json.dumps(record, allow_nan=False))
            for name in store.failures(record):
                result = record["providers"][name]
                chosen.gaps.append(f"{case.id} has no {name}: {result['status']}: {result.get('reason')}")
    chosen.left_out = [f"{record['case_id']} is no case of the paper" for record in by_case.values()]
    return chosen


def distrust(record: Mapping[str, Any], root: Path, hashes: dict[str, str | None]) -> str | None:
    """Why a record's sources cannot be found again; None where a commit holds exactly what was measured."""
    provenance = record["provenance"]
    if provenance["dirty"]:
        return "was measured while scan/, experiments/ or conf/ had uncommitted changes; commit them and measure again"
    commit = provenance["commit"] or "HEAD"
    if commit not in hashes:
        files = sources_at(root, commit, MEASURED_SOURCES)
        hashes[commit] = None if files is None else hash_of_files(files)
    if hashes[commit] is None:
        return f"was measured at commit {commit}, which this repository does not have; fetch it or measure again"
    if hashes[commit] != provenance["measured_sources_hash"]:
        return f"was measured from other sources than those of commit {commit}; commit them and measure again"
    return None


def collect(outputs: Path, results: Path, root: Path, only: str | None = None) -> list[Collected]:
    """Write the results of every stem and machine found below a folder of outputs."""
    stems = [stem for stem in options("experiment") if stem != NO_RESULT]
    found = [record for stem in stems if (outputs / stem).is_dir() for record in load(outputs / stem)]
    found = [record for record in found if only in (None, record["hardware"])]
    if not found:
        raise ConfigError(nothing_found(outputs, stems, only))
    hashes: dict[str, str | None] = {}
    for record in found:
        reason = distrust(record, root, hashes)
        if reason:
            raise ConfigError(f"Nothing was collected: {record['stem']} {record['case_id']} {reason}.")
    made = []
    for stem, hardware in sorted({(record["stem"], record["hardware"]) for record in found}):
        records = [record for record in found if (record["stem"], record["hardware"]) == (stem, hardware)]
        made.append(choose(records, paper_settings(stem, hardware)))
    for chosen in made:
        refuse_a_loss(chosen, results)
    for chosen in made:
        if chosen.lines:
            path = results / chosen.hardware / f"{chosen.stem}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            store.replace_file(path, "\n".join(chosen.lines) + "\n")
    return made


def nothing_found(outputs: Path, stems: Sequence[str], only: str | None) -> str:
    """Why there is nothing to collect, and what to run, in one sentence."""
    wanted = f" of hardware {only}" if only else ""
    advice = f"run `python -m experiments experiment=NAME` with one of {', '.join(stems)} first."
    if only is None and any((outputs / NO_RESULT).rglob("record.json")):
        return f"Below {outputs} are only records of {NO_RESULT}, which are no results; {advice}"
    return f"There are no records{wanted} below {outputs}; {advice}"


def refuse_a_loss(chosen: Collected, results: Path) -> None:
    """Raise where stored results hold cases that the outputs lack: records of two runs are never mixed."""
    path = results / chosen.hardware / f"{chosen.stem}.jsonl"
    if not chosen.lines or not path.exists():
        return
    stored = {json.loads(line)["case_id"] for line in path.read_text(encoding="utf-8").splitlines()}
    lost = sorted(stored - {json.loads(line)["case_id"] for line in chosen.lines})
    if lost:
        raise ConfigError(
            f"Nothing was collected: {chosen.hardware}/{path.name} holds {len(lost)} cases that the outputs lack, such "
            f"as {lost[0]}; run the whole sweep into these outputs, or delete that file first."
        )


def main(arguments: list[str]) -> int:
    """Collect, and print what is there and what is not."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.collect", description="Turn finished outputs into the paper's stored results."
    )
    parser.add_argument("outputs", type=Path, nargs="?", default=OUTPUTS, help="default: %(default)s")
    parser.add_argument("--hardware", help="collect this machine only, for example h200")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to; default: paper/results")
    asked = parser.parse_args(arguments)
    try:
        made = collect(asked.outputs, asked.results, ROOT, asked.hardware)
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for each in made:
        print("\n".join(each.report()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
