"""`python -m experiments.tuned [outputs]`: the tables of scan/tuning.py as the records of `experiment=tuning` have it.

Printed is what can be pasted over the tables there, comments and all; what changes and why goes to the error output. An
entry changes only where a candidate is faster than the present choice beyond doubt: both take turns, and the 95 %
interval of the ratio of their times lies below 1; over several cases of an entry, in the geometric mean. So noise
changes no table.
"""

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import ConfigError, parse_lengths
from experiments.hardware import ROOT
from experiments.records import load, median_interval
from scan import tuning

Config = tuple[int, int, int, int]
"""rows, groups, num_warps, stages"""
Place = tuple[str, int, int]
"""a table of scan/tuning.py, the size of an element, the number of an entry"""
Record = Mapping[str, Any]

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Tables of scan/tuning.py, in their order, and what the first number of an entry bounds.
TABLES = {
    "_FORWARD": "forward, {} bytes, T",
    "_BACKWARD": "backward, {} bytes, T",
    "_RAGGED_FORWARD": "forward, {} bytes, ends within a tile, T",
    "_RAGGED_BACKWARD": "backward, {} bytes, ends within a tile, T",
    "_PACKED_FORWARD": "forward, {} bytes, packed, mean length",
    "_PACKED_BACKWARD": "backward, {} bytes, packed, mean length",
}
# Rows of packed sequences that are no longer than this have no tables of their own, and are not asked.
SHORT_PACKED = 512
WIDTH = 120


@dataclass(frozen=True)
class Decision:
    """What becomes of one entry, and on what ground."""

    config: Config
    words: str


def decide(entry: str, present: Config, records: Sequence[Record]) -> Decision:
    """The fastest candidate that is right in every case of an entry, if that is faster than the present choice."""
    if not records:
        return Decision(present, f"{entry}: {present} stays, because nothing was measured")
    ratios = [_ratios(record) for record in records]
    everywhere = set.intersection(*(set(each) for each in ratios))
    means = {
        config: tuple(math.prod(each[config][at] for each in ratios) ** (1 / len(ratios)) for at in range(2))
        for config in everywhere
    }
    surely = {config: point for config, (point, high) in means.items() if high < 1}
    if not surely:
        return Decision(present, f"{entry}: {present} stays, the best of {len(everywhere) + 1}")
    best = min(surely, key=lambda config: (surely[config], config))
    return Decision(best, f"{entry}: {best} instead of {present}, {100 * (1 - surely[best]):.1f} % faster")


def _ratios(record: Record) -> dict[Config, tuple[float, float]]:
    """Each candidate's time over that of the present choice in the same turns: the median, and the upper end."""
    found = {}
    for result in record["providers"].values():
        detail = result.get("detail") or {}
        beside = detail.get("beside_ms")
        if result["status"] == "ok" and beside and len(beside) == len(result["samples_ms"]):
            ratios = [a / b for a, b in zip(result["samples_ms"], beside, strict=True)]
            tile = detail["tile"]
            config = (tile["rows"], tile["groups"], tile["num_warps"], tile["stages"])
            found[config] = (statistics.median(ratios), median_interval(ratios)[1])
    return found


def tables(records: Sequence[Record]) -> tuple[str, list[str]]:
    """The tables as Python, and a line about every entry."""
    of_entry: dict[Place | None, list[Record]] = {}
    for record in records:
        of_entry.setdefault(place(record["case"]), []).append(record)
    lines, said = [], []
    for name, words in TABLES.items():
        lines += [*_comments(name), f"{name} = {{"]
        for itemsize, entries in getattr(tuning, name).items():
            least, decided = 0, []
            for at, (longest, present) in enumerate(entries):
                bounds = f"{words.format(itemsize)} {f'up to {longest}' if longest else f'above {least}'}"
                decision = decide(bounds, present, of_entry.get((name, itemsize, at), []))
                decided.append(f"({longest}, {decision.config})")
                said.append(decision.words)
                least = longest or least
            lines += _wrapped(itemsize, decided)
        lines.append("}  # fmt: skip")
    return "\n".join(lines), said


