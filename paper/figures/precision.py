"""Precision: errors as multiples of rounding once, and the states' errors beside the published ones."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from paper import lines, style
from paper.captions import counts
from paper.measurements import CHANNELS_LAST, Machine, Measurements
from paper.typeset import Float, escape, figure, listed

OFF_SCALE = 1000
"""Times the rounding error, where the axis ends: beyond it the other lines would all be one."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """The figures that the stored precision records allow."""
    floats = []
    for machine in measurements.having("precision", ("paper", "here")):
        for gates in style.GATES:
            rows = measurements.of(machine, "precision", gates=gates)
            if len(rows) and rows[_factors()].notna().any(axis=None):
                floats.append(_of_rounding(machine, gates, rows, folder))
    return floats + _beside_published(measurements, folder)


def _factors() -> list[str]:
    return [f"{quantity}_factor" for quantity in style.QUANTITIES]


def _wrongs() -> list[str]:
    return [f"{quantity}_wrong" for quantity in style.QUANTITIES]


def _of_rounding(machine: Machine, gates: str, rows: pd.DataFrame, folder: Path) -> Float:
    quantities = [each for each in style.QUANTITIES if rows[f"{each}_factor"].notna().any()]
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(len(quantities), len(dtypes), 0.75 + 1.4 * len(quantities))
    for i, each in enumerate(quantities):
        for j, dtype in enumerate(dtypes):
            quantity(axes[i][j], rows[rows["dtype"] == dtype], each)
            style.time_axis(axes[i][j], sorted(set(rows["T"])))
            axes[i][j].set_title(f"{style.QUANTITIES[each]}, {dtype}")
        axes[i][0].set_ylabel("RMSE / rounding error")
    shown = [rows.loc[~rows[f"{each}_failed"] & ~_off_scale(rows, each), f"{each}_factor"].max() for each in quantities]
    for panel in (panel for row in axes for panel in row):
        panel.set_ylim(0.8, max(4, 1.3 * max(shown)))
        style.plain_log_axis(panel)
    for panel in axes[-1]:
        panel.set_xlabel("sequence length T")
    style.legend_above(figure_, axes)
    pdf = f"figures/precision-{gates.replace('_', '-')}-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    exact = rows[(rows["provider"] == "sequential") & rows["layout"].str.contains("computed in float64", na=False)]
    caption = (
        f"Errors on {escape(machine.title)}, {escape(style.GATES[gates])}, $C={counts(rows['C'])}$: RMSE against a "
        "sequential float64 scan, divided by that of rounding the exact result once to the type. Means of "
        f"{counts(rows['draws'])} draws; bars span 95\\,\\% of the draws."
        + (r" \emph{sequential} computes in float64 and rounds once." if len(exact) else "")
        + (r" Hollow: outside the error budget." if rows[_wrongs()].any(axis=None) else "")
        + _failures(rows)
        + _beyond(rows, quantities)
    )
    return figure(f"fig:precision:{gates}:{machine.slug}", pdf, caption)


def quantity(panel: Axes, points: pd.DataFrame, name: str) -> None:
    """Every provider's error of a quantity over T, beside the error of rounding once."""
    panel.set_yscale("log")
    style.limit(panel, "rounded once")
    for provider in style.in_order(points["provider"]):
        look = style.look(provider)
        own = points[points["provider"] == provider]
        own = own.assign(lost=own[f"{name}_failed"] | _off_scale(own, name), status=_judged(own, name))
        lines.draw(panel, own, f"{name}_factor", look.label, look, provider in ("ours", CHANNELS_LAST), "lost")


def _judged(rows: pd.DataFrame, quantity: str) -> pd.Series:
    """The status as far as this quantity goes: it is hollow where it is outside its error budget, and only there."""
    return rows["status"].mask(rows[f"{quantity}_wrong"], "wrong").mask(~rows[f"{quantity}_wrong"], "ok")


def _off_scale(rows: pd.DataFrame, quantity: str) -> pd.Series:
    return rows[f"{quantity}_factor"] > OFF_SCALE


def _beyond(rows: pd.DataFrame, quantities: list[str]) -> str:
    """Which finite errors are crosses because the axis ends below them."""
    said = []
    for provider in style.in_order(rows["provider"]):
        for dtype in style.DTYPES:
            points = rows[(rows["provider"] == provider) & (rows["dtype"] == dtype)]
            for quantity in quantities:
                far = points[_off_scale(points, quantity) & ~points[f"{quantity}_failed"]]
                if len(far):
                    lengths = listed([str(T) for T in sorted(set(far["T"]))])
                    said.append(f"{style.look(provider).label}, {style.QUANTITIES[quantity]}, {dtype}, T = {lengths}")
    return f" Crosses also where the error is over {OFF_SCALE} times: {escape('; '.join(said))}." if said else ""


def _failures(rows: pd.DataFrame) -> str:
    failed = rows[rows[[f"{quantity}_failed" for quantity in style.QUANTITIES]].any(axis=1)]
    said = []
    for provider in style.in_order(failed["provider"]):
        for dtype in style.DTYPES:
            points = failed[(failed["provider"] == provider) & (failed["dtype"] == dtype)]
            for status in sorted(set(points["status"])):
                lengths = listed([str(T) for T in sorted(set(points.loc[points["status"] == status, "T"]))])
                said.append(f"{style.look(provider).label} in {dtype} {status} at T = {lengths}")
    return f" Crosses at the upper edge: {escape('; '.join(said))}." if said else ""


def _beside_published(measurements: Measurements, folder: Path) -> list[Float]:
    """RMSE of the states as the published table has it, ours and the same peers beside."""
    published = measurements.having("precision", ("published",))
    if not published:
        return []
    rows = measurements.of(published[0], "precision")
    main = measurements.main("precision")
    series = [(published[0], provider) for provider in style.in_order(rows["provider"])]
    if main is not None:
        series[:0] = [(main, "ours"), (main, CHANNELS_LAST)]
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure_, axes = style.grid(1, len(dtypes), 2.2, share_y=False)
    for panel, dtype in zip(axes[0], dtypes, strict=True):
        panel.set_yscale("log")
        for machine, provider in series:
            points = measurements.of(machine, "precision", dtype=dtype, provider=provider, gates="uniform_0_1")
            if len(points):
                look = style.look(provider)
                label = f"{look.label}, {machine.title}"
                lines.draw(panel, points, "states_rmse", label, look, provider == "ours", "states_failed")
        style.time_axis(panel, sorted(set(rows["T"])))
        panel.set_title(f"states, {dtype}")
        panel.set_xlabel("sequence length T")
        low, high = panel.get_ylim()
        panel.set_ylim(low / 1.5, high * 1.5)
    axes[0][0].set_ylabel("RMSE")
    style.legend_above(figure_, axes)
    pdf = "figures/precision-published.pdf"
    style.save(figure_, folder / pdf)
    caption = (
        f"RMSE of the states against a sequential float64 scan, as printed for {escape(published[0].name)} "
        f"(source: {escape(rows['source'].iloc[0])})"
        + (f", beside ours on {escape(main.title)}." if main else ".")
        + _failures(rows)
    )
    return [figure("fig:precision:published", pdf, caption)]
