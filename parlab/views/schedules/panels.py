"""The panels of a schedule's figure: lanes of bars and, on the same clock below them, lanes of memory."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from parlab.pipeline import ScheduleTimeline
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import LEFT, lanes_at, legend_of
from parlab.views.drawing.picture import Picture, write
from parlab.views.schedules.bars import bars_of, chunks_of, draw_bars
from parlab.views.schedules.kept import KEPT, draw_kept, has_weights

RIGHT, TOP, BOTTOM = 0.8, 0.85, 0.6  # inches around the panels
GAP, LINE = 0.32, 0.24  # inches between bars and memory, and of a line of text


def lane_heights(ranks: int) -> tuple[float, float]:
    """Inches of a lane of bars and of one of memory: a few ranks are drawn large, and 64 still fit on a screen."""
    lane = min(0.45, max(0.11, 3.4 / ranks))
    return lane, 0.6 * lane


def panel_height(ranks: int, memory: bool) -> float:
    """Inches of the bars and the memory of one schedule."""
    lane, strip = lane_heights(ranks)
    return ranks * lane + (GAP + ranks * strip if memory else 0)


def panel(
    figure: Picture,
    top: float,
    shown: ScheduleTimeline,
    *,
    end: float,
    memory: bool,
    highest: int,
    clock: bool = True,
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
