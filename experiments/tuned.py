"""`python -m experiments.tuned [outputs]`: the tables of scan/tuning.py as the records of `experiment=tuning` have it.

Printed is what can be pasted over the tables there, comments and all, letter by letter where nothing changes; what
changes and why goes to the error output. An entry changes only where a candidate is faster than the present choice
beyond doubt: both take turns, and the 95 % interval of the ratio of their times lies below 1; over several cases of an
entry, in the geometric mean. So noise changes no table.
"""

import argparse
import ast
import functools
import importlib.util
import itertools
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.candidates import launch_shape, present
from experiments.config import Case, ConfigError
from experiments.records import OUTPUTS, load, median_interval
from scan import tuning
from scan.tuning import Tile

Config = tuple[int, int, int, int] | Tile
"""What an entry holds: rows, groups, num_warps and stages, or all of a tile."""
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
    "_SPLIT_FORWARD": "forward, {} bytes, few long rows",
    "_SPLIT_BACKWARD": "backward, {} bytes, few long rows",
    "_SPLIT_PACKED_FORWARD": "forward, {} bytes, few long packed rows",
    "_SPLIT_PACKED_BACKWARD": "backward, {} bytes, few long packed rows",
    "_SPLIT_RAGGED_FORWARD": "forward, {} bytes, few long rows that end within a tile",
    "_SPLIT_RAGGED_BACKWARD": "backward, {} bytes, few long rows that end within a tile",
    "_RUNS_FORWARD": "forward, {} bytes, long rows of whole tiles",
    "_RUNS_BACKWARD": "backward, {} bytes, long rows of whole tiles",
    "_SHARED_FORWARD": "forward, {} bytes, both directions, T",
    "_SHARED_BACKWARD": "backward, {} bytes, both directions, T",
    "_LAST_FORWARD": "forward, {} bytes, channels last, T",
    "_LAST_BACKWARD": "backward, {} bytes, channels last, T",
    "_LAST_SOME_FORWARD": "forward, {} bytes, channels last, some",
    "_LAST_SOME_BACKWARD": "backward, {} bytes, channels last, some",
    "_LAST_FEW_FORWARD": "forward, {} bytes, channels last, few",
    "_LAST_FEW_BACKWARD": "backward, {} bytes, channels last, few",
    "_LAST_FEW_SHORT": "{} bytes, channels last, few and short",
    "_LAST_ODD_FORWARD": "forward, {} bytes, channels last that begin anywhere",
    "_LAST_ODD_BACKWARD": "backward, {} bytes, channels last that begin anywhere",
}
# A table that is a tile alone holds it for numbers of so many bytes.
LONE = 4
WIDTH = 120


@dataclass(frozen=True)
class Decision:
    """What becomes of one entry, and on what ground."""

    config: Config
    words: str


def decide(entry: str, present: Config, records: Sequence[Record]) -> Decision:
    """The fastest candidate that is right in every case of an entry, if that is faster than the present choice."""
    if not records:
        return Decision(present, f"{entry}: {as_python(present)} stays, because nothing was measured")
    ratios = [_ratios(record, isinstance(present, Tile)) for record in records]
    everywhere = set.intersection(*(set(each) for each in ratios))
    means = {
        config: tuple(math.prod(each[config][at] for each in ratios) ** (1 / len(ratios)) for at in range(2))
        for config in everywhere
    }
    surely = {config: point for config, (point, high) in means.items() if high < 1}
    if not surely:
        return Decision(present, f"{entry}: {as_python(present)} stays, the best of {len(everywhere) + 1}")
    best = min(surely, key=lambda config: (surely[config], str(config)))
    return Decision(
        best, f"{entry}: {as_python(best)} instead of {as_python(present)}, {100 * (1 - surely[best]):.1f} % faster"
    )


def _ratios(record: Record, whole: bool) -> dict[Config, tuple[float, float]]:
    """Each candidate's time over that of the present choice in the same turns: the median, and the upper end."""
    found = {}
    for result in record["providers"].values():
        detail = result.get("detail") or {}
        beside = detail.get("beside_ms")
        if result["status"] == "ok" and beside and len(beside) == len(result["samples_ms"]):
            ratios = [a / b for a, b in zip(result["samples_ms"], beside, strict=True)]
            tile = Tile(**detail["tile"])
            config = tile if whole else (tile.rows, tile.groups, tile.num_warps, tile.stages)
            found[config] = (statistics.median(ratios), median_interval(ratios)[1])
    return found


def tables(records: Sequence[Record]) -> tuple[str, list[str]]:
    """The tables as Python, and a line about every entry."""
    of_entry: dict[Place | None, list[Record]] = {}
    for record in records:
        of_entry.setdefault(place(record["case"]), []).append(record)
    lines, said, changed = [], [], set()
    all_decided: dict[str, dict[int, list[tuple[int | None, Config]]]] = {}
    for name, words in TABLES.items():
        decided = all_decided[name] = {}
        for itemsize, value in _sizes(tuning, name).items():
            least, decided[itemsize] = 0, []
            for at, (longest, config) in enumerate(_entries(value)):
                bounds = "" if isinstance(value, Tile) else f" up to {longest}" if longest else f" above {least}"
                entry = words.format(itemsize) + bounds
                decision = decide(entry, config, of_entry.get((name, itemsize, at), []))
                decided[itemsize].append((longest, decision.config))
                said.append(decision.words)
                least = longest or least
                if decision.config != config:
                    changed.add(name)
    for names in _statements():
        lines += _comments(names[0])
        lines += _written({name: all_decided[name] for name in names}) if changed & {*names} else _source(names[0])
    return "\n".join(lines).strip("\n"), said


