"""Both directions at once: kernels of each form by length, and calls through the Python API, with gradients or not."""

import pandas as pd

from paper import shapes, style
from paper.captions import conditions, shape
from paper.cells import get, ms, one, ratio, unmarked
from paper.forms import FORMS, PEERS, forms, over
from paper.measurements import Machine, Measurements
from paper.typeset import Float, decimals, escape, heading, table

CALLS = {"forward": "without gradients", "forward_backward": "with their gradients"}
"""What a call does, by its mode in the records."""


def make(measurements: Measurements) -> list[Float]:
    """The tables of each GPU or CPU that both directions were measured on: one a form, and one a kind of call."""
    floats = []
    for machine, rows in shapes.measured(measurements, "bidirectional"):
        floats += [_lengths(machine, rows[rows["directions"] == form], form) for form in forms(rows)]
        for mode in CALLS:
            # Where there are no kernels, the tables of the forms have the calls without gradients.
            calls = measurements.every(machine, "bidirectional", level="api", mode=mode)
            if calls["median_ms"].notna().any() and not set(calls["case_id"]) & set(rows["case_id"]):
                floats.append(_calls(machine, calls, mode))
    return floats


def _lengths(machine: Machine, rows: pd.DataFrame, form: str) -> Float:
    names = shapes.peers(rows)
    columns, head = shapes.head(["$T$"], names)
    body = shapes.body(rows, ["T"], names, len(columns))
    caption = (
        f"Both directions, {FORMS[form]}, on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. "
        r"\emph{limit}: fraction of the roofline of this form that ours reaches, with its 95\,\% interval."
        f"{unmarked(rows)}"
    )
    label = f"tab:bidirectional:{form.replace('_', '-')}:{machine.slug}"
    return table(label, columns, head, body, caption)


def _calls(machine: Machine, rows: pd.DataFrame, mode: str) -> Float:
    names = [name for name in PEERS if rows.loc[rows["provider"] == name, "median_ms"].notna().any()]
    shorts = [escape(style.look(name).short) for name in names]
    timed = [*shorts, *(rf"$\times$ {short}" for short in shorts)]
    hosts = [f"host, {word}" for word in ("ours", *shorts)] if rows["host_median_us"].notna().any() else []
    head = [" & ".join(["$T$", "ours", *timed, *hosts]) + r" \\"]
    width = 2 + len(timed) + len(hosts)
    body: list[str | list[str]] = []
    for form in forms(rows):
        for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
            part = rows[(rows["directions"] == form) & (rows["dtype"] == dtype)]
            if part.empty:
                continue
            body.append(heading(f"{FORMS[form]}, {dtype}", width, first=not body))
            for T in sorted(set(part["T"])):
                ours, others = one(part, "ours", T=T), [one(part, name, T=T) for name in names]
                line = [str(T), ms(ours), *map(ms, others), *(ratio(over(ours, name)) for name in names)]
                line += [decimals(get(row, "host_median_us"), 0) for row in (ours, *others)] if hosts else []
                body.append(line)
    host = r" \emph{host}: until the call returns, in \textmu s." if hosts else ""
    caption = (
        f"Both directions {CALLS[mode]} through the Python API on {escape(machine.title)}, {shape(rows)}: a "
        f"call in ms{conditions(rows)}. $\\times$: time of the other, where its result is right, over time of ours, "
        rf"with its 95\,\% interval.{host}{unmarked(rows)}"
    )
    label = f"tab:bidirectional:calls:{mode.replace('_', '-')}:{machine.slug}"
    return table(label, "r" * width, head, body, caption)
