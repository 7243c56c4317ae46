"""A line of measurements in a panel: bars for the interval, hollow where wrong, crosses where it diverged."""

import pandas as pd
from matplotlib.axes import Axes

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
