"""`python -m paper.readme`: the README's picture and table, from the stored results.

The picture is `docs/speed.svg`; the table, its notes and the picture's words stand in README.md between two comments.
"""

import argparse
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from paper import style
from paper.brief import speed
from paper.cells import PUBLISHED, one, printed
from paper.claims import HERE, ROOT
from paper.measurements import Machine, Measurements, ResultsError, fraction_of, gather
from paper.typeset import decimals, listed, significant

PICTURE = Path("docs/speed.svg")
BEGIN, END = "<!-- python -m paper.readme: begin -->", "<!-- python -m paper.readme: end -->"
LENGTHS = (512, 4096, 65536)
ROWS = (("kernel", "forward", "forward"), ("kernel", "backward", "backward"), ("api", "forward_backward", "call"))
"""Level, mode, and what the table calls them."""
PEERS = ("warp", "scalar", "hgrn", "torch_associative_scan", "jax_associative_scan")
DTYPES = ("float32", "bfloat16")
WIDE = 0.05
"""How far an interval may reach, relative to its ratio, before the ratio is marked."""
WIDTH = 120
BREAK = "<br>"
NONE = "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both and say so; 1 where results or README cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.readme", description="Write the README's picture and table from the stored results."
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="stored records (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of README.md (default: %(default)s)")
    asked = parser.parse_args(arguments)
    readme = asked.root / "README.md"
    if not readme.is_file():
        print(f"error: {readme} is missing; name the folder of README.md with --root.", file=sys.stderr)
        return 1
    try:
        measurements = gather(asked.results)
        text = renewed(readme.read_text(encoding="utf-8"), block(measurements))
        svg = picture(measurements)
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    readme.write_text(text, encoding="utf-8")
    (asked.root / PICTURE).parent.mkdir(exist_ok=True)
    (asked.root / PICTURE).write_bytes(svg)
    print(f"The picture is {asked.root / PICTURE}, its table is in {readme}.")
    return 0


