"""How close ours comes to its roofline in every experiment: least, median and greatest over all cases."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from paper import style
from paper.captions import widest
from paper.forms import FORMS
from paper.measurements import Measurements
from paper.typeset import MISSING, Float, decimals, escape, heading, listed, table

MODES = ("forward", "backward")
SPEED = {
    "plain": "by length",
    "reverse": "last step to first",
    "odd": "no power of two",
}
FEWER = {"gates": "gradient of gates only", "tokens": "gradient of tokens only"}


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """One table of all that was measured on the GPUs that the text is about."""
    body: list[str | list[str]] = []
    shown, last = [], ""
    for title, dtype, rows in _parts(measurements):
        rows = rows[(rows["status"] == "ok") & rows["fraction"].notna()]
        if rows.empty:
            continue
        if title != last:
            body.append(heading(title, 8, first=not body))
        last = title
        shown.append(rows)
        body.append([dtype, str(rows["case_id"].nunique()), *(cell for mode in MODES for cell in _cells(rows, mode))])
    if not shown:
        return []
    everything = pd.concat(shown)
    names = listed(sorted({escape(machine.title) for machine in everything["machine"]}))
    head = [
        " & ".join(["", "", *(rf"\multicolumn{{3}}{{c}}{{{mode}}}" for mode in MODES)]) + r" \\",
        r"\cmidrule(lr){3-5} \cmidrule(l){6-8}",
        " & ".join(["", "cases", *(["least", "median", "most"] * 2)]) + r" \\",
    ]
    caption = (
        f"Kernels of ours on {names} as fractions of the roofline of each case: the least, the median and the greatest "
        f"over all cases. {widest(everything, 'fraction', 'fraction_low', 'fraction_high')}"
    )
    return [
        table(
            "tab:brief:summary",
            r"lr@{\hspace{12pt}}rrr@{\hspace{12pt}}rrr",
            head,
            body,
            caption.strip(),
            wide=False,
            gap="4pt",
        )
    ]


def _parts(measurements: Measurements) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Title, type and rows of each line."""
    speed = measurements.main("speed")
    if speed is not None:
        for kind, words in SPEED.items():
            rows = measurements.of(speed, "speed", kind=kind, level="kernel", provider="ours")
            yield from _by_dtype(f"{words}, {_lengths(rows)}" if len(rows) else words, rows[rows["mode"].isin(MODES)])
        for needs, words in FEWER.items():
            rows = measurements.of(speed, "speed", kind="fewer", level="kernel", provider="ours", needs=needs)
            yield from _by_dtype(words, rows[rows["mode"] == "backward"])
    for stem, words in (("packing", "packed sequences"), ("layouts", "channels last"), ("few_rows", "few rows")):
        machine = measurements.main(stem)
        if machine is not None:
            yield from _by_dtype(words, measurements.every(machine, stem, level="kernel", recorded_as="ours"))
    both = measurements.main("bidirectional")
    if both is not None:
        for form, words in FORMS.items():
            rows = measurements.every(both, "bidirectional", level="kernel", recorded_as="ours", directions=form)
            yield from _by_dtype(f"both directions, {words}", rows)


def _by_dtype(title: str, rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    for dtype in style.DTYPES:
        yield title, dtype, rows[rows["dtype"] == dtype]


def _lengths(rows: pd.DataFrame) -> str:
    return f"$T={rows['T'].min()}$ to {rows['T'].max()}"


def _cells(rows: pd.DataFrame, mode: str) -> list[str]:
    fractions = rows.loc[rows["mode"] == mode, "fraction"]
    if fractions.empty:
        return [MISSING] * 3
    return [decimals(float(value)) for value in (fractions.min(), fractions.median(), fractions.max())]
