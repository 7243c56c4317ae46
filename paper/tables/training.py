"""Training: each scan, how far its losses are from the exact ones, the time of a step and what it holds."""

import pandas as pd

from paper import style
from paper.captions import counts
from paper.cells import get, ms, ratio
from paper.measurements import Machine, Measurements, fraction_of
from paper.trainings import trainings
from paper.typeset import Float, decimals, escape, heading, significant, table

MIB = 2**20


def make(measurements: Measurements) -> list[Float]:
    """A table for each machine that a network was trained on."""
    machines = [*measurements.having("training", ("paper", "here")), *measurements.having("training", cpu=True)]
    trained = [(machine, trainings(measurements, machine)) for machine in machines]
    return [_table(machine, rows) for machine, rows in trained if len(rows)]


def _table(machine: Machine, rows: pd.DataFrame) -> Float:
    head = [
        r"scan & first loss & last loss & off, roundings & step, ms & $\times$ & million tokens/s & MiB held \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
            found = rows[(rows["dtype"] == dtype) & (rows["T"] == T)].set_index("recorded_as")
            body.append(heading(f"{dtype}, $T={T}$", 8, first=not body))
            body += [
                [escape(style.look(name).label), *_cells(found.loc[name], name)] for name in style.in_order(found.index)
            ]
    caption = (
        f"Training a gated recurrent network of width {counts(rows['C'])} on selective copying on "
        f"{escape(machine.title)}, $B={counts(rows['B'])}$. \\emph{{last loss}}: the mean of the last tenth of the "
        r"steps. \emph{off}: the mean distance of the losses from those with exact states, in units of how far "
        r"random rounding errors of the states set them. \emph{step}: the median. $\times$: its time over that with "
        r"ours, with its 95\,\% interval. \emph{held}: at most by a loss and its gradients, beyond weights and data."
        + (r" $^\dagger$: the curve is not the exact one." if (rows["status"] == "wrong").any() else "")
    )
    return table(f"tab:training:{machine.slug}", "lrrrrrrr", head, body, caption)


def _cells(row: pd.Series, name: str) -> list[str]:
    tokens, held = get(row, "tokens_per_s"), get(row, "held_bytes")
    return [
        decimals(get(row, "first"), 3),
        decimals(get(row, "last"), 3),
        significant(get(row, "of_rounding"), 2),
        ms(row),
        ratio(fraction_of(row, "ours", of=name)),
        significant(None if tokens is None else tokens / 1e6),
        decimals(None if held is None else held / MIB, 1),
    ]
