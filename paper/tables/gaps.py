"""What was asked for and not measured, or measured and wrong: every status that is not ok, with its reason."""

from collections.abc import Sequence

from paper import style
from paper.measurements import Measurements
from paper.steps import short
from paper.typeset import Float, escape, heading, table

MOST_LINES = 62
"""How many lines of such a table a page holds."""
LINE = 95
"""About as many characters of a reason as a line has."""


def make(measurements: Measurements) -> list[Float]:
    """Every machine and experiment, in as many tables as that takes pages; none where everything is ok."""
    rows = measurements.rows
    rows = rows[~rows["published"] & ((rows["status"] != "ok") | rows["reason"].notna())]
    rows = rows[(rows["provider"] != "roofline") | (rows["status"] != "unsupported")]  # a limit is no competitor
    if rows.empty:
        return []
    body: list[str | list[str]] = []
    for machine in [machine for machine in measurements.machines if machine in set(rows["machine"])]:
        of_machine = rows[rows["machine"] == machine]
        body.append(heading(escape(machine.title), 5, first=not body))
        for stem in sorted(set(of_machine["stem"])):
            of_stem = of_machine[of_machine["stem"] == stem]
            for provider in style.in_order(of_stem["provider"]):
                for status, found in of_stem[of_stem["provider"] == provider].groupby("status", sort=True):
                    reasons = list(dict.fromkeys(found["reason"].dropna()))
                    more = f" (the first of {len(reasons)} reasons)" if len(reasons) > 1 else ""
                    body.append(
                        [
                            escape(stem),
                            escape(short(stem, provider)),
                            escape(str(status)),
                            str(len(found)),
                            escape((reasons or ["no reason recorded"])[0]) + more,
                        ]
                    )
    head = [r"experiment & provider & status & cases & reason \\"]
    caption = "Cases that a provider did not run, ran wrong, or ran with a remark."
    floats = []
    for number, page in enumerate(_pages(body), 1):
        label, words = ("tab:gaps", caption) if number == 1 else (f"tab:gaps:{number}", f"{caption[:-1]}, continued.")
        floats.append(table(label, r"lllrp{4.5in}", head, page, words))
    return floats


def _pages(body: Sequence[str | list[str]]) -> list[list[str | list[str]]]:
    """The lines of each page, as many as fit."""
    pages: list[list[str | list[str]]] = [[]]
    used = 0
    for line in body:
        lines = 1 if isinstance(line, str) else 1 + len(line[-1]) // LINE
        if used + lines > MOST_LINES:
            pages.append([])
            used = 0
        pages[-1].append(line)
        used += lines
    return pages
