"""`python -m paper.report`: what was reproduced here as one self-contained HTML file.

Claims with their verdicts, figures, tables, and where every number was measured; nothing is loaded from elsewhere.
"""

import argparse
import base64
import html
import importlib
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from experiments.records import OUTPUTS
from paper import figures, style, tables
from paper.claims import (
    FAILS,
    HERE,
    HOLDS,
    NOT_MEASURABLE,
    ROOT,
    ClaimError,
    Verdict,
    judge,
    load_claims,
    sign,
    summary,
)
from paper.markup import Refer, argument, inline
from paper.markup import tables as html_tables
from paper.measurements import Machine, Measurements, ResultsError, gather, left_by_sweeps
from paper.typeset import Float

CLASSES = {HOLDS: "holds", FAILS: "fails", NOT_MEASURABLE: "unknown"}
COUNTED = {HOLDS: "hold", FAILS: "fail", NOT_MEASURABLE: "cannot be measured here"}
SOFTWARE = ("driver", "cuda", "torch", "triton", "python", "commit")
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --page: #fff; --line: #d8d8d8; --quiet: #5a5a5a; --rule: #555;
        --link: #0645ad; --good: #10502a; --on-good: #d7f0dc; --bad: #861b10; --on-bad: #fbd5d0; --open: #444;
        --on-open: #ececec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --page: #16181b; --line: #3a3d42; --quiet: #a8acb2; --rule: #8a8d92; --link: #8ab4f8;
          --good: #b7e8c4; --on-good: #1c4229; --bad: #ffc4bc; --on-bad: #5c1d16; --open: #d0d0d0; --on-open: #3a3d42; }
}
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: var(--page);
       max-width: 72rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: 0.2rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); }
