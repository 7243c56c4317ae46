"""How the kernels move data, drawn: a tile, its mirror image for backward, packing, splitting, both directions."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from paper import style
from paper.measurements import Measurements
from paper.typeset import Float, figure

GROUPS = ("#F3C9AE", "#B9D7EA", "#BFE3D4", "#F6E3B4")
"""Tints that differ in grey as well; every box also says what it is."""
PLAIN, MARKED = "#FFFFFF", "#DDDDDD"
STEP = 0.165
"""The side of the box of one step, in inches."""
V = 4


def make(measurements: Measurements, folder: Path) -> list[Float]:
    """One figure, whatever was measured."""
    drawing, axes = style.blank(4.15)
    _forward(axes, 0.12, 1.86)
    _backward(axes, 3.86, 1.86)
    _packed(axes, 0.12, -0.05)
    _split(axes, 2.72, -0.05)
    _both(axes, 5.4, -0.05)
    pdf = "brief/method.pdf"
    style.save(drawing, folder / pdf)
    caption = (
        r"How the kernels move data, with four steps a group and four groups a tile where the kernels have up to "
        r"thousands of steps. (a) Forward: a group is one 16-byte load and stays in one thread; only one map a group "
        r"takes part in the scan across threads. (b) Backward runs against time: groups are numbered from the end and "
        r"their columns renamed, so loads and scan go forwards. (c) Packed sequences are one row; the map of a group "
        r"that holds a first step has the gate NaN. (d) A row split over time: every program publishes the map of its "
        r"tile (circles), the last of a window that of the window (squares), and composes those before its own. "
        r"(e) Two branches in one launch: neighbouring programs scan the same rows in opposite directions."
    )
    return [figure("fig:method", pdf, caption)]


def _box(axes: Axes, x: float, y: float, width: float, height: float, text: str = "", fill: str = PLAIN) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor="black", linewidth=0.6))
    if text:
        axes.text(x + width / 2, y + height / 2 - 0.005, text, ha="center", va="center", fontsize=7.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=6, linewidth=0.7, color="black", shrinkA=0, shrinkB=0
        )
    )


def _say(axes: Axes, x: float, y: float, text: str, side: str = "left") -> None:
    axes.text(x, y, text, ha=side, va="center", fontsize=7.5, linespacing=1.0)


def _lines(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="left", va="top", fontsize=7.5, linespacing=1.15)


def _title(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="left", va="center", fontsize=8.5, fontweight="bold")


def _steps(axes: Axes, x: float, y: float, labels: list[str], fills: list[str], step: float = STEP) -> None:
    """Neighbouring steps in memory."""
    for number, (label, fill) in enumerate(zip(labels, fills, strict=True)):
        _box(axes, x + number * step, y, step, STEP, label, fill)


def _forward(axes: Axes, x: float, y: float) -> None:
    """From memory to memory, downwards."""
    _title(axes, x, y + 2.2, "(a) a tile, forward")
    left, width = x + 0.72, V * STEP
    memory, registers, maps, before, states = y + 1.78, y + 1.24, y + 0.84, y + 0.44, y + 0.02
    _steps(axes, left, memory, [str(t) for t in range(16)], [GROUPS[t // V] for t in range(16)])
    for group in range(4):
        at = left + group * width + 0.06
        middle = at + width / 2 - 0.06
        _arrow(axes, (middle, memory), (middle, registers + 0.3))
        for k in range(V):
            _box(axes, at + k * (width - 0.12) / V, registers, (width - 0.12) / V, 0.28, f"$c_{k}$", GROUPS[group])
        _arrow(axes, (middle, registers), (middle, maps + 0.18))
        _box(axes, at, maps, width - 0.12, 0.18, f"$G_{group}, X_{group}$", GROUPS[group])
        _box(axes, at, before, width - 0.12, 0.18, f"$h$ before {group * V}", PLAIN)
        _arrow(axes, (middle, before), (middle, states + STEP))
        if group < 3:
            _arrow(axes, (at + width - 0.12, maps + 0.05), (at + width + 0.2, before + 0.18))
    _arrow(axes, (left - 0.1, before + 0.09), (left + 0.06, before + 0.09))
    _steps(axes, left, states, ["$h$"] * 16, [GROUPS[t // V] for t in range(16)])
    for text, at in (
        ("16-byte\nloads", memory + 0.06), ("columns of\na thread", registers + 0.14),
        ("one map\na group", maps + 0.09),
        ("scan; the\ncarry enters", before + 0.1), ("recurrence,\n16-byte stores", states + 0.09),
    ):  # fmt: skip
        _say(axes, x, at, text)
    _arrow(axes, (left + 4 * width + 0.02, states + 0.08), (left + 4 * width + 0.2, states + 0.08))
    _say(axes, left + 4 * width - 0.02, states + 0.26, "carry")


def _backward(axes: Axes, x: float, y: float) -> None:
    """The same groups, numbered from the end of the row."""
    _title(axes, x, y + 2.2, "(b) the same tile, backward")
    left, width = x + 0.35, V * STEP
    memory, threads, columns, flow = y + 1.78, y + 1.06, y + 0.66, y + 0.18
    _steps(axes, left, memory, [str(t) for t in range(16)], [GROUPS[t // V] for t in range(16)])
    for group in range(4):
        at = left + group * width
        _say(axes, at + width / 2, memory + 0.25, f"group {3 - group}", "center")
    for thread in range(4):
        at, of = left + thread * width, 3 - thread
        _arrow(axes, (left + of * width + width / 2, memory), (at + width / 2, threads + 0.18))
        _box(axes, at + 0.06, threads, width - 0.12, 0.18, f"thread {thread}", GROUPS[of])
        labels = [str(of * V + 3 - k) for k in range(V)]
        for k, label in enumerate(labels):
            _box(axes, at + 0.06 + k * (width - 0.12) / V, columns, (width - 0.12) / V, 0.28, label, GROUPS[of])
        _arrow(axes, (at + width / 2, threads), (at + width / 2, columns + 0.28))
    _say(axes, left + 2 * width, columns - 0.12, "columns $c_0$ to $c_3$ of each: a renaming, no instruction", "center")
    _arrow(axes, (left, flow + 0.16), (left + 4 * width, flow + 0.16))
    _say(
        axes,
        left + 2 * width,
        flow - 0.04,
        r"forward scan of $u_t = g_t\,\bar{x}_t$, from the last step to the first",
        "center",
    )


def _packed(axes: Axes, x: float, y: float) -> None:
    """Three sequences in one row, and what the scan sees of them."""
    _title(axes, x, y + 1.68, "(c) packing as one row")
    lengths, step = (6, 8, 2), 0.85 * STEP
    fills = [GROUPS[n] for n, length in enumerate(lengths) for _ in range(length)]
    firsts = [sum(lengths[:n]) for n in range(len(lengths))]
    memory, maps = y + 1.12, y + 0.66
    _steps(axes, x, memory, [""] * sum(lengths), fills, step)
    for first, length in zip(firsts, lengths, strict=True):
        # The last name is wider than its sequence.
        _say(
            axes,
            x + (first + length / 2) * step + 0.06 * (length == 2),
            memory + STEP + 0.12,
            f"{length} steps",
            "center",
        )
        axes.plot([x + first * step] * 2, [memory - 0.03, memory + STEP + 0.22], color="black", linewidth=1.4)
    width = V * step
    for group in range(4):
        at = x + group * width
        steps = range(group * V, min((group + 1) * V, sum(lengths)))
        held = any(first in steps for first in firsts)
        wide = len(steps) * step
        _box(axes, at + 0.03, maps, wide - 0.06, 0.18, "NaN" if held else "$G$", MARKED if held else PLAIN)
        _arrow(axes, (at + wide / 2, memory - 0.02), (at + wide / 2, maps + 0.18))
    _lines(
        axes,
        x,
        maps - 0.1,
        "gate of each group's map: composing\nwith a NaN on the right forgets what\n"
        "is on the left, so no flag joins the scan",
    )


def _split(axes: Axes, x: float, y: float) -> None:
    """Tiles of a row, the maps that their programs publish, and what one of them reads."""
    _title(axes, x, y + 1.68, "(d) one row, a program a tile")
    width, gap, tiles, maps, reader = 0.27, 0.06, y + 1.12, y + 0.8, y + 0.26
    places = [x + n * width + (n // 3) * gap for n in range(8)]
    for number, at in enumerate(places):
        _box(axes, at, tiles, width, STEP + 0.02, str(number), GROUPS[number // 3])
        middle = (at + width / 2, maps)
        last = number % 3 == 2
        if number < 7:
            _arrow(axes, (at + width / 2, tiles), (at + width / 2, maps + 0.05))
            axes.plot(*middle, marker="s" if last else "o", color="black", markersize=4.5 if last else 3.6,
                      markerfacecolor=MARKED if last else "white", markeredgewidth=0.8)  # fmt: skip
    for window in range(3):
        start, end = places[3 * window], places[min(3 * window + 2, 7)] + width
        _say(axes, (start + end) / 2, tiles + 0.28, f"window {window}", "center")
    for number in (2, 5, 6):
        _arrow(axes, (places[number] + width / 2, maps - 0.05), (places[7] + 0.02, reader + 0.2))
    _box(axes, places[7] - 0.32, reader, width + 0.34, 0.2, "program 7", GROUPS[2])
    _lines(
        axes,
        x,
        reader + 0.32,
        "program 7 holds tile 7; it\ncomposes windows 0 and 1,\nthen tile 6, always in\nthis order",
    )


def _both(axes: Axes, x: float, y: float) -> None:
    """Programs in launch order, two for every block of rows."""
    _title(axes, x, y + 1.68, "(e) both directions")
    width = 1.05
    for number in range(4):
        at = y + 1.26 - number * 0.24
        ascending = number % 2 == 0
        _box(axes, x + 0.38, at, width, 0.18, "", GROUPS[0 if ascending else 1])
        start, end = (x + 0.46, at + 0.09), (x + 0.3 + width, at + 0.09)
        _arrow(axes, *((start, end) if ascending else (end, start)))
        _say(axes, x, at + 0.09, f"pr. {number}")
    for block in range(2):
        at = y + 1.02 - block * 0.48
        _box(axes, x + 0.34, at - 0.03, width + 0.08, 0.48, "", "none")
    _lines(axes, x, y + 0.44, "two programs a block of rows:\nthe first branch ascending,\nthe second descending")
