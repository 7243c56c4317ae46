"""All stored records as one table, grouped by the machine that made them.

`experiments.records.tidy` gives a row per case and provider; added here are the file a row comes from, the machine, and
the ratios that the paper shows: providers of a case are measured in turns, so that a ratio is taken within each turn;
`fraction_of` gives any of them with its interval. Both layouts of memory are measured: figures and tables show the one
with time contiguous, and beside it ours with channels contiguous under a name of its own, `CHANNELS_LAST`.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.records import QUANTITIES, NoRecordError, load, record_files, tidy
from paper.intervals import UNKNOWN, Interval, paired

CHANNELS_LAST = "ours_channels_last"
"""Ours with channels contiguous; the records call it ours, at dim = -2."""
ORIGINS = ("paper", "here", "published")
FAILED = ("diverged", "overflowed")
HOPELESS = 100
"""Times the error of rounding once; in bfloat16 an error as large as the value itself is a few hundred times that."""
WITHOUT_CLAIM = ("smoke", "tuning")
"""Experiments that only show that a sweep runs, or choose what the library is launched with."""
BOTH = "gates,tokens"
"""The gradients that a case asks for unless it says otherwise."""
LAST = 10
"""The end of a training is the last one of so many parts."""


class ResultsError(ValueError):
    """Stored results that cannot be used; the message is one sentence that says what to do."""


@dataclass(frozen=True, order=True)
class Machine:
    """A GPU or CPU by the name in its records, and where those records are from."""

    origin: str
    """`paper`: committed with it; `here`: measured by whoever builds it; `published`: printed by others."""
    hardware: str
    name: str

    @property
    def slug(self) -> str:
        """A word for file names and labels."""
        word = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return word if self.origin == "paper" else f"{word}-{self.origin}"

    @property
    def title(self) -> str:
        """What captions call it."""
        return self.name + {"paper": "", "here": " (measured here)", "published": " (published)"}[self.origin]


@dataclass(frozen=True)
class Measurements:
    """Every row that the paper may show."""

    rows: pd.DataFrame
    machines: tuple[Machine, ...]

    def of(self, machine: Machine, stem: str, kind: str = "plain", **equal: object) -> pd.DataFrame:
        """The rows of one machine and stem whose columns have the given values, peers with time contiguous only.

        `kind` as in `kind_of`: what runs backwards, say, is no part of the tables by length.
        """
        rows = self.rows
        chosen = (rows["machine"] == machine) & (rows["stem"] == stem) & (rows["kind"] == kind)
        chosen &= (rows["dim"] == -1) | (rows["provider"] == CHANNELS_LAST)
        for column, value in equal.items():
            chosen &= rows[column] == value
        return rows[chosen]

    def every(self, machine: Machine, stem: str, **equal: object) -> pd.DataFrame:
        """The rows of one machine and stem, by the names of the records and in whichever layout."""
        rows = self.rows[(self.rows["machine"] == machine) & (self.rows["stem"] == stem)]
        for column, value in equal.items():
            rows = rows[rows[column] == value]
        return rows.assign(provider=rows["recorded_as"])

    def having(self, stem: str, origins: Sequence[str] = ORIGINS, cpu: bool = False) -> list[Machine]:
        """The GPUs (or CPUs) with rows of that stem, the paper's own first."""
        return [
            machine
            for machine in self.machines
            if machine.origin in origins and (machine.hardware == "cpu") == cpu and len(self.of(machine, stem))
        ]

    def main(self, stem: str) -> Machine | None:
        """The GPU that the prose is about: the one with most rows, of the committed ones or else of those from here."""
        for origin in ("paper", "here"):
            found = self.having(stem, (origin,))
            if found:
                return max(found, key=lambda machine: len(self.of(machine, stem)))
        return None


def fraction_of(row: pd.Series, provider: str, of: str = "roofline", time: str = "samples_ms") -> Interval:
    """The time of `of` over that of a provider, in the case of a row, whichever provider the row itself is about.

    1 is as fast as `of`; with the roofline, the fraction of the limit. Providers by the names of the records; `time` is
    `samples_ms`, or `host_samples_us` for the host's part of a call. The median over the turns and both ends of its
    95 % interval (`intervals` says which and why); the quotient alone where only medians were printed, NaN where one
    of the two has no time.
    """
    return _ratio(row["results"].get(of) or {}, row["results"].get(provider) or {}, time)


