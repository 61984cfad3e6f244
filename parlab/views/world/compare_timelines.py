"""Several runs in panels on one clock, below each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parlab.views.engine import theme
from parlab.views.engine.lanes import lanes_at, legend, timelines_of
from parlab.views.engine.picture import Picture, sheet, write
from parlab.views.world.timeline import WHOLE, draw_computes, draw_waits, time_spent
from parlab.world import Run, Span, Timeline
from parlab.world.units import several

TOP, BOTTOM = 0.6, 0.6  # inches above and below the panels
LINE = 0.5  # inches above each panel, for its text


def compare_timelines(
    runs: Mapping[str, Run | Timeline],
    *,
    headline: str | None = None,
    queues: bool = False,
) -> Picture:
    """Draw runs below each other on one clock, without their messages: a hatched bar says for whom a rank waits, or
    which transfer.

    Args:
        runs: what `run` or `simulate` returned, each under the name that stands above it.
        headline: what stands above all; None: how many.
        queues: draw and count apart the waits for a transfer that has not started, because a port is busy.

    Raises:
        ValueError: nothing to compare, something else than runs, or clocks of different units.
    """
    shown = timelines_of(runs, one_clock=True)
    figure, kinds = below_each_other(shown, headline, queues=queues)
    legend(figure, kinds)
    return figure


def below_each_other(
    shown: Mapping[str, Timeline],
    headline: str | None,
    color: Callable[[Span], str] | None = None,
    *,
    queues: bool = False,
) -> tuple[Picture, list[str]]:
    """The picture of `compare_timelines` without a legend, and the kinds in it; `color` finds a work's colour."""
    texts = {name: f"{name}: {time_spent(one, queues=queues)}" for name, one in shown.items()}
    words = [f"{texts[name]}\n{one!r}" for name, one in shown.items()]
    height = TOP + sum(LINE + _height(one) for one in shown.values()) + BOTTOM
    figure = sheet(words, height, headline or f"{several(len(shown), 'run')} on one clock")
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for name, one in shown.items():
        top += LINE
        write(figure, 0.15, top - 0.1, texts[name], theme.TEXT, va="baseline")
        axes = lanes_at(figure, one, end, top, _height(one), clock=name == list(shown)[-1])
        lane_of = {rank: rank for rank in range(one.size)}
        kinds += draw_computes(axes, one, lane_of, WHOLE, color)
        kinds += draw_waits(axes, one, lane_of, WHOLE, queues=queues)
        for artist in (*axes.artists, *axes.patches, *axes.collections):
            artist.set_clip_on(False)  # a box that ends with the axis has its right edge
        top += _height(one)
    return figure, kinds


def _height(shown: Timeline) -> float:
    return shown.size * min(0.45, max(2.2 / shown.size, min(0.17, 4 / shown.size)))