def renewed(readme: str, made: str) -> str:
    """The README with what was made between its two comments."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ResultsError(f"README.md must hold the lines {BEGIN} and {END}: the table goes between them.")
    return f"{before}{begin}\n{made}\n{end}{after}"


def picture(measurements: Measurements) -> bytes:
    """Fractions of the roofline by length as an SVG, the same bytes whenever the records are the same."""
    machine, rows, kinds = _shown(measurements)
    figure, _ = speed.draw(rows, kinds, 2.6)
    figure.supxlabel(f"sequence length T on {machine.title}", fontsize=8)
    with tempfile.TemporaryDirectory() as folder, style.also(".svg"):
        style.save(figure, Path(folder) / PICTURE.name)
        return (Path(folder) / PICTURE.name).read_bytes()


def block(measurements: Measurements) -> str:
    """The picture and the table in Markdown."""
    machine, rows, kinds = _shown(measurements)
    where = f"{machine.title}, B = {_extent(rows['B'])}, C = {_extent(rows['C'])}"
    names = listed([style.look(name).label for name in style.in_order(rows["provider"]) if name != "roofline"])
    alt = f"Fraction of the roofline by sequence length on {machine.title}: {names}; {listed([*map(_panel, kinds)])}."
    wrong = " Hollow: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""
    return "\n".join(
        [
            f'<img src="{PICTURE.as_posix()}" width="100%" alt="{alt}">',
            "",
            _filled(
                f"Kernels on {where}, {_extent(rows['samples'])} interleaved measurements: the time of a kernel that "
                f"only moves the same bytes over the time taken, so that 1 is the limit.{wrong}"
            ),
            "",
            *_table(measurements, machine),
        ]
    )


def _shown(measurements: Measurements) -> tuple[Machine, pd.DataFrame, list[tuple[str, str]]]:
    found = speed.shown(measurements)
    if found is None:
        raise ResultsError("There are no stored records of speed; `python -m experiments.collect` adds them.")
    return found


def _extent(values: pd.Series) -> str:
    """One number, or the least and the greatest."""
    least, greatest = int(values.min()), int(values.max())
    return str(least) if least == greatest else f"{least} to {greatest}"


def _panel(kind: tuple[str, str]) -> str:
    mode, dtype = kind
    return f"{style.MODES[mode]} in {dtype}"


def _table(measurements: Measurements, machine: Machine) -> list[str]:
    """Ours as a fraction of the roofline, then how many times as fast as each peer it is, and what that means."""
    body, shown, furthest = [], "", 0.0
    head = ["", "T", "ours, of the roofline", *(f"× {style.look(peer).short}" for peer in PEERS)]
    for dtype in DTYPES:
        for level, mode, word in ROWS:
            rows = measurements.of(machine, "speed", level=level, mode=mode, dtype=dtype)
            ours = [own for T in LENGTHS if (own := one(rows, "ours", T=T)) is not None]
            columns = [[_times(own, one(rows, peer, T=own["T"]), peer) for own in ours] for peer in PEERS]
            lengths, fractions = [str(own["T"]) for own in ours], [_fraction(own) for own in ours]
            furthest = max([furthest, *(_reach(own, peer) for own in ours for peer in PEERS)])
            if ours:
                body.append([f"{dtype}, {word}", *map(BREAK.join, (lengths, fractions, *columns))])
                shown += "".join(cell for column in columns for cell in column)
    notes = [
        "×: how many times as fast as that peer ours is, the median over turns of its time over that of ours. "
        "The peers are "
        f"{listed([style.look(peer).label for peer in PEERS])}.",
        f"≈: the 95 % interval reaches further than {100 * WIDE:.0f} % from that, at most {100 * furthest:.0f} %."
        if "≈" in shown
        else "",
        "*forward*, *backward*: kernels alone. *call*: forward and backward through Python, from an idle GPU until the "
        "gradients are there.",
        f"{NONE}: not measured, or the peer does not run it." if NONE in shown else "",
        "†: the peer's result is outside its error budget." if "†" in shown else "",
        _published(measurements),
    ]
    return [
        _line(head),
        _line(["---", *["---:"] * (len(head) - 1)]),
        *map(_line, body),
        "",
        _filled(" ".join(filter(None, notes))),
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _fraction(ours: pd.Series) -> str:
    return _or_none(ours["fraction"]) if ours["status"] == "ok" else ours["status"]


def _times(ours: pd.Series, theirs: pd.Series | None, peer: str) -> str:
    """A ratio, marked where its interval is wide and where the peer is wrong."""
    if theirs is None or ours["status"] != "ok":
        return NONE
    point = fraction_of(ours, "ours", peer)[0]
    if pd.isna(point):
        return NONE
    return ("≈" if _reach(ours, peer) > WIDE else "") + _or_none(point) + ("†" if theirs["status"] == "wrong" else "")


def _reach(ours: pd.Series, peer: str) -> float:
    """How far the 95 % interval of a ratio reaches from it, relative to it; 0 where there is none."""
    point, low, high = fraction_of(ours, "ours", peer)
    return 0.0 if pd.isna(low) else max(high / point - 1, 1 - low / point)


def _or_none(value: float) -> str:
    return NONE if pd.isna(value) else significant(value) if value >= 10 else decimals(value)


def _published(measurements: Measurements) -> str:
    """What others printed for the package that has no records of ours."""
    said = []
    for machine in measurements.having("speed", ("published",)):
        ratios = {mode: of for (mode, name), of in printed(measurements, "kernel").items() if name == machine.name}
        of_both = [value for mode in ("forward", "backward") for value in ratios.get(mode, {}).values()]
        if of_both:
            said.append(f"{decimals(min(of_both))} to {decimals(max(of_both))} on {machine.name}")
    if not said:
        return ""
    rows = measurements.rows[measurements.rows["published"] & (measurements.rows["stem"] == "speed")]
    return (
        f"`{PUBLISHED}` is not measured here: its kernels are {listed(said)} times as fast as accelerated-scan's warp "
        f"kernel, as printed in the {rows['source'].dropna().iloc[0]}."
    )


if __name__ == "__main__":
    sys.exit(main())
