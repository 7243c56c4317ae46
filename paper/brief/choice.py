"""When to use which: in each situation who is fastest, as the records have it, and by how much."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from paper import style
from paper.measurements import Measurements, fraction_of
from paper.steps import WAYS, steps
from paper.tables.memory import rows_of
from paper.trainings import trainings
from paper.typeset import MISSING, Float, decimals, escape, listed, significant, table

OURS = ("ours", "ours_eager", "ours_reduce_overhead")


@dataclass(frozen=True)
class Situation:
    """What a reader wants to run, and the cases that tell."""

    words: str
    rows: pd.DataFrame
    """Rows of ours, one a case."""
    table: str
    """The name of the file whose table has the values."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """One table; a situation that no record is about is left out."""
    situations = [each for each in _situations(measurements) if len(each.rows)]
    body = [[each.words, *_judged(each)] for each in situations] + _held(measurements)
    if not situations:
        return []
    names = listed(sorted({escape(machine.title) for each in situations for machine in each.rows["machine"]}))
    head = [r"situation & cases & fastest & ours & the fastest other & values \\"]
    caption = (
        f"When to use which, by the records of {names}. \\emph{{fastest}}: whose 95\\,\\% interval of the ratio lies "
        r"on its side of 1 in every case; where cases differ, in how many (\emph{even}: the interval holds 1). "
        r"\emph{ours}: the time of the fastest other whose result is within its error budget over the time of ours, "
        r"from the least to the greatest case."
    )
    ragged = r">{\raggedright\arraybackslash}"
    spec = rf"{ragged}p{{1.9in}}r{ragged}p{{1.6in}}l{ragged}p{{1.15in}}l"
    return [table("tab:brief:choice", spec, head, body, caption, gap="4pt")]


def _situations(measurements: Measurements) -> Iterator[Situation]:
    speed = measurements.main("speed")
    if speed is not None:
        rows = measurements.of(speed, "speed", provider="ours", status="ok")
        kernels, calls = (rows[rows["level"] == level] for level in ("kernel", "api"))
        full, half = (kernels[kernels["dtype"].isin(each)] for each in (("float32",), ("bfloat16", "float16")))
        yield Situation(r"kernels, float32, $T\le2048$", full[full["T"] <= 2048], "tables/speed")
        yield Situation(r"kernels, float32, $T\ge4096$", full[full["T"] >= 4096], "tables/speed")
        yield Situation("kernels, 16 bits", half, "tables/speed")
        calls = calls[calls["dtype"] == "float32"]
        yield Situation("a forward call, float32", calls[calls["mode"] == "forward"], "tables/api")
        trained = calls[calls["mode"] == "forward_backward"]
        yield Situation("a call and its gradient, $T<512$", trained[trained["T"] < 512], "tables/api")
        yield Situation(r"a call and its gradient, $T\ge512$", trained[trained["T"] >= 512], "tables/api")
        for kind, words in (
            ("reverse", "from the last step to the first"),
            ("odd", "lengths that are no power of two"),
        ):
            rows = measurements.of(speed, "speed", kind=kind, level="kernel", provider="ours", status="ok")
            yield Situation(words, rows, "tables/variants")
    for stem, words in (("packing", "packed sequences"), ("layouts", "channels last"), ("few_rows", "few long rows")):
        machine = measurements.main(stem)
        if machine is not None:
            rows = measurements.every(machine, stem, level="kernel", recorded_as="ours", status="ok")
            if stem == "few_rows":
                yield Situation(words, rows[rows["dtype"] != "complex64"], f"tables/{stem}")
                yield Situation("complex numbers", rows[rows["dtype"] == "complex64"], f"tables/{stem}")
            else:
                yield Situation(words, rows, f"tables/{stem}")
    both = measurements.main("bidirectional")
    if both is not None:
        rows = measurements.every(both, "bidirectional", recorded_as="ours", status="ok")
        kernels = rows[rows["level"] == "kernel"]
        branched = kernels["directions"] == "branched"
        yield Situation("both directions, two branches", kernels[branched], "tables/bidirectional")
        yield Situation("both directions of the same tensors", kernels[~branched], "tables/bidirectional")
    compiled = measurements.main("compile")
    if compiled is not None:
        rows = steps(measurements, compiled)
        rows = rows[(rows["recorded_as"] == "ours") & (rows["mode"] == "forward_backward") & (rows["status"] == "ok")]
        yield Situation("a step of a compiled layer", rows, "tables/compile")
    trained = measurements.main("training")
    if trained is not None:
        rows = trainings(measurements, trained)
        rows = rows[(rows["recorded_as"] == "ours") & (rows["status"] == "ok")]
        yield Situation("a step of a small network", rows, "tables/training")


def _judged(situation: Situation) -> list[str]:
    """How many cases, who is fastest, the ratios that say so and to whom, and where the values are."""
    found = [best for _, row in situation.rows.iterrows() if (best := _best_other(row)) is not None]
    where = rf"\whenmeasured{{refs.{situation.table}}}{{\refsto{{{situation.table}}}}}{{}}"
    count = len(situation.rows)
    if not found:
        return [str(count), "ours", MISSING, "none ran it", where]
    alone = count - len(found)
    ours = sum(low > 1 for _, low, _, _ in found) + alone
    others = [name for _, _, high, name in found if high < 1]
    names = listed([_short(name) for name in _in_order(name for _, _, _, name in found)])
    ratios = [point for point, _, _, _ in found]
    none = f" (none in {alone})" if alone else ""
    return [str(count), _verdict(ours, others, count), _between(min(ratios), max(ratios)), names + none, where]


def _verdict(ours: int, others: Sequence[str], count: int) -> str:
    parts = [("ours", ours), *((_short(name), others.count(name)) for name in _in_order(others))]
    parts = [(name, number) for name, number in [*parts, ("even", count - ours - len(others))] if number]
    return parts[0][0] if len(parts) == 1 else listed([f"{name} in {number}" for name, number in parts])


def _best_other(row: pd.Series) -> tuple[float, float, float, str] | None:
    """The fastest other that is right: its time over that of ours, the interval, and its name."""
    found = []
    for name, result in row["results"].items():
        if name == "roofline" or name in OURS or result["status"] != "ok":
            continue
        point, low, high = fraction_of(row, "ours", name)
        if point == point and low == low:
            found.append((point, low, high, name))
    return min(found, default=None)


def _in_order(names: Iterable[str]) -> list[str]:
    known = [*WAYS, *style.LOOKS]
    return sorted(set(names), key=known.index)


def _short(name: str) -> str:
    """A word for a column; the whole label where that would be an abbreviation."""
    if name not in style.LOOKS:
        return escape(WAYS[name].label.replace(",", ""))
    look = style.LOOKS[name]
    return escape(look.label if "." in look.short else look.short)


def _between(least: float, greatest: float) -> str:
    ends = [significant(value, 3) if value >= 10 else decimals(value) for value in (least, greatest)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _held(measurements: Measurements) -> list[list[str]]:
    """What a training step of the scan holds, ours and the least of the others."""
    machine = measurements.main("memory")
    if machine is None:
        return []
    rows = rows_of(measurements, machine)
    rows = rows[rows["status"] == "ok"]
    ours, others = rows[rows["recorded_as"] == "ours"], rows[rows["recorded_as"] != "ours"]
    if ours.empty or others.empty:
        return []
    least, most = others["dense"].min(), ours["dense"].max()
    holders = [_short(name) for name in _in_order(others.loc[others["dense"] == least, "recorded_as"])]
    word = "ours" if most < least else listed(holders) if ours["dense"].min() > least else "even"
    spread = _between(float(ours["dense"].min()), float(most))
    where = r"\whenmeasured{refs.tables/memory}{\refsto{tables/memory}}{}"
    held = rf"{spread} tensors"
    return [
        [
            "least memory, forward and backward",
            str(len(ours)),
            word,
            held,
            f"{decimals(float(least))} ({listed(holders)})",
            where,
        ]
    ]