def kind_of(case: Mapping[str, Any]) -> str:
    """Which part of the speed experiment a case belongs to: `plain`, `reverse`, `odd` lengths, or `fewer` gradients."""
    if case["stem"] != "speed":
        return "plain"
    if case.get("needs", BOTH) != BOTH:
        return "fewer"
    if case["reverse"]:
        return "reverse"
    return "odd" if case["T"] & (case["T"] - 1) else "plain"


def gather(results: Path, also: Sequence[Path] = ()) -> Measurements:
    """The records below `results`, stored with the paper, and below each folder in `also`, left by sweeps here."""
    if not results.is_dir():
        raise ResultsError(f"--results must be a folder of stored records such as paper/results, got {results}.")
    files = [(file, "paper") for file in sorted(results.rglob("*.jsonl"))]
    for folder in also:
        if not folder.is_dir():
            raise ResultsError(f"--also must be a folder of outputs of `python -m experiments`, got {folder}.")
        files += [(file, "here") for file in record_files(folder)]
    parts, stored = [], set()
    for file, origin in files:
        records = [record for record in _load(file) if record["stem"] not in WITHOUT_CLAIM]
        if origin == "here":
            records = [record for record in records if _identity(record) not in stored]
        else:
            stored.update(map(_identity, records))
        if records:
            parts.append(_rows(records, file, origin))
    if not parts:
        raise ResultsError(f"There are no records below {results}; restore paper/results from version control.")
    rows = pd.concat(parts, ignore_index=True)
    machines = sorted(set(rows["machine"]), key=lambda each: (ORIGINS.index(each.origin), each))
    return Measurements(rows, tuple(machines))


def left_by_sweeps(outputs: Path) -> pd.DataFrame:
    """The rows of all that sweeps left below a folder, stored by now or not; an empty table where they left nothing."""
    found = [(_load(file), file) for file in record_files(outputs)]
    parts = [_rows(records, file, "here") for records, file in found if records[0]["stem"] not in WITHOUT_CLAIM]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _load(file: Path) -> list[dict[str, Any]]:
    try:
        return load(file)
    except NoRecordError as error:
        raise ResultsError(str(error)) from error
    except ValueError as error:
        raise ResultsError(f"{file} cannot be read: {error}") from error


def _identity(record: Mapping[str, Any]) -> tuple[str, Any]:
    """The same measurement, whether still among the outputs or already stored."""
    return record["case_id"], (record.get("provenance") or {}).get("measured_at")


def _rows(records: Sequence[Mapping[str, Any]], file: Path, origin: str) -> pd.DataFrame:
    added = [_added(record, name) for record in records for name in record["providers"]]
    machines = [_machine(record, origin) for record in records for _ in record["providers"]]
    rows = pd.concat([tidy(records), pd.DataFrame(added)], axis=1)
    rows["recorded_as"] = rows["provider"]
    rows["provider"] = rows["provider"].mask((rows["provider"] == "ours") & (rows["dim"] == -2), CHANNELS_LAST)
    return rows.assign(machine=pd.Series(machines, dtype="object"), file=file.as_posix())


def _machine(record: Mapping[str, Any], origin: str) -> Machine:
    provenance = record.get("provenance") or {}
    name = provenance.get("cpu" if record["hardware"] == "cpu" else "gpu")
    return Machine("published" if record.get("published") else origin, record["hardware"], name or record["hardware"])


def _added(record: Mapping[str, Any], provider: str) -> dict[str, Any]:
    providers, provenance = record["providers"], record.get("provenance") or {}
    protocol, result = record.get("protocol") or {}, providers[provider]
    row: dict[str, Any] = {
        **{word: provenance.get(word) for word in ("driver", "cuda", "torch", "triton", "python", "cpu")},
        "l2": protocol.get("l2"),
        "printed_speedup": (record.get("published") or {}).get("printed_speedup"),
        "roofline_exceeded_by": (protocol.get("roofline_exceeded_by") or {}).get(provider),
        "gate_values": protocol.get("gate_values"),
        "exact_losses": protocol.get("exact_losses"),
        "layout": (result.get("detail") or {}).get("layout"),
        "packages": provenance.get("packages"),
        "results": providers,
        "kind": kind_of(record["case"]),
        "host_waits": (result.get("detail") or {}).get("host_waits"),
        **_facts(record, result),
    }
    for column, other in (("fraction", "roofline"), ("over_warp", "warp")):
        point, low, high = _ratio(providers.get(other) or {}, result)
        row |= {column: point, f"{column}_low": low, f"{column}_high": high}
    for quantity in QUANTITIES:
        row |= _spread(quantity, (result.get("errors") or {}).get(quantity))
        row[f"{quantity}_failed"] = _failed(result, quantity)
        row[f"{quantity}_wrong"] = _wrong(result, quantity)
    return row


