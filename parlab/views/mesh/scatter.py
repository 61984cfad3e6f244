"""All meshes of 16 ranks: the time of a step, the bytes that are sent, and the memory of the fullest rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, inches, line_legend, panel, percent, scale, sheet, short_bytes
from parlab.views.mesh.steps import NAMES, StoredStep, stored
from parlab.world.units import format_bytes

LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 0.9, 0.3, 0.95, 0.65, 4.6  # inches
RANKS = 16
LINE = 15  # points from one name to the next
SHADES = {1: "#C6DBEF", 2: "#6BAED6", 4: "#2166AC", 8: "#08306B"}  # of pp: the darker, the larger
NAMED: Any = {"size": theme.SMALL, "color": theme.INK, "textcoords": "offset points", "ha": "right", "va": "center"}
LEAD: Any = {"arrowstyle": "-", "color": theme.FAINT, "linewidth": 1, "shrinkA": 0, "shrinkB": 5}


def all_meshes() -> Picture:
    """Draw every mesh of 16 ranks, which are two nodes: the time of a step against the memory of the fullest rank.

    A dot is a mesh and a ZeRO stage, with the number of microbatches at which it is fastest; the darker, the larger its
    pp. On the line lie those that no other step beats in both, with any number of microbatches. The step is `mesh`'s,
    under 1F1B.
    """
    every, best = steps_of(RANKS), fastest_of_each(RANKS)
    front, least = frontier(every), min(every, key=lambda step: (step.sent, step.seconds))
    pipeline = min((step for step in every if step.axes[1] > 1), key=lambda step: step.seconds)
    longer, less = pipeline.seconds / front[-1].seconds - 1, 1 - pipeline.held / front[-1].held
    headline = "No mesh is best at everything: "
    headline += f"the fastest pipeline takes {percent(longer)} longer and holds {percent(less)} less"
    figure = sheet([headline, *_said(every, best)], HEIGHT, headline)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    ends = [front[0].held / 1.8, max(step.held for step in best) * 1.15]
    ticks: Any = {"ticks": [2**30 * x for x in (1, 2, 4, 8)], "says": short_bytes}
    scale(
        axes.xaxis,
        "held by the fullest of 16 ranks, on two nodes; a dot is a mesh with ZeRO 1 or 3",
        ends=ends,
        log=2,
        **ticks,
    )
    times = [1e3 * front[-1].seconds / 1.7, 1e3 * front[0].seconds * 1.3]
    scale(axes.yaxis, "ms a step", ends=times, log=10, ticks=(20, 30, 50, 100, 200), says="{:g}".format)
    axes.step(*_places(front), where="post", color=theme.INK, linewidth=1.2, zorder=1)
    for steps, size, edge, width in (
        (best, 30, theme.FAINT, 0.5),
        ([least], 60, theme.FAINT, 0.5),
        (front, 60, theme.INK, 1.8),
    ):
        colors = [SHADES[step.axes[1]] for step in steps]
        axes.scatter(*_places(steps), s=size, c=colors, edgecolors=edge, linewidths=width, zorder=2)
    dot: dict[str, Any] = {"marker": "o", "markersize": 6, "linestyle": "none"}
    ring = dot | {"markersize": 7, "markerfacecolor": "none", "markeredgecolor": theme.INK, "markeredgewidth": 1.8}
    pale = {"markeredgecolor": theme.FAINT, "markeredgewidth": 0.5}
    entries = [(f"pp {pp}", dot | pale | {"markerfacecolor": shade}) for pp, shade in SHADES.items()]
    line_legend(figure, [*entries, ("no other is faster and holds less", ring)])
    points = 72 * inches(axes)[1] / math.log(times[1] / times[0])  # of height, for each factor e
    free = math.inf
    for step, said in _named(front).items():  # from the slowest: each name stands lower than the one before
        height = points * math.log(1e3 * step.seconds / times[0])
        free = min(height, free - LINE)
        _name(axes, step, said, (-14, free - height))
    _name(axes, least, f"sends least: {_axes(least)}", (-14, 34))
    return figure


def _name(axes: Axes, step: StoredStep, said: str, by: tuple[float, float]) -> None:
    """A name that ends so many points to the right of a step's mark, and above it, with a line to the mark."""
    (held,), (seconds,) = _places([step])
    axes.annotate("", (held, seconds), by, textcoords="offset points", arrowprops=LEAD)
    axes.annotate(said, (held, seconds), by, weight="bold" if ":" in said else "normal", **NAMED)


def _places(steps: Sequence[StoredStep]) -> tuple[list[float], list[float]]:
    """Bytes held and milliseconds."""
    return [step.held for step in steps], [1e3 * step.seconds for step in steps]


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


def frontier(steps: Sequence[StoredStep]) -> list[StoredStep]:
    """The steps that no other beats in both time and memory, from the one that holds least to the fastest."""
    front: list[StoredStep] = []
    for step in sorted(steps, key=lambda step: (step.held, step.seconds)):
        if not front or step.seconds < front[-1].seconds:
            front.append(step)
    return front


def spelled(step: StoredStep) -> str:
    """A mesh in words: dp 2 · tp 4, ZeRO 3, 4 microbatches."""
    many = f", {step.microbatches} microbatches" if step.microbatches > 1 else ""
    return f"{_axes(step)}, ZeRO {step.zero}{many}"


def _axes(step: StoredStep) -> str:
    return " · ".join(f"{name} {size}" for name, size in zip(NAMES, step.axes, strict=True) if size > 1)


def _named(front: Sequence[StoredStep]) -> dict[StoredStep, str]:
    """Each mesh on the frontier once, at its fastest, with its name; the two ends say what they are."""
    at = {_axes(step): step for step in front}
    ends = {front[0]: "holds least: ", front[-1]: "fastest: "}
    return {step: ends.get(step, "") + said for said, step in at.items()}


def _said(every: Sequence[StoredStep], best: Sequence[StoredStep]) -> list[str]:
    """The five fastest meshes, and the extremes, with their numbers."""
    rows = {f"{place}.": step for place, step in enumerate(sorted(best, key=lambda step: step.seconds)[:5], 1)}
    rows["sends least"] = min(every, key=lambda step: (step.sent, step.seconds))
    rows["holds least"] = frontier(every)[0]
    return [
        f"{RANKS} ranks, {len(best)} meshes and ZeRO stages, {len(every)} steps:",
        *(
            f"{name:>12} {1e3 * step.seconds:6.1f} ms {format_bytes(step.sent):>9} sent {format_bytes(step.held):>9} "
            f"held  {spelled(step)}"
            for name, step in rows.items()
        ),
    ]
