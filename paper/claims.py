"""The paper's claims as data, and whether records bear them out: `python -m paper.claims --from paper|outputs`.

`claims.yaml` has one entry for each sentence with a number: which rows of the tidy table it is about, how they become
one number, what the paper says that number is, and by how much another run on the same hardware may miss it. On the
paper's own records nothing may miss it: a bar is met by the whole 95 % interval, and any other number is the measured
one as it prints. `main.tex` prints the values as `\\claimed{<id>}`. Claims `<range>-least` and `<range>-greatest` are
the ends of a range, which prints as `\\claimed{<range>}`.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.records import OUTPUTS
from paper.measurements import ResultsError, fraction_of, gather, left_by_sweeps

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HOLDS, FAILS, NOT_MEASURABLE = "holds", "fails", "not measurable here"
REDUCTIONS = ("min", "max", "median", "all")
RELATIONS = (">=", "<=", "within")
LARGEST_TOLERANCE = 0.05
LEAST_REPEATS = 5
"""Interleaved repeats without which an interval says nothing."""
WRONG = ("wrong", "error", "diverged", "overflowed")
"""Statuses with which ours does not do what the paper says."""
SAME_CASE = ["level", "mode", "dtype", "B", "C", "T", "dim", "reverse", "lengths", "gates", "needs", "directions"]


class ClaimError(ValueError):
    """An entry of claims.yaml that cannot be judged; the message is one sentence that says what to write."""


@dataclass(frozen=True)
class Claim:
    """One sentence with one number."""

    id: str
    sentence: str
    """With `{value}` where the number stands."""
    stem: str
    where: Mapping[str, Any]
    """Column -> a value, a list of values, or `{from: ..., to: ...}`, ends included; `status` is ok if not named."""
    provider: str
    quantity: str
    """`fraction` (of the roofline), `over_<name>` (the time of that provider over the time of this one) and
    `host_over_<name>` (of the host's part of a call), each with its 95 % interval; or a column of the tidy table."""
    reduce: str
    """`min`, `max` or `median` over the rows; `all`, for a bar, asks it of each of them."""
    relation: str
    value: str
    """As the paper prints it."""
    tolerance: float
    """How far off another run on this hardware may be, relative to the value."""
    hardware: str

    def __post_init__(self) -> None:
        for name, value, allowed in (("reduce", self.reduce, REDUCTIONS), ("relation", self.relation, RELATIONS)):
            if value not in allowed:
                raise ClaimError(f"Claim {self.id}: {name} must be one of {', '.join(allowed)}, got {value!r}.")
        if self.relation == "within" and self.reduce == "all":
            raise ClaimError(f"Claim {self.id}: within is about one number, so reduce must be min, max or median.")
        if not 0 <= self.tolerance <= LARGEST_TOLERANCE:
            raise ClaimError(
                f"Claim {self.id}: tolerance must lie between 0 and {LARGEST_TOLERANCE}, got {self.tolerance}; what "
                "spreads more is no claim."
            )
        if "{value}" not in self.sentence:
            raise ClaimError(f"Claim {self.id}: its sentence must hold {{value}} where the number stands.")

    @property
    def said(self) -> str:
        """The sentence with its number."""
        return self.sentence.replace("{value}", self.value)

    @property
    def target(self) -> float:
        """The value as a number."""
        return float(self.value)

    @property
    def digits(self) -> int:
        """Decimals of the value as printed."""
        return len(self.value.partition(".")[2])

    @property
    def is_bar(self) -> bool:
        """Whether the value is a limit to one side."""
        return self.relation != "within"

    @property
    def ratio_to(self) -> tuple[str, str] | None:
        """With whom the provider is compared, and which of their times; None for a plain column, which has no interval.

        Errors are such columns: means over seeded draws, not over repeats.
        """
        if self.quantity == "fraction":
            return "roofline", "samples_ms"
        kind, over, other = self.quantity.rpartition("over_")
        return (other, "host_samples_us" if kind == "host_" else "samples_ms") if over else None

    def measured(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows with their `value`, its interval from `low` to `high`, and whether the paper counts it (`usable`).

        What a peer got wrong is left out, as in the paper, unless the claim is about that: as the provider, and as the
        one it is compared with.
        """
        if self.ratio_to is None and self.quantity not in rows:
            raise ClaimError(f"Claim {self.id}: its quantity {self.quantity!r} is no column of the tidy table.")
        found, rights = [], []
        for _, row in rows.iterrows():
            right = "status" in self.where or row["status"] == "ok"
            if self.ratio_to is None:
                found.append((float(row[self.quantity]),) * 3)
            else:
                other, time = self.ratio_to
                found.append(fraction_of(row, self.provider, other, time))
                right &= (row["results"].get(other) or {}).get("status") == "ok"
            rights.append(right)
        values = pd.DataFrame(found, columns=["value", "low", "high"], index=rows.index, dtype=float)
        usable = values["value"].notna() & pd.Series(rights, index=rows.index, dtype=bool)
        return rows.assign(**values.to_dict("series"), usable=usable)  # type: ignore[arg-type]

    def choose(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that it is about, of its provider."""
        chosen = (rows["stem"] == self.stem) & (rows["recorded_as"] == self.provider) & ~rows["published"]
        # The few rows that are left are asked for the rest.
        rows = rows[chosen & (rows["hardware"] == self.hardware)]
        chosen = pd.Series(True, index=rows.index)
        for column, condition in self.where.items():
            if column not in rows:
                raise ClaimError(f"Claim {self.id}: {column!r} is no column of the tidy table.")
            chosen &= _meets(rows[column], condition)
        return rows[chosen]


@dataclass(frozen=True)
class Verdict:
    """What records say of a claim."""

    claim: Claim
    word: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    """What else there is to say: why it fails or cannot be measured, or how much of it was."""
    sources: tuple[str, ...] = ()
    """File, case and provider of the row that decides."""

    @property
    def here(self) -> str:
        """The measured number, a digit more than the paper prints, with its interval where a bar asks for it."""
        if self.measured is None:
            return "-"
        digits = self.claim.digits + 1
        ends = (self.low, self.high)
        span = [f"{end:.{digits}f}" for end in ends if end is not None] if self.claim.is_bar else []
        return f"{self.measured:.{digits}f}" + (f" ({span[0]} to {span[1]})" if len(span) == 2 else "")

    @property
    def text(self) -> str:
        """The verdict and what else there is to say."""
        return f"{self.word}: {self.why}" if self.why else self.word


class _Text(yaml.SafeLoader):
    """Scalars stay text, so that a value prints with the digits that were typed; `<<` still merges."""


_Text.yaml_implicit_resolvers = {"<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]}


def load_claims(file: Path = HERE / "claims.yaml") -> list[Claim]:
    """The entries of claims.yaml, in the order of the paper."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Text)
    except (OSError, yaml.YAMLError) as error:
        raise ClaimError(f"{file} cannot be read: {error}") from error
    entries = content.get("claims") if isinstance(content, Mapping) else None
    claims = [_claim(entry, number) for number, entry in enumerate(entries or (), 1)]
    if not claims:
        raise ClaimError(f"{file} holds no claims.")
    ids = [claim.id for claim in claims]
    for name in ids:
        if ids.count(name) > 1:
            raise ClaimError(f"Claim {name} is there {ids.count(name)} times; give each sentence an id of its own.")
    return claims


def _claim(entry: Any, number: int) -> Claim:
    name = entry.get("id", f"number {number}") if isinstance(entry, Mapping) else f"number {number}"
    expected = [field.name for field in fields(Claim)]
    if not isinstance(entry, Mapping) or set(entry) != set(expected):
        raise ClaimError(f"Claim {name}: expected the fields {', '.join(expected)}, got {', '.join(entry)}.")
    for word in ("value", "tolerance"):
        try:
            float(entry[word])
        except (TypeError, ValueError):
            raise ClaimError(f"Claim {name}: {word} must be a number, got {entry[word]!r}.") from None
    if not isinstance(entry["where"], Mapping):
        raise ClaimError(f"Claim {name}: where must map columns to values, got {entry['where']!r}.")
    return Claim(**{**entry, "tolerance": float(entry["tolerance"])})


def _meets(column: pd.Series, condition: Any) -> pd.Series:
    """Where a column has a value, one of some values, or lies between two ends."""
    if isinstance(condition, Mapping):
        numbers = pd.to_numeric(column, errors="coerce")
        low, high = float(condition.get("from", -math.inf)), float(condition.get("to", math.inf))
        return (numbers >= low) & (numbers <= high)
    allowed = condition if isinstance(condition, list) else [condition]
    return column.astype(str).str.lower().isin([str(each).lower() for each in allowed])


def judge(claim: Claim, stored: pd.DataFrame, here: pd.DataFrame | None = None) -> Verdict:
    """What the paper's stored rows say of a claim or, where given, those measured here."""
    rows = stored if here is None else here
    of_stem = rows if rows.empty else rows[(rows["stem"] == claim.stem) & ~rows["published"]]
    if of_stem.empty:
        return _no(claim, f"there is no record of it; `python -m experiments -m experiment={claim.stem}` makes them")
    if claim.hardware not in set(of_stem["hardware"]):
        return _no(claim, f"made for {_name(stored, claim.hardware)}, this is {_names(of_stem)}")
    wanted = claim.measured(claim.choose(stored))
    chosen = wanted if here is None else claim.measured(claim.choose(rows))
    if chosen.empty:
        return _no(claim, f"none of its {_cases(len(wanted))} was measured with {claim.provider}")
    bad = chosen[chosen["status"].isin(WRONG)]
    if claim.provider == "ours" and len(bad):
        return Verdict(claim, FAILS, why=_complaint(claim, bad), sources=_sources(bad.head(1)))
    usable, known = chosen[chosen["usable"]], wanted[wanted["usable"]]
    if usable.empty:
        return _no(claim, _complaint(claim, chosen))
    if claim.is_bar and claim.ratio_to and usable["samples"].min() < LEAST_REPEATS:
        fewest = int(usable["samples"].min())
        return _no(claim, f"{fewest} repeats were measured, and a bar takes at least {LEAST_REPEATS}")
    covered = len(known[SAME_CASE].merge(usable[SAME_CASE], how="inner").drop_duplicates())
    part = f"{covered} of its {_cases(len(known))}" if covered < len(known) else ""
    if part and not claim.is_bar:
        lost = chosen[~chosen["usable"]]
        because = f"; {_complaint(claim, lost)}" if len(lost) else ""
        return _no(claim, f"it is the {claim.reduce} over all cases, and {part} can be used{because}")
    return _compare(claim, usable, 0 if here is None else claim.tolerance, part)


def _compare(claim: Claim, rows: pd.DataFrame, tolerance: float, part: str) -> Verdict:
    """The verdict on rows that can be judged."""
    if claim.reduce == "median":
        measured = float(rows["value"].median())
        ordered = rows.loc[(rows["value"] - measured).abs().sort_values(kind="stable").index]
    else:
        least = claim.reduce == "min" or (claim.reduce == "all" and claim.relation == ">=")
        column = "value" if claim.reduce != "all" else "low" if least else "high"
        ordered = rows.sort_values(column, kind="stable", ascending=least)
        measured = float(ordered.iloc[0]["value"])
    row = ordered.iloc[0]
    low, high = float(row["low"]), float(row["high"])
    slack = tolerance * abs(claim.target)
    if claim.relation == ">=":
        good = low >= claim.target - slack
    elif claim.relation == "<=":
        good = high <= claim.target + slack
    elif tolerance:
        good = abs(measured - claim.target) <= slack + 0.5 * 10**-claim.digits
    else:
        good = f"{measured:.{claim.digits}f}" == claim.value
    why = (f"in {part}" if part else "") if good else f"at {_label(row)}"
    ends = (low, high) if claim.ratio_to else (None, None)
    return Verdict(claim, HOLDS if good else FAILS, measured, *ends, why, _sources(ordered.head(1)))


def _no(claim: Claim, why: str) -> Verdict:
    return Verdict(claim, NOT_MEASURABLE, why=why)


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _complaint(claim: Claim, rows: pd.DataFrame) -> str:
    """Why the first of these rows cannot be used: its own status, or that of the one it is compared with."""
    row = rows.iloc[0]
    name, result = claim.provider, row["results"][claim.provider]
    if result["status"] == "ok" and claim.ratio_to:
        name = claim.ratio_to[0]
        result = row["results"].get(name) or {"status": "not in its record"}
    if result["status"] == "ok":
        return f"{claim.provider} has no {claim.quantity} at {_label(row)}"
    reason = str(result.get("reason") or "").rstrip(".")
    return f"{name} is {result['status']} at {_label(row)}" + (f": {reason}" if reason else "")


def _label(row: pd.Series) -> str:
    layout = ", channels contiguous" if row["dim"] == -2 else ""
    both = "" if row["directions"] == "causal" else f", {row['directions'].replace('_', ' ')}"
    return f"T = {row['T']} ({row['mode'].replace('_', ' and ')}, {row['dtype']}{layout}{both})"


def _names(rows: pd.DataFrame) -> str:
    return " and ".join(sorted({machine.name for machine in rows["machine"]}))


def _name(stored: pd.DataFrame, hardware: str) -> str:
    """What the stored records call the hardware."""
    return _names(stored[(stored["hardware"] == hardware) & ~stored["published"]]) or hardware


def _sources(rows: pd.DataFrame) -> tuple[str, ...]:
    found = []
    for file, case_id, provider in zip(rows["file"], rows["case_id"], rows["recorded_as"], strict=True):
        path = Path(file).resolve()
        named = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file
        found.append(f"{named}  case_id={case_id}  provider={provider}")
    return tuple(found)


def tex(stored: pd.DataFrame, claims: Iterable[Claim] | None = None) -> str:
    """The content of claims.tex: the values that the given records bear out, and the ranges between two of them.

    Above each is what it comes from: the record that decides, or both ends.
    """
    lines = ["% Generated by `python -m paper` from claims.yaml: the claims that these records bear out."]
    values = {}
    for verdict in (judge(claim, stored) for claim in claims or load_claims()):
        if verdict.word == HOLDS:
            values[verdict.claim.id] = verdict.claim.value
            lines += [f"% {source}" for source in verdict.sources]
            lines.append(rf"\definenumber{{{verdict.claim.id}}}{{{verdict.claim.value}}}")
    for name, ends in ranges(values).items():
        printed = " to ".join(dict.fromkeys(values[end] for end in ends))
        lines += [f"% {' to '.join(ends)}", rf"\definenumber{{{name}}}{{{printed}}}"]
    return "\n".join(lines) + "\n"


def ranges(ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The ranges both of whose ends are among some ids of claims: name -> the ids of its least and its greatest."""
    known = dict.fromkeys(ids)
    names = [each.removesuffix("-least") for each in known if each.endswith("-least")]
    return {name: (f"{name}-least", f"{name}-greatest") for name in names if f"{name}-greatest" in known}


def left_out(text: str) -> list[str]:
    """The claims that are not in this claims.tex: sentences about them are not in the paper."""
    return [claim.id for claim in load_claims() if rf"\definenumber{{{claim.id}}}" not in text]


def table(verdicts: Sequence[Verdict], measured: str = "here") -> Iterable[str]:
    """Claim, paper, what was measured and verdict in columns; below each the sentence and the record that decides."""
    rows = [("claim", "paper", measured, "verdict")]
    rows += [(each.claim.id, f"{sign(each.claim)}{each.claim.value}", each.here, each.text) for each in verdicts]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row, verdict in zip(rows, [None, *verdicts], strict=True):
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        if verdict:
            yield f"    {verdict.claim.said}"
            yield from (f"    {source}" for source in verdict.sources)


def sign(claim: Claim) -> str:
    """What stands before the value of a bar."""
    return {">=": "≥ ", "<=": "≤ ", "within": ""}[claim.relation]


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of each."""
    words = [verdict.word for verdict in verdicts]
    return (
        f"{len(words)} claims: {words.count(HOLDS)} hold, {words.count(FAILS)} fail, "
        f"{words.count(NOT_MEASURABLE)} cannot be measured here."
    )


def verdicts_of(origin: str, results: Path, outputs: Path, claims: Iterable[Claim]) -> list[Verdict]:
    """The verdicts on all claims by the stored records (`paper`) or by what a sweep left (`outputs`)."""
    stored = gather(results).rows
    here = left_by_sweeps(outputs) if origin == "outputs" else None
    return [judge(claim, stored, here) for claim in claims]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the claims and their verdicts; 1 where one fails, 2 where they cannot be judged at all."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.claims",
        description="Print each claim of the paper: what it says, what was measured, and whether it holds.",
        epilog="Exit status: 0 where all claims that can be measured hold, 1 where one fails, 2 for unusable input.",
    )
    parser.add_argument(
        "--from", dest="origin", choices=("paper", "outputs"), default="paper",
        help="judge the stored results or what sweeps left on this machine (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, default=HERE / "results", help="stored records (default: %(default)s)")
    parser.add_argument("--outputs", type=Path, default=OUTPUTS, help="outputs (default: %(default)s)")
    parser.add_argument("--claims", type=Path, default=HERE / "claims.yaml", help="the claims (default: %(default)s)")
    asked = parser.parse_args(arguments)
    try:
        if asked.origin == "outputs" and not asked.outputs.is_dir():
            raise ResultsError(
                f"expected a folder that sweeps left records in, but {asked.outputs} is none: name one by --outputs."
            )
        verdicts = verdicts_of(asked.origin, asked.results, asked.outputs, load_claims(asked.claims))
    except (ClaimError, ResultsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stored = asked.origin == "paper"
    where = f"{asked.results}/HARDWARE/STEM.jsonl" if stored else f"{asked.outputs}/STEM/CASE-HARDWARE/record.json"
    samples = f"Raw samples: `samples_ms` of each provider in {where}."
    print("\n".join([*table(verdicts, "stored" if stored else "here"), "", samples, summary(verdicts)]))
    return int(any(verdict.word == FAILS for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
