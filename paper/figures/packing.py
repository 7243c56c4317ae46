"""Packing: each provider as a fraction of the roofline of the same tokens, whatever the sequences are."""

from itertools import chain
from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.measurements import Machine, Measurements
from paper.packings import packings
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that the kernels were measured on."""
    floats = []
    for machine in measurements.having("packing", ("paper", "here")):
        rows = measurements.of(machine, "packing", level="kernel")
        if rows["fraction"].notna().any():
            floats.append(_fractions(machine, rows[rows["fraction"].notna()], folder))
    return floats


def _fractions(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    places = {packing.lengths: place for place, packing in enumerate(packings(rows))}
    figure_, axes = lines.fractions(rows.assign(T=rows["lengths"].map(places)), 1.0, joined=False)
    for panel in chain.from_iterable(axes):
        panel.set_xticks(list(places.values()), [_label(lengths) for lengths in places])
        panel.set_xlim(-0.5, len(places) - 0.5)
    for panel in axes[-1]:
        panel.set_xlabel("sequences, count × length")
    style.legend_above(figure_, axes)
    pdf = f"figures/packing-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Packed sequences on {escape(machine.title)}, {shape(rows)}: time of a kernel that only moves the tensors of "
        f"the same tokens over time taken. Medians of {counts(rows['samples'])} interleaved measurements"
        f"{conditions(rows)}, bars are 95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return figure(f"fig:packing:{machine.slug}", pdf, caption.strip())


def _label(lengths: str) -> str:
    """The lengths in two short lines or more, because four of them stand side by side; alike, so that they align."""
    label = lengths.replace("x", "×").replace("+", "\n+").replace("..", "\n..")
    return label if "\n" in label else f"{label}\n "
