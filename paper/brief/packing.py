"""Packing: float32 kernels in one column, by what is packed."""

import re
from pathlib import Path

from paper import lines, style
from paper.captions import above_roofline, hollow
from paper.measurements import Measurements
from paper.packings import packings
from paper.typeset import Float, escape, figure

KINDS = (("forward", "float32"), ("backward", "float32"))


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figure of the GPU that the text is about."""
    machine = measurements.main("packing")
    if machine is None:
        return []
    rows = measurements.of(machine, "packing", level="kernel", dtype="float32")
    rows = rows[rows["fraction"].notna()]
    if rows.empty:
        return []
    places = {packing.lengths: place for place, packing in enumerate(packings(rows))}
    located = rows.assign(T=rows["lengths"].map(places))
    figure_, panels = lines.row_of_fractions(located, KINDS, 2.25, style.COLUMN_WIDTH_IN, joined=False)
    for panel in panels:
        panel.set_xticks(list(places.values()), [label(lengths) for lengths in places])
        panel.set_xlim(-0.5, len(places) - 0.5)
        style.halves(panel)
    figure_.supxlabel("sequences, count × length", fontsize=8)
    style.legend_above(figure_, [panels])
    pdf = "brief/packing.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Packed sequences on {escape(machine.title)}, float32, {rows['C'].iloc[0]} rows, as fractions of the "
        f"roofline of the same tokens; \\emph{{a..b}}: from a to b. {hollow(rows)} {above_roofline(rows)}"
    )
    return [figure("fig:brief:packing", pdf, caption.strip(), wide=False)]


def label(lengths: str) -> str:
    """The lengths in short lines, so that four of them stand in half a column."""
    short = re.sub(r"\d+", lambda number: style.steps(int(number[0])) if len(number[0]) > 4 else number[0], lengths)
    return short.replace("..", "\n..").replace("x", "×\n").replace("+", "\n+")
