"""What others printed beside what we measured: speed relative to warp by length, and errors of the states."""

from pathlib import Path

import pandas as pd

from paper import style
from paper.cells import PUBLISHED, get, one, printed, short
from paper.measurements import Machine, Measurements
from paper.typeset import MISSING, Float, decimals, escape, heading, scientific, table

COLUMNS = {
    ("api", "forward_backward"): "Python API, fwd + bwd",
    ("kernel", "forward_backward"): "kernels, fwd + bwd",
    ("kernel", "forward"): "kernels, forward",
    ("kernel", "backward"): "kernels, backward",
}
"""The tables of the source."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A table of speed and one of errors, with columns of ours where they were measured."""
    return [*_speed(measurements), *_errors(measurements)]


def _speed(measurements: Measurements) -> list[Float]:
    others = measurements.having("speed", ("published",))
    if not others:
        return []
    main = measurements.main("speed")
    beside = {column: printed(measurements, column[0]) for column in COLUMNS}
    names = [*(short(other.name) for other in others), *(["ours"] if main else [])]
    each = len(names)
    head = [
        " & ".join(["", *(rf"\multicolumn{{{each}}}{{c}}{{{words}}}" for words in COLUMNS.values())]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + each * i}-{1 + each * (i + 1)}}}" for i in range(len(COLUMNS))),
        " & ".join(["$T$", *names * len(COLUMNS)]) + r" \\",
    ]
    rows = measurements.rows[measurements.rows["published"] & (measurements.rows["stem"] == "speed")]
    wrong = False
    body: list[str | list[str]] = []
    for T in sorted(set(rows["T"])):
        line = [str(T)]
        for level, mode in COLUMNS:
            for other in others:
                line.append(decimals(beside[(level, mode)].get((mode, other.name), {}).get(("float32", T))))
            if main is not None:
                cell, marked = _ours(measurements, main, level, mode, int(T))
                wrong |= marked
                line.append(cell)
        body.append(line)
    said = f"; \\emph{{ours}}: measured on {escape(main.title)}, float32" if main else ""
    mark = r" $^\dagger$: the result of warp is outside its error budget there." if wrong else ""
    caption = (
        r"Speed relative to accelerated-scan's warp kernel, above 1 is faster. "
        rf"\emph{{{', '.join(names[: len(others)])}}}: "
        rf"as printed for \texttt{{{escape(PUBLISHED)}}} on {escape(' and '.join(other.name for other in others))} "
        rf"(source: {escape(rows['source'].iloc[0])}){said}. A dash: not printed.{mark}"
    )
    return [table("tab:brief:published", "r" * (1 + each * len(COLUMNS)), head, body, caption, gap="4pt")]


def _ours(measurements: Measurements, machine: Machine, level: str, mode: str, T: int) -> tuple[str, bool]:
    """Our ratio to warp, and whether warp is wrong there."""
    rows = measurements.of(machine, "speed", level=level, mode=mode, dtype="float32", T=T)
    ours = one(rows, "ours")
    value = get(ours, "over_warp") if ours is not None and ours["status"] == "ok" else None
    warp = one(rows, "warp")
    wrong = value is not None and warp is not None and warp["status"] == "wrong"
    return decimals(value) + (r"$^\dagger$" if wrong else ""), wrong


def _errors(measurements: Measurements) -> list[Float]:
    others = measurements.having("precision", ("published",))
    if not others:
        return []
    main = measurements.main("precision")
    machines = [others[0], *([main] if main else [])]
    names = {others[0]: (PUBLISHED, "warp"), **({main: ("ours", "warp")} if main else {})}
    head = [
        " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{_where(machine)}}}" for machine in machines)]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{2 + 2 * i}-{3 + 2 * i}}}" for i in range(len(machines))),
        " & ".join(["$T$", *(escape(style.look(name).short) for machine in machines for name in names[machine])])
        + r" \\",
    ]
    rows = measurements.of(others[0], "precision")
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, 1 + 2 * len(machines), first=not body))
        for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
            line = [str(T)]
            for machine in machines:
                at = measurements.of(machine, "precision", dtype=dtype, T=T)
                if machine.origin != "published":
                    at = at[at["gates"] == "uniform_0_1"]
                line += [_error(one(at, name)) for name in names[machine]]
            body.append(line)
    caption = (
        f"RMSE of the states against a sequential float64 scan, $C={rows['C'].iloc[0]}$: as printed for "
        f"{escape(others[0].name)} (the same source)" + (f", and measured on {escape(main.title)}." if main else ".")
    )
    return [table("tab:brief:errors", "r" * (1 + 2 * len(machines)), head, body, caption, wide=False, gap="5pt")]


def _where(machine: Machine) -> str:
    return f"printed, {short(machine.name)}" if machine.origin == "published" else "measured"


def _error(row: pd.Series | None) -> str:
    if row is None:
        return MISSING
    return escape(row["status"]) if row["states_failed"] else scientific(get(row, "states_rmse"))
