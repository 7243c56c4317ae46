"""Compile: a training step of a gated recurrent layer with each scan, and what it holds."""

from pathlib import Path

import pandas as pd

from paper import lines, style
from paper.captions import counts
from paper.measurements import Machine, Measurements
from paper.steps import WAYS, steps
from paper.typeset import Float, escape, figure

COLUMNS = {"median_ms": "step, ms", "peak_tensors": "held at most, tensors"}


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each GPU that steps were measured on."""
    floats = []
    for machine in measurements.having("compile", ("paper", "here")):
        rows = steps(measurements, machine)
        rows = rows[(rows["mode"] == "forward_backward") & rows["median_ms"].notna()]
        if len(rows):
            floats.append(_steps(machine, rows, folder))
    return floats


def _steps(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(len(COLUMNS), len(dtypes), 0.75 + 1.6 * len(COLUMNS), share_y=False)
    for i, (column, label) in enumerate(COLUMNS.items()):
        for j, dtype in enumerate(dtypes):
            panel, points = axes[i][j], rows[rows["dtype"] == dtype]
            for name, look in WAYS.items():
                lines.draw(panel, points[points["recorded_as"] == name], column, look.label, look, front=name == "ours")
            panel.set_yscale("log")
            style.plain_log_axis(panel)
            style.time_axis(panel, sorted(set(rows["T"])))
            if not i:
                panel.set_title(dtype)
        axes[i][0].set_ylabel(label)
    for panel in axes[-1]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = f"figures/compile-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    wrong = " Hollow: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""
    caption = (
        "A training step of a gated recurrent layer (projection, gates, scan, projection) of width "
        f"{counts(rows['C'])} on {escape(machine.title)}, $B={counts(rows['B'])}$: time of a step in a row of steps, "
        f"medians of {counts(rows['samples'])} interleaved measurements with 95\\,\\% intervals, and what a step holds "
        "at most beyond weights and inputs, in tensors of the size of the input. With CUDA graphs (reduce-overhead) "
        f"memory is kept aside, and is not shown.{wrong}"
    )
    return figure(f"fig:compile:{machine.slug}", pdf, caption)