def end(losses: Sequence[float]) -> float | None:
    """The mean of the last tenth, at least of one loss; None where there are none."""
    return statistics.fmean(losses[-max(1, len(losses) // LAST) :]) if losses else None


def _facts(record: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float | None]:
    """What else a claim may be about: of compiled layers, of memory, and of trainings."""
    detail, peaks = result.get("detail") or {}, result.get("peak_tensors") or {}
    losses = [math.nan if loss is None else loss for loss in result.get("losses") or []]
    case, median = record["case"], statistics.median(result.get("samples_ms") or [math.nan])
    protocol = record.get("protocol") or {}
    rounded = [end(each) or math.nan for each in protocol.get("rounded_losses") or [[]]]
    return {
        "graph_breaks": detail.get("graph_breaks"),
        "peak_tensors": detail.get("peak_tensors"),
        "dense": peaks.get("dense"),
        "expanded": peaks.get("expanded"),
        "of_rounding": (result.get("errors") or {}).get("of_rounding"),
        "last_loss": end(losses),
        # Those of the same network with exact states, and with states rounded at random, the mean of the draws.
        "exact_last_loss": end(protocol.get("exact_losses") or [math.nan]),
        "rounded_last_loss": statistics.fmean(rounded),
        "million_tokens_per_s": case["B"] * case["T"] / median / 1e3 if losses else None,
    }


def _ratio(other: Mapping[str, Any], result: Mapping[str, Any], time: str = "samples_ms") -> Interval:
    """The other's time over this one's; medians alone, where only medians were printed, have no interval."""
    if other.get(time) or result.get(time):
        return paired(other.get(time) or [], result.get(time) or [])
    if time == "samples_ms" and other.get("median_ms") and result.get("median_ms"):
        return other["median_ms"] / result["median_ms"], math.nan, math.nan
    return UNKNOWN


def _failed(result: Mapping[str, Any], quantity: str) -> bool:
    """Whether it is this quantity that diverged or overflowed; the status is that of all quantities together."""
    if result["status"] not in FAILED:
        return False
    errors = (result.get("errors") or {}).get(quantity)
    if not isinstance(errors, Mapping):
        return True
    pairs = zip(errors.get("rmse") or [], errors.get("rounding_rmse") or [], strict=False)
    return any(errors.get("nonfinite") or []) or any(a is None or a > HOPELESS * b for a, b in pairs)


def _wrong(result: Mapping[str, Any], quantity: str) -> bool:
    """Whether it is this quantity that is outside its error budget, as far as the record tells them apart."""
    errors = (result.get("errors") or {}).get(quantity)
    of_budget = errors.get("of_budget") if isinstance(errors, Mapping) else None
    return result["status"] == "wrong" if of_budget is None else any(each is None or each > 1 for each in of_budget)


def _spread(quantity: str, errors: Any) -> dict[str, Any]:
    """The error of rounding once, and between which multiples of it 95 % of the draws lie."""
    rmse, rounding = (errors.get("rmse"), errors.get("rounding_rmse")) if isinstance(errors, Mapping) else ([], [])
    factors = [a / b for a, b in zip(rmse or [], rounding or [], strict=False) if a is not None and b]
    low = high = None
    if len(factors) > 1:
        cuts = statistics.quantiles(factors, n=40, method="inclusive")
        low, high = cuts[0], cuts[-1]
    mean = statistics.fmean(rounding) if rounding else None
    return {f"{quantity}_rounding": mean, f"{quantity}_factor_low": low, f"{quantity}_factor_high": high}
