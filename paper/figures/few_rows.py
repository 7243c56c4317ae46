"""Few rows: each provider as a fraction of the roofline, from one row to rows enough to fill a GPU."""

from itertools import chain
from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow
from paper.measurements import Machine, Measurements
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that the kernels were measured on."""
    floats = []
    for machine in measurements.having("few_rows", ("paper", "here")):
        rows = measurements.every(machine, "few_rows", level="kernel", dtype="float32")
        rows = rows[rows["fraction"].notna()]
        if len(rows):
            floats.append(_fractions(machine, rows, folder))
    return floats


def _fractions(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    rows = rows.assign(rows=rows["B"] * rows["C"])
    places = {shape: place for place, shape in enumerate(sorted(set(zip(rows["rows"], rows["T"], strict=True))))}
    located = rows.assign(T=[places[shape] for shape in zip(rows["rows"], rows["T"], strict=True)])
    figure_, axes = lines.fractions(located, 0.85, joined=False)
    for panel in chain.from_iterable(axes):
        panel.set_xticks(list(places.values()), [f"{number} ×\n{style.steps(T)}" for number, T in places])
        panel.set_xlim(-0.5, len(places) - 0.5)
    for panel in axes[-1]:
        panel.set_xlabel("rows × sequence length")
    style.legend_above(figure_, axes)
    pdf = f"figures/few_rows-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Few rows on {escape(machine.title)}, time contiguous: time of a kernel that only moves the same bytes over "
        f"time taken. Medians of {counts(rows['samples'])} interleaved measurements{conditions(rows)}, bars are "
        f"95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return figure(f"fig:few-rows:{machine.slug}", pdf, caption.strip())