def place(case: Mapping[str, Any]) -> Place | None:
    """Table, size of element and number of the entry from which scan/tuning.py takes the configuration of a case."""
    itemsize, T, suffix = ITEMSIZES[case["dtype"]], case["T"], f"_{case['mode'].upper()}"
    if case["lengths"]:
        if T <= SHORT_PACKED:
            return None
        return _entry(f"_PACKED{suffix}", itemsize, T // len(parse_lengths(case["lengths"])))
    plain = _entry(suffix, itemsize, T)
    _, (_, groups, _, _) = getattr(tuning, suffix)[itemsize][plain[2]]
    tile = groups * 16 // itemsize
    return _entry(f"_RAGGED{suffix}", itemsize, T) if T > tile and T % tile else plain


def _entry(name: str, itemsize: int, length: int) -> Place:
    bounds = [longest for longest, _ in getattr(tuning, name)[itemsize]]
    return name, itemsize, next(at for at, longest in enumerate(bounds) if longest is None or longest >= length)


def _comments(name: str) -> list[str]:
    """The comments that stand above a table."""
    source = Path(tuning.__file__).read_text()
    found = re.search(rf"((?:^#.*\n)*)^{name} = ", source, re.MULTILINE)
    return found[1].splitlines() if found else []


def _wrapped(itemsize: int, entries: Sequence[str]) -> list[str]:
    """The entries of one size of element, in lines that are not too long."""
    lines = [f"    {itemsize}: ("]
    for at, entry in enumerate(entries):
        part = entry + ("," if at < len(entries) - 1 or len(entries) == 1 else "),")
        if not lines[-1].endswith("("):
            part = " " + part
        if len(lines[-1] + part) > WIDTH:
            lines.append(" " * 8 + part.strip())
        else:
            lines[-1] += part
    if len(entries) == 1:
        lines[-1] += "),"
    return lines


def heading(records: Sequence[Record]) -> Iterable[str]:
    """Where the numbers are from, as comments."""
    for gpu in sorted({str(record["provenance"]["gpu"]) for record in records}):
        of_gpu = [record["provenance"] for record in records if str(record["provenance"]["gpu"]) == gpu]
        facts = {
            word: ", ".join(sorted({str(each[word]) for each in of_gpu})) for word in ("driver", "triton", "commit")
        }
        yield (
            f"# {len(of_gpu)} cases of experiment=tuning on {gpu}, driver {facts['driver']}, "
            f"Triton {facts['triton']}, commit {facts['commit']}"
        )


def chosen(source: Path, hardware: str | None) -> Sequence[Record]:
    """The records of one machine, measured on a GPU."""
    folder = source / "tuning" if (source / "tuning").is_dir() else source
    records = [each for each in load(folder) if each["stem"] == "tuning"] if folder.exists() else []
    records = [each for each in records if each["provenance"]["gpu"] and hardware in (None, each["hardware"])]
    names = sorted({each["hardware"] for each in records})
    if not records:
        wanted = f" of hardware {hardware}" if hardware else ""
        raise ConfigError(
            f"There are no records{wanted} of tuning on a GPU below {source}; run "
            "`python -m experiments experiment=tuning` first."
        )
    if len(names) > 1:
        raise ConfigError(f"There are records of {' and '.join(names)} below {source}; choose one with --hardware.")
    return records


def main(arguments: list[str]) -> int:
    """Print the tables, and to the error output what became of each entry."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tuned", description="The tables of scan/tuning.py.")
    parser.add_argument(
        "outputs", type=Path, nargs="?", default=ROOT / "outputs",
        help="outputs, or a file of stored results; default: the project's outputs/",
    )  # fmt: skip
    parser.add_argument("--hardware", help="the machine, where there are records of several, for example h100")
    asked = parser.parse_args(arguments)
    try:
        records = chosen(asked.outputs, asked.hardware)
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text, said = tables(records)
    print("\n".join([*heading(records), "", text]))
    print("\n".join(said), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
