"""Precision in the form of the published table, beside it; gradients; the CPU."""

import math

import pandas as pd

from paper import style
from paper.captions import counts
from paper.measurements import CHANNELS_LAST, Machine, Measurements
from paper.typeset import Float, brief, decimals, escape, heading, scientific, table

SHORT = {"overflowed": "overfl."}


def make(measurements: Measurements) -> list[Float]:
    """The tables that the stored precision records allow."""
    floats = []
    measured = measurements.having("precision", ("paper", "here"))
    for machine in [*measured, *measurements.having("precision", cpu=True)]:
        for gates in style.GATES:
            rows = measurements.of(machine, "precision", gates=gates)
            if rows["states_factor"].notna().any():
                floats.append(_states(measurements, machine, gates, rows))
            if rows[["d_gates_factor", "d_tokens_factor"]].notna().any(axis=None):
                floats.append(_gradients(machine, gates, rows))
    if not measured:
        floats += [_published(measurements, each) for each in measurements.having("precision", ("published",))]
    return floats


def _states(measurements: Measurements, machine: Machine, gates: str, rows: pd.DataFrame) -> Float:
    providers = style.in_order(rows.loc[rows["states_factor"].notna(), "provider"])
    beside = [] if gates != "uniform_0_1" else measurements.having("precision", ("published",))
    printed = [
        (other, provider)
        for other in beside
        for provider in style.in_order(measurements.of(other, "precision")["provider"])
    ]
    compared = [name for name in ("ours", "warp") if name in providers]
    first, last = 2 + len(compared), 2 + len(compared) + len(providers)
    head = [
        rf" & \multicolumn{{{1 + len(compared)}}}{{c}}{{RMSE}}"
        + rf" & \multicolumn{{{len(providers)}}}{{c}}{{RMSE / rounding}}"
        + "".join(rf" & \multicolumn{{2}}{{c}}{{printed, {escape(other.name)}}}" for other in dict(printed))
        + r" \\",
        rf"\cmidrule(lr){{2-{first}}} \cmidrule(lr){{{first + 1}-{last}}}"
        + (rf" \cmidrule(l){{{last + 1}-{last + len(printed)}}}" if printed else ""),
        " & ".join(
            ["$T$", "rounding", *(escape(style.look(name).short) for name in compared + providers)]
            + [escape(style.look(name).short) for _, name in printed]
        )
        + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        of_dtype = rows[rows["dtype"] == dtype]
        body.append(heading(dtype, last + len(printed), first=not body))
        for T in sorted(set(of_dtype["T"])):
            at = of_dtype[of_dtype["T"] == T]
            line = [str(T), scientific(at["states_rounding"].max())]
            line += [_cell(at, name, "states_rmse") for name in compared]
            line += [_cell(at, name, "states_factor") for name in providers]
            for other, name in printed:
                there = measurements.of(other, "precision", dtype=dtype, T=T)
                line.append(_cell(there, name, "states_rmse"))
            body.append(line)
    caption = _caption("States", machine, gates, rows)
    return table(f"tab:precision:states:{gates}:{machine.slug}", "r" * (last + len(printed)), head, body, caption)


def _gradients(machine: Machine, gates: str, rows: pd.DataFrame) -> Float:
    columns = [
        (quantity, name)
        for quantity in ("d_gates", "d_tokens")
        for name in style.in_order(rows.loc[rows[f"{quantity}_factor"].notna(), "provider"])
    ]
    head_cells, rules, start = [""], [], 2
    for quantity in dict(columns):
        width = sum(1 for each, _ in columns if each == quantity)
        head_cells.append(rf"\multicolumn{{{width}}}{{c}}{{{style.QUANTITIES[quantity]}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    head = [" & ".join(head_cells) + r" \\", " ".join(rules)]
    head.append(" & ".join(["$T$", *(escape(style.look(name).short) for _, name in columns)]) + r" \\")
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        of_dtype = rows[rows["dtype"] == dtype]
        body.append(heading(dtype, 1 + len(columns), first=not body))
        for T in sorted(set(of_dtype["T"])):
            at = of_dtype[of_dtype["T"] == T]
            body.append([str(T), *(_cell(at, name, f"{quantity}_factor") for quantity, name in columns)])
    caption = _caption("Gradients, RMSE / rounding,", machine, gates, rows)
    return table(f"tab:precision:gradients:{gates}:{machine.slug}", "r" * (1 + len(columns)), head, body, caption)


def _published(measurements: Measurements, machine: Machine) -> Float:
    """The published table alone, where nothing was measured to put beside it."""
    rows = measurements.of(machine, "precision")
    providers = style.in_order(rows["provider"])
    head = [" & ".join(["$T$", *(escape(style.look(name).label) for name in providers)]) + r" \\"]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, 1 + len(providers), first=not body))
        for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
            at = rows[(rows["dtype"] == dtype) & (rows["T"] == T)]
            body.append([str(T), *(_cell(at, name, "states_rmse") for name in providers)])
    caption = (
        f"RMSE of the states against a sequential float64 scan, printed for {escape(machine.name)}, "
        f"$C={counts(rows['C'])}$; not measured by us. Source: {escape(rows['source'].iloc[0])}."
    )
    return table(f"tab:precision:published:{machine.slug}", "r" * (1 + len(providers)), head, body, caption)


def _cell(at: pd.DataFrame, provider: str, column: str) -> str:
    """An error, or how it failed, or a dash where the provider does not run."""
    found = at[at["provider"] == provider]
    if found.empty:
        return decimals(None)
    row = found.iloc[0]
    if row[column.rsplit("_", 1)[0] + "_failed"] or row["status"] in ("oom", "error"):
        return SHORT.get(row["status"], escape(row["status"]))
    value = float(row[column])
    if column.endswith("_rmse"):
        shown = scientific(value)
    else:
        shown = brief(value) if value >= 1000 else decimals(value, 1 if value >= 10 else 2)
    wrong = row[column.rsplit("_", 1)[0] + "_wrong"]
    return shown + (r"$^\dagger$" if wrong and not math.isnan(value) else "")


def _caption(what: str, machine: Machine, gates: str, rows: pd.DataFrame) -> str:
    caption = (
        f"{what} on {escape(machine.title)}, {escape(style.GATES[gates])}, $C={counts(rows['C'])}$, means of "
        f"{counts(rows['draws'])} draws, against a sequential float64 scan of the same inputs; \\emph{{rounding}}: "
        "the exact result rounded once to the type."
    )
    if CHANNELS_LAST in set(rows["provider"]):
        caption += r" \emph{ours, cl}: with channels contiguous (last)."
    if "overflowed" in set(rows["status"]):
        caption += r" \emph{overfl.}: overflowed, the error is larger than the value."
    caption += "".join(_gate_values(dtype, rows[rows["dtype"] == dtype]) for dtype in style.DTYPES)
    if (rows["status"] == "wrong").any():
        caption += r" $^\dagger$: outside the error budget."
    return caption


def _gate_values(dtype: str, rows: pd.DataFrame) -> str:
    """Which values the gates could take, where the records count them: few, in 16 bits and a narrow range."""
    known = rows["gate_values"].dropna()
    if known.empty:
        return ""
    values = known.iloc[0]
    return f" In {dtype} such a gate is one of {len(values)} values from {min(values):.4g} to {max(values):.4g}."
