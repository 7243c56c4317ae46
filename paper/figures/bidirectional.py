"""Both directions at once: each provider as a fraction of the roofline of the form, over T."""

from itertools import chain
from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import above_roofline, conditions, counts, hollow, shape
from paper.forms import FORMS, forms
from paper.measurements import Machine, Measurements
from paper.typeset import Float, escape, figure


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that the kernels were measured on."""
    floats = []
    for machine in measurements.having("bidirectional", ("paper", "here")):
        rows = measurements.every(machine, "bidirectional", level="kernel")
        rows = rows[rows["fraction"].notna()]
        if len(rows):
            floats.append(_fractions(machine, rows, folder))
    return floats


def _fractions(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    """A line of panels for each form, a panel for each mode and dtype."""
    modes = [mode for mode in style.MODES if mode in set(rows["mode"])]
    kinds = [(mode, dtype) for mode in modes for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    found = forms(rows)
    figure_, axes = style.grid(len(found), len(kinds), 0.75 + 1.45 * len(found))
    for i, form in enumerate(found):
        for j, (mode, dtype) in enumerate(kinds):
            points = rows[(rows["directions"] == form) & (rows["mode"] == mode) & (rows["dtype"] == dtype)]
            lines.fraction(axes[i][j], points, rows, "" if i else f"{style.MODES[mode]}, {dtype}")
        axes[i][0].set_ylabel(FORMS[form])
    figure_.supylabel("fraction of roofline", fontsize=8)
    for panel in chain.from_iterable(axes):
        style.time_axis(panel, sorted(set(rows["T"])))
    for panel in axes[-1]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = f"figures/bidirectional-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"Both directions on {escape(machine.title)}, {shape(rows)}, of two branches with gates and tokens of their "
        "own, of the same gates and tokens, and of the same with the states added: time of a kernel that only moves "
        f"the tensors of the form over time taken. Medians of {counts(rows['samples'])} interleaved measurements"
        f"{conditions(rows)}, bars are 95\\,\\% intervals. {hollow(rows)} {above_roofline(rows)}"
    )
    return figure(f"fig:bidirectional:{machine.slug}", pdf, caption.strip())
