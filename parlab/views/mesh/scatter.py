"""All meshes of 8 and 16 ranks: the time of a step, the bytes that are sent, and the memory of the fullest rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from parlab.views.drawing import theme
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import Picture, line_legend, panel, scale, sheet, short_bytes
from parlab.views.mesh.steps import NAMES, StoredStep, stored
from parlab.world.units import format_bytes

COLORS = {"dp": "#1B4F9C", "pp": "#444444", "cp": "#C51B7D", "tp": "#A6761D"}  # as messages in a step
MARKERS = {1: "o", 3: "s"}  # of ZeRO's stages
LEFT, RIGHT, TOP, BOTTOM, BETWEEN, HEIGHT = 0.9, 0.3, 1.05, 0.65, 0.75, 4.6  # inches
BACKING = {"facecolor": theme.PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1}
NAMED: Any = {"ha": "right", "va": "center", "size": theme.SMALL, "color": theme.INK, "weight": "bold", "bbox": BACKING}
LEAD: Any = {"arrowstyle": "-", "color": theme.FAINT, "linewidth": 1, "shrinkA": 0, "shrinkB": 6}


def all_meshes() -> Picture:
    """Draw every mesh of 8 ranks, which are one node, and of 16, which are two: memory against time of a step.

    A pale dot is a mesh with a number of microbatches; a full one has the number at which the mesh is fastest. The step
    is that of `mesh`'s small model. The fastest, the one that sends least and the one whose fullest rank holds least
    are named.
    """
    headline = "All meshes, ZeRO 1 and 3: the fastest is not the one that sends or holds least"
    lines, figure = [headline], sheet("", HEIGHT, headline)
    width = (theme.WIDTH - LEFT - RIGHT - BETWEEN) / 2
    for number, ranks in enumerate((8, 16)):
        every, best = steps_of(ranks), fastest_of_each(ranks)
        lines += _said(ranks, every, best)
        axes = panel(figure, LEFT + number * (width + BETWEEN), TOP, width, HEIGHT - TOP - BOTTOM)
        where = "one node" if ranks == 8 else "two nodes"
        ends = [min(step.held for step in every) / 1.2, max(step.held for step in every) * 1.2]
        times = [1e3 * min(step.seconds for step in every) / 1.4, 1e3 * max(step.seconds for step in every) * 1.2]
        ticks: Any = {"ticks": [2**20 * x for x in (0.25, 0.5, 1, 2, 4)], "says": short_bytes}
        scale(axes.xaxis, f"{ranks} ranks, {where}: held by the fullest rank", ends=ends, log=2, **ticks)
        milliseconds: Any = {"ticks": (15, 20, 30, 50, 100, 200, 400), "says": "{:g}".format}
        scale(axes.yaxis, "ms a step" if number == 0 else "", ends=times, log=10, **milliseconds)
        for steps, look in ((every, {"s": 14, "alpha": 0.3}), (best, {"s": 46, "alpha": 0.9})):
            for axis, zero in product(COLORS, MARKERS):
                own = [step for step in steps if step.zero == zero and _longest(step) == axis]
                shape: Any = {"marker": MARKERS[zero], "color": COLORS[axis], "linewidths": 0.6, **look}
                axes.scatter([s.held for s in own], [1e3 * s.seconds for s in own], edgecolors=theme.PAPER, **shape)
        for place, (step, said) in enumerate(_named(every).items()):
            at = step.held, 1e3 * step.seconds
            axes.scatter(*zip(at, strict=True), s=130, facecolors="none", edgecolors=theme.INK, linewidths=1.6)
            below, long = 0.97 - 0.085 * place, 1.12 * text_width(said) / 72 / width  # bold letters are wider
            axes.annotate("", at, (0.99 - long, below), textcoords="axes fraction", arrowprops=LEAD)
            axes.text(0.99, below, said, transform=axes.transAxes, **NAMED)
    keys: list[tuple[str, dict[str, Any]]] = [
        (f"mostly {axis}", {"color": color, "marker": "o", "markersize": 7, "linestyle": "none"})
        for axis, color in COLORS.items()
    ]
    gray = {"color": theme.FAINT, "linestyle": "none"}
    keys += [(f"ZeRO {zero}", {"marker": marker, "markersize": 7, **gray}) for zero, marker in MARKERS.items()]
    keys.append(("other numbers of microbatches", {"marker": "o", "markersize": 3, "alpha": 0.4, **gray}))
    line_legend(figure, keys)
    figure.text_shown = "\n".join(lines)
    return figure


def steps_of(ranks: int) -> list[StoredStep]:
    """All stored steps on meshes of so many ranks."""
    return [step for step in stored() if math.prod(step.axes) == ranks]


def fastest_of_each(ranks: int) -> list[StoredStep]:
    """Each mesh of so many ranks at each ZeRO stage, with the number of microbatches at which it is fastest."""
    best: dict[Any, StoredStep] = {}
    for step in steps_of(ranks):
        key = step.axes, step.zero
        best[key] = min(step, best.get(key, step), key=lambda step: step.seconds)
    return list(best.values())


def _longest(step: StoredStep) -> str:
    return max(zip(step.axes, NAMES, strict=True), key=lambda pair: pair[0])[1]


def spelled(step: StoredStep) -> str:
    """A mesh in words: dp 2 · tp 4, ZeRO 3, 4 microbatches."""
    axes = " · ".join(f"{name} {size}" for name, size in zip(NAMES, step.axes, strict=True) if size > 1)
    many = f", {step.microbatches} microbatches" if step.microbatches > 1 else ""
    return f"{axes}, ZeRO {step.zero}{many}"


def _named(every: Sequence[StoredStep]) -> dict[StoredStep, str]:
    """The extremes with their names, from the slowest to the fastest: so their lines do not cross."""
    extremes = {
        "fastest": min(every, key=lambda step: step.seconds),
        "sends least": min(every, key=lambda step: (step.sent, step.seconds)),
        "holds least": min(every, key=lambda step: step.held),
    }
    words: dict[StoredStep, str] = {}
    for said, step in sorted(extremes.items(), key=lambda pair: -pair[1].seconds):
        words[step] = f"{words[step]}, {said}" if step in words else said
    return {step: f"{said}: {spelled(step).partition(', ')[0]}" for step, said in words.items()}


def _said(ranks: int, every: Sequence[StoredStep], best: Sequence[StoredStep]) -> list[str]:
    """The five fastest meshes, and the extremes, with their numbers."""
    fastest = sorted(best, key=lambda step: step.seconds)[:5]
    least = list(_named(every))[-2::-1]  # all but the fastest
    names = [f"{place}." for place in range(1, 6)] + ["sends least", "holds least"]
    return [
        f"{ranks} ranks, {len(best)} meshes and ZeRO stages, {len(every)} steps:",
        *(
            f"{name:>12} {1e3 * step.seconds:6.1f} ms {format_bytes(step.sent):>9} sent {format_bytes(step.held):>9} "
            f"held  {spelled(step)}"
            for name, step in zip(names, [*fastest, *least], strict=False)
        ),
    ]
