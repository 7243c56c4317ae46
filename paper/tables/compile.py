"""Compile: each way to run a layer, its time, its host time, its graph breaks and what it holds."""

import pandas as pd

from paper import style
from paper.captions import counts
from paper.cells import get, ms, ratio, unmarked
from paper.measurements import Machine, Measurements, fraction_of
from paper.steps import WAYS, steps
from paper.typeset import Float, decimals, escape, heading, table


def make(measurements: Measurements) -> list[Float]:
    """A table for each machine, mode and dtype."""
    floats = []
    machines = [*measurements.having("compile", ("paper", "here")), *measurements.having("compile", cpu=True)]
    for machine in machines:
        rows = steps(measurements, machine)
        rows = rows[rows["median_ms"].notna()]
        for mode in [mode for mode in style.MODES if mode in set(rows["mode"])]:
            of_mode = rows[rows["mode"] == mode]
            for dtype in [dtype for dtype in style.DTYPES if dtype in set(of_mode["dtype"])]:
                floats.append(_table(machine, of_mode[of_mode["dtype"] == dtype], mode, dtype))
    return floats


def _table(machine: Machine, rows: pd.DataFrame, mode: str, dtype: str) -> Float:
    head = [r"scan & step, ms & $\times$ & host, \textmu s & graph breaks & tensors held \\"]
    body: list[str | list[str]] = []
    for T in sorted(set(rows["T"])):
        at = rows[rows["T"] == T].set_index("recorded_as")
        body.append(heading(f"$T={T}$", 6, first=not body))
        for name, look in WAYS.items():
            if name in at.index:
                body.append([escape(look.label), *_cells(at.loc[name], name)])
    caption = (
        f"A {'training step' if mode != 'forward' else 'forward pass'} of a gated recurrent layer on "
        f"{escape(machine.title)}, {dtype}, $B={counts(rows['B'])}$, width {counts(rows['C'])}, in a row of steps. "
        r"$\times$: its time over that of ours compiled, with its 95\,\% interval. \emph{host}: until a step that "
        r"starts on an idle device returns. \emph{tensors held}: at most, beyond weights and inputs, in tensors of the "
        f"size of the input.{unmarked(rows)}"
    )
    return table(f"tab:compile:{mode}:{dtype}:{machine.slug}".replace("_", "-"), "lrrrrr", head, body, caption)


def _cells(row: pd.Series, name: str) -> list[str]:
    breaks = get(row, "graph_breaks")
    return [
        ms(row),
        ratio(fraction_of(row, "ours", of=name)),
        decimals(get(row, "host_median_us"), 0),
        decimals(breaks, 0),
        decimals(get(row, "peak_tensors"), 1),
    ]
