"""Layouts: channels last, each provider as a fraction of the roofline over the lengths that one B and C have."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.measurements import Machine, Measurements
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that the kernels were measured on."""
    floats = []
    for machine in measurements.having("layouts", ("paper", "here")):
        rows = of_one_shape(measurements, machine)
        if len(rows):
            floats.append(_fractions(machine, rows, folder))
    return floats


def of_one_shape(measurements: Measurements, machine: Machine) -> pd.DataFrame:
    """The kernels of the B and C that were measured at most lengths."""
    rows = measurements.every(machine, "layouts", level="kernel")
    rows = rows[rows["fraction"].notna()]
    if rows.empty:
        return rows
    shapes = rows.drop_duplicates(["B", "C", "T"])
    B, C = Counter(zip(shapes["B"], shapes["C"], strict=True)).most_common(1)[0][0]
    return rows[(rows["B"] == B) & (rows["C"] == C)]


def _fractions(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    figure_, axes = lines.fractions(rows, 0.75)
    for panel in chain.from_iterable(axes):
        style.time_axis(panel, sorted(set(rows["T"])))
    for panel in axes[-1]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = f"figures/layouts-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Channels last on {escape(machine.title)}, {shape(rows)}: time of a kernel that only moves the same bytes "
        f"over time taken. \\emph{{{style.look('transposed').label}}}: copies with time contiguous, our kernel for "
        f"those, and copies back, all of them timed. Medians of {counts(rows['samples'])} interleaved measurements"
        f"{conditions(rows)}, bars are 95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return figure(f"fig:layouts:{machine.slug}", pdf, caption.strip())
