"""Packing: what a packed token costs whatever the sequences, and what a call costs the host, few sequences or many."""

import pandas as pd

from paper import style
from paper.captions import conditions, shape
from paper.cells import get, ms, one, ratio, unmarked
from paper.intervals import UNKNOWN, Interval, independent
from paper.measurements import Machine, Measurements, fraction_of
from paper.packings import Packing, packings
from paper.typeset import Float, decimals, escape, heading, significant, table

MODES = ("forward", "backward")


def make(measurements: Measurements) -> list[Float]:
    """The tables of each GPU or CPU that packed sequences were measured on."""
    floats = []
    machines = [*measurements.having("packing", ("paper", "here")), *measurements.having("packing", cpu=True)]
    for machine in machines:
        rows = measurements.of(machine, "packing")
        pair = set(rows.loc[rows["mode"] == "forward_backward", "lengths"])
        tokens = rows[rows["mode"].isin(MODES) & ((rows["level"] == "kernel") | ~rows["lengths"].isin(pair))]
        levels = [
            level for level in ("kernel", "api") if set(tokens.loc[tokens["level"] == level, "mode"]) == set(MODES)
        ]
        if levels:
            floats.append(_tokens(machine, tokens[tokens["level"] == levels[0]]))
        calls = rows[(rows["level"] == "api") & rows["host_median_us"].notna() & (rows["provider"] == "ours")]
        if len(calls):
            floats.append(_set_up(machine, calls))
    return floats


def _tokens(machine: Machine, rows: pd.DataFrame) -> Float:
    modes = [mode for mode in MODES if mode in set(rows["mode"])]
    peers = [
        name
        for name in style.in_order(rows.loc[rows["median_ms"].notna(), "provider"])
        if name not in ("ours", "roofline")
    ]
    each, columns = 3 + len(peers), 4 + (3 + len(peers)) * len(modes)
    head = [
        " & ".join(
            [
                r"\multicolumn{4}{c}{sequences}",
                *(rf"\multicolumn{{{each}}}{{c}}{{{style.MODES[mode]}}}" for mode in modes),
            ]
        )
        + r" \\",
        r"\cmidrule(r){1-4} "
        + " ".join(rf"\cmidrule(lr){{{5 + each * i}-{4 + each * (i + 1)}}}" for i in range(len(modes))),
        " & ".join(
            [r"count $\times$ length", "number", "longest", "tokens"]
            + ["ours", "ns/token", "limit", *(escape(style.look(name).short) for name in peers)] * len(modes)
        )
        + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, columns, first=not body))
        for packing in packings(rows[rows["dtype"] == dtype]):
            line = [packing.shown, str(packing.number), str(packing.longest), str(packing.tokens)]
            for mode in modes:
                at = rows[(rows["dtype"] == dtype) & (rows["lengths"] == packing.lengths) & (rows["mode"] == mode)]
                line += _cells(at, packing, peers)
            body.append(line)
    caption = (
        f"Packed sequences on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. "
        r"\emph{limit}: fraction of the roofline of the same tokens that ours reaches, with its 95\,\% interval. "
        r"\emph{a..b}: evenly spaced lengths from a to b, shuffled."
        + (f" Of peers ({escape(', '.join(style.look(name).label for name in peers))}) the time." if peers else "")
        + unmarked(rows)
    )
    return table(f"tab:packing:tokens:{machine.slug}", "lrrr" + "r" * each * len(modes), head, body, caption)


def _cells(at: pd.DataFrame, packing: Packing, peers: list[str]) -> list[str]:
    ours = one(at, "ours")
    if ours is None:
        return ["not measured", *[decimals(None)] * (2 + len(peers))]
    time = get(ours, "median_ms")
    per_token = decimals(None) if time is None else significant(1e6 * time / packing.tokens)
    return [ms(ours), per_token, ratio(fraction_of(ours, "ours")), *(ms(one(at, name)) for name in peers)]


def _set_up(machine: Machine, rows: pd.DataFrame) -> Float:
    """The same tokens as few sequences and as many: of each mode the fewest first, the others as a multiple of it."""
    head = [r"count $\times$ length & number & host, \textmu s & over fewest & call, ms & host waits \\"]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        for mode in [mode for mode in style.MODES if mode in set(rows["mode"])]:
            at = rows[(rows["dtype"] == dtype) & (rows["mode"] == mode)]
            found = sorted(packings(at), key=lambda packing: packing.number)
            if not found:
                continue
            body.append(heading(f"{style.MODES[mode]}, {dtype}", 6, first=not body))
            fewest = one(at, "ours", lengths=found[0].lengths)
            for packing in found:
                row = one(at, "ours", lengths=packing.lengths)
                waits = None if row is None else row["host_waits"]
                said = "not known" if waits is None or pd.isna(waits) else "yes" if waits else "no"
                line = [packing.shown, str(packing.number), decimals(get(row, "host_median_us"), 1)]
                body.append([*line, ratio(host_ratio(row, fewest)), ms(row), said])
    caption = (
        f"What it costs to set up packed sequences on {escape(machine.title)}, {shape(rows)}, "
        f"{significant(rows['T'].min(), 1)} tokens: a call of ours through the Python API{conditions(rows)}. "
        r"\emph{host}: until the call returns; \emph{over fewest}: over that of the fewest sequences, two cases of one "
        r"run, with its 95\,\% interval; \emph{host waits}: whether the call makes the host wait for the device, as "
        "reading an offset would."
    )
    return table(f"tab:packing:set-up:{machine.slug}", "lrrrrr", head, body, caption)


def host_ratio(row: pd.Series | None, fewest: pd.Series | None) -> Interval:
    """The host time of ours in one case over that in another."""
    if row is None or fewest is None:
        return UNKNOWN
    first, second = (each["results"]["ours"].get("host_samples_us") or [] for each in (row, fewest))
    return independent(first, second)
