"""Speed through the Python API, as the published table of that name has it, with host and device apart."""

import pandas as pd

from paper import style
from paper.captions import conditions, shape, widest
from paper.cells import beside_words, get, ms, one, printed, ratio, short, unmarked
from paper.measurements import Machine, Measurements, fraction_of
from paper.typeset import Float, decimals, escape, heading, table

# The published table has the first; inference is the second, and the gradient alone is in neither.
MODES = ("forward_backward", "forward")


def make(measurements: Measurements) -> list[Float]:
    """A table of each GPU and mode whose calls were measured."""
    floats = []
    for machine in measurements.having("speed", ("paper", "here")):
        rows = measurements.of(machine, "speed", level="api")
        rows = rows[rows["provider"].isin(("ours", "warp"))]
        for mode in MODES:
            of_mode = rows[rows["mode"] == mode]
            if len(of_mode):
                floats.append(_of(measurements, machine, mode, of_mode))
    return floats


def _of(measurements: Measurements, machine: Machine, mode: str, rows: pd.DataFrame) -> Float:
    beside = {name: ratios for (of, name), ratios in printed(measurements, "api").items() if of == mode}
    kernels = measurements.of(machine, "speed", level="kernel", mode=mode)
    columns = 10 + len(beside)
    head = [
        r" & \multicolumn{3}{c}{call, ms} & \multicolumn{3}{c}{host, \textmu s} & \multicolumn{3}{c}{device, ms}"
        + (rf" & \multicolumn{{{len(beside)}}}{{c}}{{printed}}" if beside else "")
        + r" \\",
        r"\cmidrule(lr){2-4} \cmidrule(lr){5-7} \cmidrule(lr){8-10}"
        + (rf" \cmidrule(l){{11-{columns}}}" if beside else ""),
        " & ".join(["$T$", *(["ours", "warp", r"$\times$"] * 3), *map(short, beside)]) + r" \\",
    ]
    body: list[str | list[str]] = []
    for dtype in [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]:
        body.append(heading(dtype, columns, first=not body))
        for T in sorted(set(rows.loc[rows["dtype"] == dtype, "T"])):
            ours, warp = (one(rows, provider, dtype=dtype, T=T) for provider in ("ours", "warp"))
            line = [str(T), ms(ours), ms(warp), _ratio(ours, "samples_ms")]
            line += [decimals(get(row, "host_median_us"), 1) for row in (ours, warp)]
            line.append(_ratio(ours, "host_samples_us"))
            ours, warp = (one(kernels, provider, dtype=dtype, T=T) for provider in ("ours", "warp"))
            line += [ms(ours), ms(warp), _ratio(ours, "samples_ms")]
            line += [decimals(ratios.get((dtype, T))) for ratios in beside.values()]
            body.append(line)
    caption = (
        f"Through the Python API on {escape(machine.title)}, {style.MODES[mode]}, {shape(rows)}. \\emph{{call}}: from "
        f"an idle GPU until the result is there{conditions(rows)}. \\emph{{host}}: until the call returns. "
        r"\emph{device}: the kernels of the same case alone, as in the table of kernels. $\times$: time of warp over "
        rf"time of ours, with its 95\,\% interval{beside_words(list(beside))}. {_dashes(rows)}{unmarked(rows)} "
        f"{widest(rows)}"
    )
    return table(f"tab:api:{mode.replace('_', '-')}:{machine.slug}", "r" * columns, head, body, caption.strip())


def _ratio(row: pd.Series | None, time: str) -> str:
    return decimals(None) if row is None else ratio(fraction_of(row, "ours", "warp", time))


def _dashes(rows: pd.DataFrame) -> str:
    missing = rows[(rows["provider"] == "warp") & rows["median_ms"].isna()]
    return "A dash: warp does not run that call." if len(missing) else ""
