"""The names of curves, at their ends."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from parlab.views.engine.marks import word
from parlab.views.engine.picture import inches

LEAD, LINE = 0.4, 0.19  # inches, from the last step to the names; from one name to the next


def name_ends(axes: Axes, ends: Mapping[str, float], colors: Mapping[str, str]) -> None:
    """Write the names to the right of the last step, from the highest down, each a line below the other.

    Args:
        axes: of the curves.
        ends: where each curve ends, as a share of the height of the axes.
        colors: of the line from there to the name.
    """
    width, height = inches(axes)
    line, at = LINE / height, 1 + 2 * LINE / height
    places = {}
    for name, end in sorted(ends.items(), key=lambda pair: -pair[1]):
        places[name] = at = min(end + line / 2, at - line)
    raised = max(0.0, line / 2 - at)  # so that the lowest stands above the axis of steps
    for name, place in places.items():
        lead = [1, 1 + 0.85 * LEAD / width], [ends[name], place + raised]
        axes.plot(*lead, color=colors[name], linewidth=1.1, transform=axes.transAxes, clip_on=False)
        word(axes, 1 + LEAD / width, place + raised, name, transform=axes.transAxes)
