"""Several runs below each other on one clock: who computes, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping

from parlab.views.drawing import theme
from parlab.views.drawing.lanes import lanes_at, legend, timelines_of
from parlab.views.drawing.picture import Picture, sheet, write
from parlab.views.timelines.timeline import WHOLE, draw_computes, draw_waits, time_spent
from parlab.world import Run, Timeline

TOP, BOTTOM = 0.6, 0.6  # inches above and below the panels
LINE = 0.5  # inches above each panel, for its text


def compare_timelines(runs: Mapping[str, Run | Timeline], *, headline: str | None = None) -> Picture:
    """Draw runs below each other on one clock, without their messages: a hatched bar says for whom a rank waits, or
    which transfer.

    Args:
        runs: what `run` or `simulate` returned, each under the name that stands above it.
        headline: what stands above all; None: how many.

    Raises:
        ValueError: nothing to compare, something else than runs, or clocks of different units.
    """
    shown = timelines_of(runs, one_clock=True)
    texts = {name: f"{name}: {time_spent(one)}" for name, one in shown.items()}
    words = [f"{texts[name]}\n{one!r}" for name, one in shown.items()]
    height = TOP + sum(LINE + _height(one) for one in shown.values()) + BOTTOM
    figure = sheet(words, height, headline or f"{len(shown)} runs on one clock")
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for name, one in shown.items():
        top += LINE
        write(figure, 0.15, top - 0.1, texts[name], theme.TEXT, va="baseline")
        axes = lanes_at(figure, one, end, top, _height(one), clock=name == list(shown)[-1])
        lane_of = {rank: rank for rank in range(one.size)}
        kinds += draw_computes(axes, one, lane_of, WHOLE) + draw_waits(axes, one, lane_of, WHOLE)
        top += _height(one)
    legend(figure, list(dict.fromkeys(kinds)))
    return figure


def _height(shown: Timeline) -> float:
    return shown.size * min(0.45, max(2.2 / shown.size, min(0.17, 4 / shown.size)))
