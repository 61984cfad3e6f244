"""The memory strip under a schedule: how many chunks' activations every rank keeps, on the same clock."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from parlab.pipeline import ScheduleTimeline
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import inches
from parlab.views.schedules.bars import color_of

FLOOR, HEIGHT = 0.44, 0.88  # of a lane: where the areas stand, and how high the highest is
KEPT = [
    (color_of("F"), "activations kept until their backward, a step for each microbatch and stage", ""),
    (color_of("I"), "what is left of them until W", ""),
]


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
