"""The panels of a schedule's figure: lanes of bars and, on the same clock below them, lanes of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from parlab.pipeline import ScheduleTimeline
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import LEFT, lanes_at, legend_of
from parlab.views.drawing.picture import Picture, inches, write
from parlab.views.schedules.bars import bars_of, chunks_of, color_of, draw_bars

RIGHT, TOP, BOTTOM = 0.8, 0.85, 0.6  # inches around the panels
GAP, LINE = 0.32, 0.24  # inches between bars and memory, and of a line of text
FLOOR, HEIGHT = 0.44, 0.88  # of a lane: where the areas stand, and how high the highest is
KEPT = [
    (color_of("F"), "activations kept until their backward, one level for each microbatch and stage", ""),
    (color_of("I"), "what is left of them until W", ""),
]


def lane_heights(ranks: int) -> tuple[float, float]:
    """Inches of a lane of bars and of one of memory: a few ranks are drawn large, and 64 still fit on a screen."""
    lane = min(0.45, max(0.11, 3.4 / ranks))
    return lane, 0.6 * lane


def panel_height(ranks: int, memory: bool) -> float:
    """Inches of the bars and the memory of one schedule."""
    lane, strip = lane_heights(ranks)
    return ranks * lane + (GAP + ranks * strip if memory else 0)


def panel(
    figure: Picture, top: float, shown: ScheduleTimeline, *, end: float, memory: bool, highest: int, clock: bool = True
) -> Axes:
    """Bars, and memory below them, from `top` inches on; returns the axes of the bars.

    Args:
        end: where the time axis ends.
        highest: the count of chunks that fills a lane of memory.
        clock: name the times, under whichever panel is the lower.
    """
    lane, strip = lane_heights(shown.size)
    below = top + shown.size * lane + GAP
    axes = lanes_at(figure, shown, end, top, shown.size * lane, right=RIGHT, clock=clock and not memory)
    draw_bars(axes, bars_of(shown), chunks_of(shown.schedule))
    if memory:
        kept = lanes_at(figure, shown, end, below, shown.size * strip, right=RIGHT, clock=clock, words=False)
        draw_kept(kept, shown, highest)
        legend_of(figure, KEPT if has_weights(shown) else KEPT[:1], left=LEFT, below=below - 0.1)
    return axes


def write_lines(figure: Picture, lines: Sequence[str], top: float, color: str = theme.INK) -> None:
    """Text, from `top` inches on."""
    for number, line in enumerate(lines):
        write(figure, 0.15, top + LINE * number, line, theme.TEXT, color=color)


def draw_kept(axes: Axes, shown: ScheduleTimeline, highest: int) -> None:
    """A lane a rank, all `highest` chunks high: below what is kept whole, above it what an I has left for its W."""
    layers = {color_of("I"): 1, color_of("F"): 0} if has_weights(shown) else {color_of("F"): 0}
    areas = []
    for rank in range(shown.size):
        for pending in layers.values():
            steps = shown.kept_bytes(rank, activation=1, pending=pending)
            areas.append(_area(rank, steps, shown.makespan, highest))
    axes.add_collection(PolyCollection(areas, facecolors=list(layers), linewidths=0, gid="kept"), autolim=False)
    size = min(theme.SMALL, 70 * inches(axes)[1] / shown.size)
    marks.beside(axes, range(shown.size), [f"peak {peak}" for peak in shown.peak_activations], size)
    floors = [rank + FLOOR for rank in range(shown.size)]
    axes.hlines(floors, 0, shown.makespan, color=theme.FAINT, linewidth=0.6)


def has_weights(shown: ScheduleTimeline) -> bool:
    """Whether the weights' gradients are made by actions of their own."""
    return any(action.kind == "W" for row in shown.schedule.actions for action in row)


def _area(lane: int, steps: list[tuple[Any, int]], end: Any, highest: int) -> np.ndarray:  # [corners, x and y]
    last = dict(steps)  # of several changes at one time, the last
    times = np.array([0, *last, end], dtype=float)
    levels = np.array([0, *last.values(), 0], dtype=float)
    x, y = np.repeat(times, 2)[1:], np.repeat(levels, 2)[:-1]
    return np.column_stack([x, lane + FLOOR - HEIGHT * y / max(highest, 1)])
