"""Speed in the form of the published tables: kernels, the Python API, and the CPU."""

import pandas as pd

from paper import style
from paper.captions import conditions, counts, shape, widest
from paper.measurements import Machine, Measurements
from paper.typeset import Float, decimals, escape, heading, significant, table

PUBLISHED = "associative_scan_triton"
LEVELS = {"kernel": "kernels", "api": "Python API"}


def make(measurements: Measurements) -> list[Float]:
    """The tables that the stored speed records allow."""
    floats = []
    for machine in measurements.having("speed", ("paper", "here")):
        floats += _kernels(measurements, machine) + _api(measurements, machine)
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
    beside = _printed(measurements, "kernel")
    names = list(dict.fromkeys(name for _, name in beside))
    each = 4 + len(names)
    head = [
        " & ".join(["", *(rf"\multicolumn{{{each}}}{{c}}{{{style.MODES[mode]}}}" for mode in modes)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + each * i}-{1 + each * (i + 1)}}}" for i in range(len(modes))),
        " & ".join(["$T$", *(["ours", "limit", "warp", r"$\times$", *map(_short, names)] * len(modes))]) + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, 1 + each * len(modes), first=not body))
        of_dtype = rows[rows["dtype"] == dtype]
        for T in sorted(set(of_dtype["T"])):
            line = [str(T)]
            for mode in modes:
                ours, warp = (_one(of_dtype, provider, T=T, mode=mode) for provider in ("ours", "warp"))
                line += [_ms(ours), decimals(_get(ours, "fraction")), _ms(warp), decimals(_get(ours, "over_warp"))]
                line += [decimals(beside.get((mode, name), {}).get((dtype, T))) for name in names]
            body.append(line)
    caption = (
        f"Kernels on {escape(machine.title)}, {shape(rows)}, in ms{conditions(rows)}. "
        r"\emph{limit}: fraction of the roofline that ours reaches. $\times$: time of warp over time of ours"
        + _beside_words(names)
        + f".{_unmarked(rows)} {widest(rows)}"
    )
    return [table(f"tab:speed:kernel:{machine.slug}", "r" + "r" * each * len(modes), head, body, caption)]


def _api(measurements: Measurements, machine: Machine) -> list[Float]:
    rows = measurements.of(machine, "speed", level="api")
    rows = rows[rows["provider"].isin(("ours", "warp"))]
    if rows.empty:
        return []
    beside = _printed(measurements, "api")
    modes = {
        mode: {name: ratios for (of, name), ratios in beside.items() if of == mode}
        for mode in style.MODES
        if mode in set(rows["mode"])
    }
    top, rules, names, start = [""], [], ["$T$"], 2
    for mode, printed in modes.items():
        width = 5 + len(printed)
        top.append(rf"\multicolumn{{{width}}}{{c}}{{{style.MODES[mode]}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        names += ["ours", "warp", r"$\times$", "ours, h", "warp, h", *map(_short, printed)]
        start += width
    head = [" & ".join(top) + r" \\", " ".join(rules), " & ".join(names) + r" \\"]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        of_dtype = rows[rows["dtype"] == dtype]
        body.append(heading(dtype, len(names), first=not body))
        for T in sorted(set(of_dtype["T"])):
            line = [str(T)]
            for mode, printed in modes.items():
                ours, warp = (_one(of_dtype, provider, T=T, mode=mode) for provider in ("ours", "warp"))
                line += [_ms(ours), _ms(warp), decimals(_get(ours, "over_warp"))]
                line += [decimals(_get(row, "host_median_us"), 0) for row in (ours, warp)]
                line += [decimals(ratios.get((dtype, T))) for ratios in printed.values()]
            body.append(line)
    caption = (
        f"Through the Python API on {escape(machine.title)}, {shape(rows)}: time in ms of a call that starts on an "
        rf"idle GPU{conditions(rows)}; $\times$: time of warp over time of ours; \emph{{h}}: host time in \textmu s "
        rf"until the call returns{_beside_words(list(dict.fromkeys(name for _, name in beside)))}. The device's part "
        "alone is what the table of kernels gives."
        f"{_unmarked(rows)} {widest(rows)}"
    )
    return [table(f"tab:speed:api:{machine.slug}", "r" * len(names), head, body, caption)]


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
            theirs, warp = (_one(rows, name, T=T, level=level, mode=mode) for name in (PUBLISHED, "warp"))
            line += [decimals(_get(row, "median_ms"), 3) for row in (theirs, warp)]
            line.append(decimals(_get(theirs, "printed_speedup")))
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
                    body.append([str(T), *(_ms(_one(part, name, T=T)) for name in providers)])
        caption = (
            f"{words[0].upper()}{words[1:]} on a CPU, {escape(machine.title)}, {shape(rows)}, "
            f"wall time of a call in ms, medians of {counts(rows.loc[rows['samples'] > 0, 'samples'])}."
            f"{_unmarked(rows)} {widest(rows)}"
        )
        spec = "r" * (1 + len(providers))
        floats.append(table(f"tab:speed:{level}:cpu:{machine.slug}", spec, head, body, caption))
    return floats


def _printed(measurements: Measurements, level: str) -> dict[tuple[str, str], dict[tuple[str, int], float]]:
    """(mode, GPU) -> (dtype, T) -> the printed speed-up over warp."""
    found: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for machine in measurements.having("speed", ("published",)):
        rows = measurements.of(machine, "speed", level=level, provider=PUBLISHED)
        for mode, dtype, T, ratio in zip(rows["mode"], rows["dtype"], rows["T"], rows["printed_speedup"], strict=True):
            found.setdefault((mode, machine.name), {})[(dtype, T)] = ratio
    return found


def _short(name: str) -> str:
    """A GPU's name without its memory, for a narrow column."""
    words = [word for word in name.split() if not word.endswith("GB")]
    return escape(" ".join(words).removeprefix("RTX "))


def _beside_words(names: list[str]) -> str:
    if not names:
        return ""
    return (
        f"; \\emph{{{', '.join(map(_short, names))}}}: the same ratio as printed for "
        rf"\texttt{{{escape(PUBLISHED)}}} on that GPU, where it was"
    )


def _one(rows: pd.DataFrame, provider: str, **equal: object) -> pd.Series | None:
    chosen = rows["provider"] == provider
    for column, value in equal.items():
        chosen &= rows[column] == value
    found = rows[chosen]
    return found.iloc[0] if len(found) else None


def _get(row: pd.Series | None, column: str) -> float | None:
    return None if row is None or pd.isna(row[column]) else float(row[column])


def _ms(row: pd.Series | None) -> str:
    """A time, marked where the result was wrong; the status where there is no time."""
    value = _get(row, "median_ms")
    if row is None or (value is None and row["status"] == "unsupported"):
        return decimals(None)
    if value is None:
        return escape(row["status"])
    return significant(value) + (r"$^\dagger$" if row["status"] == "wrong" else "")


def _unmarked(rows: pd.DataFrame) -> str:
    return r" $^\dagger$: the result is outside its error budget." if (rows["status"] == "wrong").any() else ""
