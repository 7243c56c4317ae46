"""What the records of one machine say, as a few lines of plain text."""

from collections.abc import Iterable

import pandas as pd

from experiments.records import QUANTITIES

MODES = {"forward": "forward", "backward": "backward", "forward_backward": "both"}
DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64")
GATES = {"uniform_0_1": "[0, 1)", "uniform_099_1": "[0.99, 1)"}


def speed_lines(rows: pd.DataFrame) -> Iterable[str]:
    """Times of the largest float32 case, fastest first, and in how many cases ours is the fastest."""
    timed = rows[rows["median_ms"].notna() & (rows["provider"] != "roofline")]
    timed = timed[~timed["reverse"].astype(bool) & (timed["needs"] == "gates,tokens")]
    shown = timed[(timed["dtype"] == "float32") & (timed["level"] == "api")]
    if shown.empty:
        return
    shown = shown[shown["T"] == shown["T"].max()]
    first = shown.iloc[0]
    machine = first["device"]
    yield f"Milliseconds a call on {machine}: float32, B={first['B']}, C={first['C']}, T={first['T']}"
    table = shown.pivot_table(index="provider", columns="mode", values="median_ms")
    columns = [mode for mode in MODES if mode in table.columns]
    wrong = set(shown[shown["status"] == "wrong"]["provider"])
    yield f"  {'':22}" + "".join(f"{MODES[mode]:>12}" for mode in columns)
    for name, times in table.sort_values(columns[-1], na_position="last").iterrows():
        numbers = (times[mode] for mode in columns)
        yield f"  {name + ' *' * (name in wrong):22}" + "".join(f"{_number(value):>12}" for value in numbers)
    if wrong:
        yield "  * outside its error budget in one of these cases"
    right = timed[timed["status"] == "ok"]
    fastest = right.loc[right.groupby("case_id")["median_ms"].idxmin(), "provider"]
    yield f"  ours is the fastest in {(fastest == 'ours').sum()} of {len(fastest)} cases of all sizes, dtypes and modes"


def packing_lines(rows: pd.DataFrame) -> Iterable[str]:
    """What a packed token costs, whatever the sequences: time of ours, a token's share of it, fraction of the limit."""
    ours = rows[(rows["provider"] == "ours") & (rows["dtype"] == "float32") & rows["median_ms"].notna()]
    if ours.empty:
        return
    first = ours.iloc[0]
    yield f"Packed sequences on {first['device']}: float32, B={first['B']}, C={first['C']}"
    yield f"  {'count x length':22}{'direction':>18}{'tokens':>10}{'ms':>10}{'ns a token':>12}{'of roofline':>13}"
    for _, row in ours.iterrows():
        per_token, fraction = 1e6 * row["median_ms"] / row["T"], 1 / row["ratio_to_roofline"]
        words = f"{row['level']} {MODES[row['mode']]}"
        numbers = f"{_number(row['median_ms']):>10}{_number(per_token):>12}{_number(fraction):>13}"
        yield f"  {row['lengths']:22}{words:>18}{row['T']:>10}{numbers}"


def layouts_lines(rows: pd.DataFrame) -> Iterable[str]:
    """Time of ours with channels last, shape by shape."""
    return _shape_lines("Channels last", rows)


def few_rows_lines(rows: pd.DataFrame) -> Iterable[str]:
    """Time of ours on few rows, shape by shape."""
    return _shape_lines("Few rows", rows)


def bidirectional_lines(rows: pd.DataFrame) -> Iterable[str]:
    """Time of ours in both directions, form by form."""
    return _shape_lines("Both directions", rows)


def _shape_lines(title: str, rows: pd.DataFrame) -> Iterable[str]:
    ours = rows[(rows["provider"] == "ours") & (rows["dtype"] != "bfloat16") & rows["median_ms"].notna()]
    if ours.empty:
        return
    yield f"{title} on {ours.iloc[0]['device']}: B x C x T"
    yield f"  {'case':44}{'direction':>18}{'ms':>10}{'of roofline':>13}"
    for _, row in ours.iterrows():
        form = "" if row["directions"] == "causal" else f" {row['directions']}"
        case = f"{row['B']} x {row['C']} x {row['T']} {row['dtype']}{form}"
        numbers = f"{_number(row['median_ms']):>10}{_number(1 / row['ratio_to_roofline']):>13}"
        yield f"  {case:44}{row['level'] + ' ' + MODES[row['mode']]:>18}{numbers}"


def precision_lines(rows: pd.DataFrame) -> Iterable[str]:
    """Errors in units of the error of rounding the exact result once: the worst mean over the draws of any T."""
    for quantity in QUANTITIES:
        factor = f"{quantity}_factor"
        known = rows[rows[factor].notna()]
        if known.empty:
            continue
        table = known.pivot_table(index="provider", columns=["gates", "dtype"], values=factor, aggfunc="max")
        columns = [(gates, dtype) for gates in GATES for dtype in DTYPES if (gates, dtype) in table.columns]
        yield f"Error of {quantity}; 1 = the exact result rounded once (mean over draws, at the worst T)"
        yield f"  {'gates':22}" + "".join(f"{GATES[gates]:>12}" for gates, _ in columns)
        yield f"  {'':22}" + "".join(f"{dtype:>12}" for _, dtype in columns)
        for name, values in table.sort_values(columns[0]).iterrows():
            yield f"  {name!s:22}" + "".join(f"{_number(values[column]):>12}" for column in columns)


def unmeasured_lines(rows: pd.DataFrame) -> Iterable[str]:
    """The providers without any result here, with the reason that they gave."""
    for name, own in rows.groupby("provider"):
        if not (own["median_ms"].notna() | own["states_factor"].notna() | own["status"].isin(["ok", "wrong"])).any():
            reason = next((reason for reason in own["reason"] if isinstance(reason, str)), "no reason was recorded")
            yield f"{str(name) + ': ' if str(name) not in reason else ''}{reason.rstrip('.')}."


def _number(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.3g}"
