"""Speed in the form of the published tables: kernels, what others printed, and the CPU."""

import pandas as pd

from paper import style
from paper.captions import conditions, counts, shape, widest
from paper.cells import PUBLISHED, beside_words, get, ms, one, printed, short, unmarked
from paper.measurements import Machine, Measurements
from paper.typeset import Float, decimals, escape, heading, table

LEVELS = {"kernel": "kernels", "api": "Python API"}


def make(measurements: Measurements) -> list[Float]:
    """The tables that the stored speed records allow."""
    floats = []
    for machine in measurements.having("speed", ("paper", "here")):
        floats += _kernels(measurements, machine)
    for machine in measurements.having("speed", ("published",)):
        floats.append(_published(measurements, machine))
    for machine in measurements.having("speed", cpu=True):
        floats += _cpu(measurements, machine)
    return floats


def _kernels(measurements: Measurements, machine: Machine) -> list[Float]:
    rows = measurements.of(machine, "speed", level="kernel")
    rows = rows[rows["provider"].isin(("ours", "warp"))]
    modes = [mode for mode in style.MODES if mode in set(rows["mode"])]
    if rows.empty:
        return []
    beside = printed(measurements, "kernel")
    names = list(dict.fromkeys(name for _, name in beside))
    each = 4 + len(names)
    head = [
        " & ".join(["", *(rf"\multicolumn{{{each}}}{{c}}{{{style.MODES[mode]}}}" for mode in modes)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + each * i}-{1 + each * (i + 1)}}}" for i in range(len(modes))),
        " & ".join(["$T$", *(["ours", "limit", "warp", r"$\times$", *map(short, names)] * len(modes))]) + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, 1 + each * len(modes), first=not body))
        of_dtype = rows[rows["dtype"] == dtype]
        for T in sorted(set(of_dtype["T"])):
            line = [str(T)]
            for mode in modes:
                ours, warp = (one(of_dtype, provider, T=T, mode=mode) for provider in ("ours", "warp"))
                line += [ms(ours), decimals(get(ours, "fraction")), ms(warp), decimals(get(ours, "over_warp"))]
                line += [decimals(beside.get((mode, name), {}).get((dtype, T))) for name in names]
            body.append(line)
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. "
        r"\emph{limit}: fraction of the roofline that ours reaches. $\times$: time of warp over time of ours"
        + beside_words(names)
        + f".{unmarked(rows)} {widest(rows)}"
    )
    return [table(f"tab:speed:kernel:{machine.slug}", "r" + "r" * each * len(modes), head, body, caption)]


def _published(measurements: Measurements, machine: Machine) -> Float:
    rows = measurements.of(machine, "speed")
    present = set(zip(rows["level"], rows["mode"], strict=True))
    groups = [(level, mode) for level in LEVELS for mode in style.MODES if (level, mode) in present]
    of_level = {level: [group for group in groups if group[0] == level] for level in LEVELS}
    head = [
        " & ".join(
            ["", *(rf"\multicolumn{{{3 * len(of)}}}{{c}}{{{LEVELS[level]}}}" for level, of in of_level.items() if of)]
        )
        + r" \\",
        " & ".join(["", *(rf"\multicolumn{{3}}{{c}}{{{style.MODES[mode]}}}" for _, mode in groups)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + 3 * i}-{4 + 3 * i}}}" for i in range(len(groups))),
        " & ".join(["$T$", *(["theirs", "warp", r"$\times$"] * len(groups))]) + r" \\",
    ]
    body = []
    for T in sorted(set(rows["T"])):
        line = [str(T)]
        for level, mode in groups:
            theirs, warp = (one(rows, name, T=T, level=level, mode=mode) for name in (PUBLISHED, "warp"))
            line += [decimals(get(row, "median_ms"), 3) for row in (theirs, warp)]
            line.append(decimals(get(theirs, "printed_speedup")))
        body.append(line)
    caption = (
        f"Published for {escape(machine.name)}, {shape(rows)}, in ms{conditions(rows)}; not measured by us. "
        rf"Source: {escape(rows['source'].iloc[0])}. \emph{{theirs}}: \texttt{{{escape(PUBLISHED)}}}. "
        rf"$\times$: speed-up over warp as printed{_rounded(rows)}. "
        "The source names no type; its times fit float32."
    )
    return table(f"tab:speed:published:{machine.slug}", "r" + "r" * 3 * len(groups), head, body, caption)


def _rounded(rows: pd.DataFrame) -> str:
    """How many printed ratios are not the quotient of the printed times."""
    theirs = rows[rows["provider"] == PUBLISHED]
    differ = ((theirs["over_warp"] - theirs["printed_speedup"]).abs() > 0.005).sum()
    return f"; {differ} of {len(theirs)} differ from the quotient of the printed times, within the rounding of these"


def _cpu(measurements: Measurements, machine: Machine) -> list[Float]:
    floats = []
    for level, words in LEVELS.items():
        rows = measurements.of(machine, "speed", level=level)
        if rows.empty:
            continue
        providers = style.in_order(rows.loc[rows["median_ms"].notna(), "provider"])
        head = [" & ".join(["$T$", *(escape(style.look(name).short) for name in providers)]) + r" \\"]
        body: list[str | list[str]] = []
        for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
            for mode in [mode for mode in style.MODES if mode in set(rows["mode"])]:
                part = rows[(rows["dtype"] == dtype) & (rows["mode"] == mode)]
                if part.empty:
                    continue
                body.append(heading(f"{style.MODES[mode]}, {dtype}", 1 + len(providers), first=not body))
                for T in sorted(set(part["T"])):
                    body.append([str(T), *(ms(one(part, name, T=T)) for name in providers)])
        caption = (
            f"{words[0].upper()}{words[1:]} on a CPU, {escape(machine.title)}, {shape(rows)}, "
            f"wall time of a call in ms, medians of {counts(rows.loc[rows['samples'] > 0, 'samples'])}."
            f"{unmarked(rows)} {widest(rows)}"
        )
        spec = "r" * (1 + len(providers))
        floats.append(table(f"tab:speed:{level}:cpu:{machine.slug}", spec, head, body, caption))
    return floats
