"""Lines of measurements in panels: bars for the interval, hollow where wrong, crosses where it diverged."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import style
from paper.style import Look


def draw(
    panel: Axes,
    points: pd.DataFrame,
    column: str,
    label: str,
    look: Look,
    front: bool = False,
    failed: str = "",
    joined: bool = True,
) -> None:
    """Draws `column` over T, with `<column>_low` and `<column>_high` as bars; the column `failed` says what is lost.

    Points that nothing lies between are not `joined`. Nothing is drawn, and no legend lists it, where nothing was
    measured.
    """
    points = points.sort_values("T")
    lost = points[failed].astype(bool) if failed else pd.Series(False, index=points.index)
    if not (lost | points[column].notna()).any():
        return
    values = points[column].mask(lost).astype(float)
    bars = [
        (sign * (points[f"{column}_{end}"].astype(float) - values)).clip(lower=0).fillna(0)
        if f"{column}_{end}" in points
        else 0 * values.fillna(0)
        for sign, end in ((-1, "low"), (1, "high"))
    ]
    order = 3 if front else 2
    panel.errorbar(
        points["T"], values, yerr=bars, label=label, color=look.colour, linestyle=look.line if joined else "",
        marker=look.marker, capsize=1.5, elinewidth=0.7, zorder=order,
    )  # fmt: skip
    wrong = points["status"] == "wrong"
    panel.plot(
        points["T"][wrong], values[wrong], linestyle="", marker=look.marker, markerfacecolor="white",
        markeredgecolor=look.colour, zorder=order + 1,
    )  # fmt: skip
    if lost.any():
        panel.plot(
            points["T"][lost], [1.0] * int(lost.sum()), linestyle="", marker="x", color=look.colour, markersize=5,
            transform=panel.get_xaxis_transform(), clip_on=False, zorder=order + 1,
        )  # fmt: skip


def fractions(rows: pd.DataFrame, margin: float, joined: bool = True) -> tuple[Figure, list[list[Axes]]]:
    """A panel for each mode and dtype: every provider's `fraction` of the roofline over T, an axis still unmarked."""
    modes = [mode for mode in style.MODES if mode in set(rows["mode"])]
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    figure, axes = style.grid(len(modes), len(dtypes), margin + 1.45 * len(modes))
    for i, mode in enumerate(modes):
        for j, dtype in enumerate(dtypes):
            points = rows[(rows["mode"] == mode) & (rows["dtype"] == dtype)]
            fraction(axes[i][j], points, rows, f"{style.MODES[mode]}, {dtype}", joined)
        axes[i][0].set_ylabel("fraction of roofline")
    return figure, axes


def row_of_fractions(
    rows: pd.DataFrame, kinds: Sequence[tuple[str, str]], height_in: float, width_in: float, joined: bool = True
) -> tuple[Figure, list[Axes]]:
    """Panels side by side for some pairs of mode and dtype, as `fractions` draws them."""
    figure, axes = style.grid(1, len(kinds), height_in, width_in=width_in)
    dtypes = {dtype for _, dtype in kinds}
    for panel, (mode, dtype) in zip(axes[0], kinds, strict=True):
        title = style.MODES[mode] + (f", {dtype}" if len(dtypes) > 1 else "")
        fraction(panel, rows[(rows["mode"] == mode) & (rows["dtype"] == dtype)], rows, title, joined)
    axes[0][0].set_ylabel("fraction of roofline")
    return figure, axes[0]


def fraction(panel: Axes, points: pd.DataFrame, rows: pd.DataFrame, title: str, joined: bool = True) -> None:
    """One panel: every provider's `fraction` of the roofline over T, as high as all `rows` of the figure ask for."""
    style.limit(panel, "roofline")
    for provider in style.in_order(points["provider"]):
        if provider != "roofline":
            own, look = points[points["provider"] == provider], style.look(provider)
            draw(panel, own, "fraction", look.label, look, front=provider == "ours", joined=joined)
    panel.set_title(title)
    panel.set_ylim(0, max(1.1, 1.04 * rows.loc[rows["provider"] != "roofline", "fraction"].max()))