.quiet, figcaption { color: var(--quiet); } figcaption { font-size: 0.85rem; margin-top: 0.6rem; }
figure { margin: 2.5rem 0; } figure img { width: 100%; display: block; background: #fff; }
nav a { margin-right: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; } td, th { padding: 0.2rem 0.55rem; vertical-align: top; }
.numbers td, .numbers th { text-align: right; white-space: nowrap; padding: 0.1rem 0.36rem;
                           font-variant-numeric: tabular-nums; }
.numbers .centre { text-align: center; } .numbers .left, .words td, .words th { text-align: left; white-space: normal; }
.numbers td.left { padding-top: 0.6rem; }
table { border-top: 1px solid var(--rule); border-bottom: 1px solid var(--rule); }
thead { border-bottom: 1px solid var(--rule); }
.words { width: 100%; } .words tbody tr { border-top: 1px solid var(--line); }
.words td.number, .words td.day { white-space: nowrap; }
.badge { padding: 0.05rem 0.5rem; border-radius: 0.6rem; white-space: nowrap; font-weight: 600; }
.holds { background: var(--on-good); color: var(--good); } .fails { background: var(--on-bad); color: var(--bad); }
.unknown { background: var(--on-open); color: var(--open); }
details { margin: 2rem 0; } .claims { margin: 0.8rem 0; } .claims .wide { margin-top: 0.4rem; }
summary { cursor: pointer; font-weight: 600; }
summary .quiet { font-weight: 400; }
code { font-size: 0.9em; overflow-wrap: anywhere; } sup, sub { line-height: 0; }
@media (max-width: 44rem) {
  figure img { min-width: 42rem; }
  .words thead { display: none; } .words, .words tbody, .words tr { display: block; }
  .words tr { padding: 0.5rem 0; } .words td { display: block; padding: 0.05rem 0; overflow-wrap: anywhere; }
  .words td[data-head]::before { content: attr(data-head) ": "; color: var(--quiet); }
}
"""


def render(stored: Measurements, here: pd.DataFrame, shown: Measurements, verdicts: Sequence[Verdict]) -> str:
    """The page: verdicts on the claims, the floats of `shown` (stored and measured here), and who measured what."""
    floats = _floats(shown)
    by_label = {each.label: f"{kind} {number}" for kind, number, each, _ in floats}

    def refer(label: str) -> str:
        # LaTeX writes the word before the number; the link is the number alone.
        return f'<a href="#{escape(label)}">{by_label.get(label, "?").split()[-1]}</a>'

    parts = [
        _opening(stored, here, verdicts),
        _claims(verdicts, "here" if len(here) else "paper"),
        '<h2 id="figures">Figures</h2>',
        *(_figure(number, each, svg, refer) for kind, number, each, svg in floats if kind == "Figure"),
        '<h2 id="tables">Tables</h2>',
        *(_table(number, each, refer) for kind, number, each, _ in floats if kind == "Table"),
        _provenance(shown),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Report of a reproduction</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _floats(shown: Measurements) -> list[tuple[str, int, Float, Mapping[str, bytes]]]:
    """Kind, number, float and its figures as SVG by the name that the float includes."""
    found, numbers = [], {"Figure": 0, "Table": 0}
    with tempfile.TemporaryDirectory() as name, style.also(".svg"):
        folder = Path(name)
        (folder / "figures").mkdir()
        for package, kind in ((figures, "Figure"), (tables, "Table")):
            for each in sorted(
                pkgutil.iter_modules(package.__path__), key=lambda each: (each.name == "gaps", each.name)
            ):
                module = importlib.import_module(f"{package.__name__}.{each.name}")
                for made in module.make(shown, folder) if kind == "Figure" else module.make(shown):
                    numbers[kind] += 1
                    names = re.findall(r"\\includegraphics(?:\[[^]]*\])?\{([^}]+)\}", made.body)
                    svg = {pdf: (folder / pdf).with_suffix(".svg").read_bytes() for pdf in names}
                    found.append((kind, numbers[kind], made, svg))
    return found


def _opening(stored: Measurements, here: pd.DataFrame, verdicts: Sequence[Verdict]) -> str:
    own = [machine.name for machine in stored.machines if machine.origin == "paper"]
    if len(here):
        names = sorted({machine.name for machine in here["machine"]})
        newest = max(here["measured_at"].dropna(), default="")[:10]
        who = (
            f"Measured here, on {escape(' and '.join(names))}: {here['case_id'].nunique()} cases, the last on "
            f"{escape(newest)}. The paper's own records are those of {escape(' and '.join(own) or 'nobody')}."
        )
    else:
        who = f"Nothing was measured here: verdicts, figures and tables are those of {escape(' and '.join(own))}."
    failing = [verdict.claim.id for verdict in verdicts if verdict.word == FAILS]
    named = ", ".join(f'<a href="#{escape(each)}">{escape(each)}</a>' for each in failing)
    links = "".join(
        f'<a href="#{word}">{word.capitalize()}</a>' for word in ("claims", "figures", "tables", "provenance")
    )
    return (
        f"<h1>Report of a reproduction</h1>\n<p>{who}</p>\n<p><strong>{escape(summary(verdicts))}</strong>"
        f"{f' What fails: {named}.' if named else ''}</p>\n"
        f"<nav>{links}</nav>"
    )


def _claims(verdicts: Sequence[Verdict], origin: str) -> str:
    """The claims of each experiment under a heading that says what became of them; open where one fails."""
    by = "what was measured here" if origin == "here" else "the paper's stored records"
    parts = [
        f'<h2 id="claims">Claims</h2>\n<p class="quiet">Judged by {by}. A bar (≥, ≤) is met where the whole 95 % '
        "interval of every case lies on its side; below a claim, the record that decides.</p>"
    ]
    for stem in dict.fromkeys(verdict.claim.stem for verdict in verdicts):
        of_stem = [verdict for verdict in verdicts if verdict.claim.stem == stem]
        words = [verdict.word for verdict in of_stem]
        counts = ", ".join(f"{words.count(word)} {said}" for word, said in COUNTED.items() if word in words)
        table = _words(["Claim", "Paper", "Measured", "Verdict"], map(_claim, of_stem))
        parts.append(
            f'<details class="claims"{" open" if FAILS in words else ""}>\n<summary>{escape(stem)} '
            f'<span class="quiet">{counts}</span></summary>\n{table}</details>'
        )
    return "\n".join(parts)


def _claim(verdict: Verdict) -> str:
    claim = verdict.claim
    said = f'<a href="#{escape(claim.id)}">{escape(claim.id)}</a>'
    sources = "".join(f"<br><code>{escape(source)}</code>" for source in verdict.sources)
    more = f"<br>{escape(verdict.why)}" if verdict.why else ""
    return (
        f'<tr id="{escape(claim.id)}"><td>{escape(claim.said)}<br><small class="quiet">{said}, made for '
        f"{escape(claim.hardware)}{sources}</small></td>"
        f'<td class="number">{escape(sign(claim) + claim.value)}</td><td class="number">{escape(verdict.here)}</td>'
        f'<td><span class="badge {CLASSES[verdict.word]}">{escape(verdict.word)}</span>{more}</td></tr>'
    )


def _words(heads: Sequence[str], rows: Iterable[str]) -> str:
    """A table of words, which a narrow screen shows cell below cell."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    return _stacked(
        f'<div class="wide"><table class="words">\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _stacked(table: str) -> str:
    """The table with the head of its column in each cell but the first, which says what a row is about."""
    heads = re.findall(r"<th>(.*?)</th>", table)

    def headed(row: re.Match[str]) -> str:
        first, *cells = row[0].split("<td")
        if len(cells) != len(heads):
            return row[0]
        shown = zip(heads[1:], cells[1:], strict=True)
        return first + "<td" + cells[0] + "".join(f'<td data-head="{head}"{cell}' for head, cell in shown)

    return re.sub(r"<tr\b.*?</tr>", headed, table, flags=re.DOTALL)


def _figure(number: int, made: Float, svg: Mapping[str, bytes], refer: Refer) -> str:
    caption = inline(argument(made.body, "caption"), refer)
    alt = f"Figure {number}. {_first_words(caption)} Its values are in the tables."
    images = "\n".join(
        f'<img src="data:image/svg+xml;base64,{base64.b64encode(data).decode()}" alt="{alt}">' for data in svg.values()
    )
    return (
        f'<figure id="{escape(made.label)}">\n<div class="wide">{images}</div>\n'
        f"<figcaption><strong>Figure {number}.</strong> {caption}</figcaption></figure>"
    )


def _first_words(caption: str) -> str:
    """The first sentence without its tags, fit for an attribute."""
    words = html.unescape(re.sub(r"<[^>]+>", "", caption)).replace("\N{NO-BREAK SPACE}", " ")
    return escape(re.split(r"(?<=[.]) ", words)[0])


def _table(number: int, made: Float, refer: Refer) -> str:
    caption = inline(argument(made.body, "caption"), refer)
    kind = "words" if r"p{" in made.body else "numbers"
    body = html_tables(made.body, refer).replace("<table>", f'<table class="{kind}">')
    body = _stacked(body) if kind == "words" else body
    return (
        f'<details id="{escape(made.label)}" open>\n<summary>Table {number}</summary>\n'
        f'<p class="quiet">{caption}</p>\n<div class="wide">{body}</div></details>'
    )


def _provenance(shown: Measurements) -> str:
    rows = []
    for machine in shown.machines:
        of_machine = shown.rows[shown.rows["machine"] == machine]
        for stem in sorted(set(of_machine["stem"])):
            rows.append(_measured(machine, stem, of_machine[of_machine["stem"] == stem]))
    heads = ("Machine", "Experiment", "Cases", "Measured", "With", "Statuses", "Records")
    return (
        '<h2 id="provenance">Provenance</h2>\n<p class="quiet">Each record also holds its raw samples, its protocol '
        "and the clocks and other processes of its GPU.</p>\n" + _words(heads, rows)
    )


def _measured(machine: Machine, stem: str, rows: pd.DataFrame) -> str:
    days = sorted({stamp[:10] for stamp in rows["measured_at"].dropna()})
    software = [
        f"{word} {_listed(str(value)[:12] if word == 'commit' else str(value) for value in rows[word].dropna())}"
        for word in SOFTWARE
        if rows[word].notna().any()
    ]
    if rows["dirty"].fillna(False).astype(bool).any():
        software.append("uncommitted changes")
    statuses = [f"{count} {status}" for status, count in rows["status"].value_counts().items()]
    files = [_short(file) for file in sorted(set(rows["file"]))]
    where = files[0] if len(files) == 1 else f"{len(files)} files such as {files[0]}"
    before = (machine.title, stem, str(rows["case_id"].nunique()))
    measured = " to ".join(dict.fromkeys((*days[:1], *days[-1:]))) or "–"
    behind = (", ".join(software) or "as printed", ", ".join(statuses), where)
    first, last = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in (before, behind))
    return f'<tr>{first}<td class="day">{escape(measured)}</td>{last}</tr>'


def _listed(values: Iterable[str]) -> str:
    return " and ".join(sorted(set(values)))


def _short(file: str) -> str:
    path = Path(file).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and say where it is; 1 where the results cannot be used, or the page not be written."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.report", description="Write the HTML report of a reproduction."
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="stored records (default: %(default)s)")
    parser.add_argument("--outputs", type=Path, default=OUTPUTS, help="outputs (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="the file to write (default: report/index.html in the outputs)")
    asked = parser.parse_args(arguments)
    out = asked.out or asked.outputs / "report" / "index.html"
    try:
        stored, here = gather(asked.results), left_by_sweeps(asked.outputs)
        verdicts = [judge(claim, stored.rows, here if len(here) else None) for claim in load_claims()]
        shown = gather(asked.results, [asked.outputs]) if len(here) else stored
    except (ClaimError, ResultsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render(stored, here, shown, verdicts), encoding="utf-8")
    except OSError as error:
        print(f"error: {out} cannot be written ({error.strerror}): name another file by --out.", file=sys.stderr)
        return 1
    print(f"The report is {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
