"""Kernels beside the tables by length: backwards in time, at odd lengths, and with fewer gradients."""

import math

import pandas as pd

from paper import style
from paper.captions import conditions, shape
from paper.cells import ms, one, ratio, unmarked
from paper.intervals import UNKNOWN, Interval, independent
from paper.measurements import BOTH, Machine, Measurements, fraction_of
from paper.typeset import Float, decimals, escape, heading, table

MODES = ("forward", "backward")
KINDS = {"reverse": "from the last step to the first", "odd": "lengths that are no power of two"}
NOT_MEASURED = "not measured"


def make(measurements: Measurements) -> list[Float]:
    """The tables of each GPU on which any of it was measured; what was not says so."""
    floats = []
    for machine in measurements.having("speed", ("paper", "here")):
        parts = {kind: measurements.of(machine, "speed", kind=kind, level="kernel") for kind in KINDS}
        if any(map(len, parts.values())):
            floats.append(_directions_and_lengths(measurements, machine, parts))
        fewer = measurements.of(machine, "speed", kind="fewer", level="kernel", mode="backward")
        if len(fewer):
            floats.append(_gradients(measurements, machine, fewer))
    return floats


def _directions_and_lengths(measurements: Measurements, machine: Machine, parts: dict[str, pd.DataFrame]) -> Float:
    plain = measurements.of(machine, "speed", level="kernel")
    each, columns = 4, 1 + 4 * len(MODES)
    head = [
        " & ".join(["", *(rf"\multicolumn{{{each}}}{{c}}{{{style.MODES[mode]}}}" for mode in MODES)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + each * i}-{1 + each * (i + 1)}}}" for i in range(len(MODES))),
        " & ".join(["$T$", *(["ours", "limit", "next", "ascending"] * len(MODES))]) + r" \\",
    ]
    body: list[str | list[str]] = []
    for kind, words in KINDS.items():
        rows = parts[kind]
        if rows.empty:
            body.append(heading(f"{words}: {NOT_MEASURED}", columns, first=not body))
        for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
            body.append(heading(f"{words}, {dtype}", columns, first=not body))
            for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
                line = [str(T)]
                for mode in MODES:
                    at = rows[(rows["dtype"] == dtype) & (rows["T"] == T) & (rows["mode"] == mode)]
                    ours = one(at, "ours")
                    other = one(plain, "ours", dtype=dtype, T=T, mode=mode) if kind == "reverse" else None
                    line += [ms(ours), _limit(ours), _next(at, ours), ratio(_between(other, ours))]
                body.append(line)
    rows = pd.concat(list(parts.values()))
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. \\emph{{limit}}: fraction of the "
        r"roofline that ours reaches, with its 95\,\% interval. \emph{next}: time of the fastest other provider whose "
        r"result is right over time of ours. \emph{ascending}: time of the same case from the first step to the last "
        f"over time of this one, two cases of one run.{unmarked(rows)}"
    )
    return table(f"tab:variants:order-length:{machine.slug}", "r" * columns, head, body, caption)


def _gradients(measurements: Measurements, machine: Machine, rows: pd.DataFrame) -> Float:
    plain = measurements.of(machine, "speed", level="kernel", mode="backward")
    moved = {BOTH: 5, "gates": 4, "tokens": 3}
    names = {BOTH: "both", "gates": "of gates only", "tokens": "of tokens only"}
    head = [
        " & ".join(
            ["", r"\multicolumn{2}{c}{both}"]
            + [rf"\multicolumn{{3}}{{c}}{{{names[needs]}}}" for needs in ("gates", "tokens")]
        )
        + r" \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-6} \cmidrule(l){7-9}",
        " & ".join(["$T$", "ours", "limit", *(["ours", "limit", "of both"] * 2)]) + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, 9, first=not body))
        for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
            both = one(plain, "ours", dtype=dtype, T=T)
            line = [str(T), ms(both), _limit(both)]
            for needs in ("gates", "tokens"):
                ours = one(rows, "ours", dtype=dtype, T=T, needs=needs)
                line += [ms(ours), _limit(ours), ratio(_between(ours, both))]
            body.append(line)
    shares = ", ".join(f"{moved[needs]}/{moved[BOTH]} {names[needs]}" for needs in ("gates", "tokens"))
    caption = (
        f"Gradients only for what asks for them, on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. "
        r"\emph{limit}: fraction of a roofline that moves the tensors of that case alone, with its 95\,\% interval. "
        rf"\emph{{of both}}: time over that of both gradients, two cases of one run; of the bytes it is {shares}."
        f"{unmarked(rows)}"
    )
    return table(f"tab:variants:gradients:{machine.slug}", "r" * 9, head, body, caption)


def _limit(row: pd.Series | None) -> str:
    return NOT_MEASURED if row is None else ratio(fraction_of(row, "ours"))


def _next(at: pd.DataFrame, ours: pd.Series | None) -> str:
    """The time of the fastest right peer over that of ours, and its name."""
    peers = at[(at["status"] == "ok") & ~at["provider"].isin(("ours", "roofline")) & at["median_ms"].notna()]
    if ours is None or peers.empty:
        return decimals(None)
    name = str(peers.sort_values("median_ms", kind="stable")["recorded_as"].iloc[0])
    point = fraction_of(ours, "ours", name)[0]
    return decimals(None) if math.isnan(point) else f"{decimals(point)} {escape(style.look(name).short)}"


def _between(numerator: pd.Series | None, denominator: pd.Series | None) -> Interval:
    """The ratio of the times of ours in two cases."""
    if numerator is None or denominator is None:
        return UNKNOWN
    first, second = (row["results"]["ours"].get("samples_ms") or [] for row in (numerator, denominator))
    return independent(first, second)