def place(case: Mapping[str, Any]) -> Place | None:
    """Table, size of element and number of the entry from which scan/tuning.py takes the configuration of a case.

    None where a rule chooses: for few steps of channels, and for both directions of rows that cut vectors.
    """
    numbered, places = _numbered()
    whole = Case(**case)
    tile = present(whole.T, ITEMSIZES[whole.dtype], **launch_shape(whole), chooser=numbered)
    return places[-1 - tile.num_warps] if tile is not None and tile.num_warps < 0 else None


@functools.cache
def _numbered() -> tuple[ModuleType, list[Place]]:
    """scan/tuning.py once more, with a number below 0 for the warps of each entry, which leaves choices as they are."""
    spec = importlib.util.find_spec("scan.tuning")
    assert spec is not None and spec.loader is not None
    copy, places = importlib.util.module_from_spec(spec), []
    spec.loader.exec_module(copy)

    def number(config: Any, *place: Any) -> Config:
        places.append(place)
        if isinstance(config, copy.Tile):
            return config._replace(num_warps=-len(places))
        rows, groups, _, stages = config
        return rows, groups, -len(places), stages

    for name in TABLES:
        table = getattr(copy, name)
        if isinstance(table, copy.Tile):
            setattr(copy, name, number(table, name, LONE, 0))
            continue
        for itemsize, value in table.items():
            if isinstance(value, copy.Tile):
                table[itemsize] = number(value, name, itemsize, 0)
            else:
                numbered = [(longest, number(each, name, itemsize, at)) for at, (longest, each) in enumerate(value)]
                table[itemsize] = tuple(numbered)
    return copy, places


def _sizes(chooser: ModuleType, name: str) -> dict[int, Any]:
    """What a table holds, by size of element."""
    table = getattr(chooser, name)
    return {LONE: table} if isinstance(table, Tile) else table


def _entries(value: Any) -> list[tuple[int | None, Config]]:
    """What a table holds for one size of element: entries by length, or one for all."""
    return [(None, value)] if isinstance(value, Tile) else list(value)


@functools.cache
def _lines() -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The lines of scan/tuning.py, and from where to where each table stands in them."""
    text = Path(tuning.__file__).read_text()
    found = {}
    for node in ast.parse(text).body:
        for target in node.targets if isinstance(node, ast.Assign) else []:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                found[ast.unparse(each)] = (node.lineno - 1, node.end_lineno or node.lineno)
    return text.splitlines(), found


def _statements() -> list[list[str]]:
    """The tables, together those that one statement assigns."""
    _, found = _lines()
    return [list(names) for _, names in itertools.groupby(TABLES, lambda name: found[name])]


def _source(name: str) -> list[str]:
    """A table as it stands, and what its statement assigns beside it."""
    lines, found = _lines()
    start, stop = found[name]
    return lines[start:stop]


def _comments(name: str) -> list[str]:
    """The comments that stand above a table, behind an empty line unless a table is right above them."""
    lines, found = _lines()
    stop = start = found[name][0]
    while lines[start - 1].startswith("#"):
        start -= 1
    follows = start in [found[other][1] for other in TABLES]
    return [*([] if follows else [""]), *lines[start:stop]]


def _written(tables: Mapping[str, Mapping[int, Sequence[tuple[int | None, Config]]]]) -> list[str]:
    """The tables of a statement with other entries than stand there."""
    (name, decided), *_ = tables.items()
    if isinstance(getattr(tuning, name), Tile):
        return [f"{', '.join(tables)} = {', '.join(as_python(of[LONE][0][1]) for of in tables.values())}"]
    if any(isinstance(value, Tile) for value in getattr(tuning, name).values()):
        line = f"{name} = {{{', '.join(f'{size}: {as_python(only)}' for size, ((_, only),) in decided.items())}}}"
        if len(line) <= WIDTH and len(_source(name)) == 1:
            return [line]
        return [f"{name} = {{", *(f"    {size}: {as_python(only)}," for size, ((_, only),) in decided.items()), "}"]
    lines = [f"{name} = {{"]
    for itemsize, entries in decided.items():
        lines += _wrapped(itemsize, [f"({longest}, {as_python(config)})" for longest, config in entries])
    # What takes more lines than one for each size is not what ruff would make of it.
    return [*lines, _source(name)[-1] if len(lines) == 1 + len(decided) else "}  # fmt: skip"]


def as_python(config: Config) -> str:
    """An entry as it is written: of a tile what is not left out."""
    if not isinstance(config, Tile):
        return str(config)
    rows, groups, width, num_warps, stages, registers, window, run = config
    parts = [str(each) for each in (rows, groups, width, num_warps)]
    parts += [] if stages == 1 else [str(stages)]
    parts += [] if registers is None else [f"registers={registers}"]
    parts += [f"window={window}"] if window else []
    parts += [f"run={run}"] if run > 1 else []
    return f"Tile({', '.join(parts)})"


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
        "outputs", type=Path, nargs="?", default=OUTPUTS,
        help="outputs, or a file of stored results; default: %(default)s",
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
