"""Training: losses of a small network with each scan, step by step, and tokens per second beside them."""

import math
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from paper import style
from paper.captions import counts
from paper.measurements import Machine, Measurements
from paper.trainings import trainings
from paper.typeset import Float, escape, figure

MARKS = 7
"""Markers of a curve, so that lines on top of each other can be told apart."""


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """A figure of each machine that a network was trained on."""
    machines = [*measurements.having("training", ("paper", "here")), *measurements.having("training", cpu=True)]
    trained = [(machine, trainings(measurements, machine)) for machine in machines]
    return [_trained(machine, rows, folder) for machine, rows in trained if len(rows)]


def _trained(machine: Machine, rows: pd.DataFrame, folder: Path) -> Float:
    dtypes = [dtype for dtype in style.DTYPES if dtype in set(rows["dtype"])]
    lengths = sorted(set(rows["T"]))
    height = 0.75 + 1.6 * len(lengths)
    figure_, axes = style.grid(len(lengths), len(dtypes) + 1, height, share_y=False, share_x=False)
    for i, T in enumerate(lengths):
        of_length = rows[rows["T"] == T]
        for j, dtype in enumerate(dtypes):
            losses(axes[i][j], of_length[of_length["dtype"] == dtype])
        axes[i][0].set_ylabel(f"loss, T = {T}")
        _speeds(axes[i][-1], of_length, dtypes)
    for panel, title in zip(axes[0], [*dtypes, "tokens per second, millions"], strict=True):
        panel.set_title(title)
    for panel in axes[-1][:-1]:
        panel.set_xlabel("step")
    style.legend_above(figure_, axes)
    pdf = f"figures/training-{machine.slug}.pdf"
    style.save(figure_, folder / pdf)
    wrong = " Hollow: the curve is not the exact one." if (rows["status"] == "wrong").any() else ""
    caption = (
        f"A gated recurrent network of width {counts(rows['C'])} trained on selective copying on "
        f"{escape(machine.title)}, $B={counts(rows['B'])}$, with each scan from the same weights on the same batches: "
        "the loss of every step, above the wide line of the network with exact states; right, tokens per second, from "
        f"the median of {counts(rows['samples'])} steps with its 95\\,\\% interval. All networks take each step in "
        f"turns. A cross: a loss that is not finite.{wrong}"
    )
    return figure(f"fig:training:{machine.slug}", pdf, caption)


def losses(panel: Axes, rows: pd.DataFrame) -> None:
    """Curves over steps, ours in front; a cross where one is lost."""
    if rows.empty:
        return
    exact = rows.iloc[0]["exact_losses"] or []
    panel.plot(range(len(exact)), exact, color="#cccccc", linewidth=4, zorder=1.5, label="exact states")
    steps = max(map(len, rows["losses"]))
    panel.set_xticks([0, steps // 2, steps])
    names = style.in_order(rows["recorded_as"])
    for number, name in enumerate(names):
        row, look = rows[rows["recorded_as"] == name].iloc[0], style.look(name)
        losses = row["losses"]
        spacing = max(1, len(losses) // MARKS)
        panel.plot(
            range(len(losses)), losses, label=look.label, color=look.colour, linestyle=look.line, marker=look.marker,
            markevery=(number * spacing // len(names), spacing), zorder=3 if name == "ours" else 2,
            markerfacecolor="white" if row["status"] == "wrong" else look.colour,
        )  # fmt: skip
        lost = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if lost is not None:
            panel.plot(
                lost, 1.0, marker="x", color=look.colour, markersize=5, transform=panel.get_xaxis_transform(),
                clip_on=False, zorder=4,
            )  # fmt: skip


def _speeds(panel: Axes, rows: pd.DataFrame, dtypes: list[str]) -> None:
    """Tokens per second, a group of points for each dtype."""
    rows = rows[rows["tokens_per_s"].notna()]
    names = style.in_order(rows["recorded_as"])
    for number, name in enumerate(names):
        look = style.look(name)
        shift = 0.6 * ((number + 0.5) / len(names) - 0.5)
        for _, row in rows[rows["recorded_as"] == name].iterrows():
            value, low, high = (row[f"tokens_per_s{end}"] / 1e6 for end in ("", "_low", "_high"))
            panel.errorbar(
                dtypes.index(row["dtype"]) + shift, value, yerr=[[value - low], [high - value]], color=look.colour,
                marker=look.marker, capsize=1.5, elinewidth=0.7, linestyle="",
                markerfacecolor="white" if row["status"] == "wrong" else look.colour,
            )  # fmt: skip
    panel.set_xticks(range(len(dtypes)), dtypes)
    panel.set_xlim(-0.5, len(dtypes) - 0.5)
    if len(rows):
        panel.set_yscale("log")
        style.plain_log_axis(panel)
