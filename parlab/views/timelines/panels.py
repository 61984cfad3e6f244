"""Several runs below each other on one clock: who computes, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping

from parlab.views.drawing import theme
from parlab.views.drawing.lanes import legend, name_lanes, time_axis, timeline_of
from parlab.views.drawing.picture import Picture, framed, title
from parlab.views.timelines.timeline import WHOLE, draw_computes, draw_waits, time_spent
from parlab.world import Run, Timeline

LEFT, RIGHT, TOP, BOTTOM = 0.9, 0.35, 0.6, 0.6  # inches around the panels
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
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"runs={runs!r}: must be {{name: run}}, with at least one")
    if not isinstance(headline, str | None):
        raise ValueError(f"headline={headline!r}: must be a text, or None")
    shown = {name: timeline_of(one, f"runs[{name!r}]") for name, one in runs.items()}
    units = {one.unit for one in shown.values()}
    if len(units) > 1:
        raise ValueError(f"runs: their clocks tick in {' and '.join(sorted(units))}; one clock needs one unit")
    texts = {name: f"{name}: {time_spent(one)}" for name, one in shown.items()}
    words = "\n".join(f"{texts[name]}\n{one!r}" for name, one in shown.items())
    height = TOP + sum(LINE + _height(one) for one in shown.values()) + BOTTOM
    figure = Picture(words, theme.WIDTH, height)
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for number, (name, one) in enumerate(shown.items(), start=1):
        top += LINE
        figure.text(0.15 / theme.WIDTH, 1 - (top - 0.1) / height, texts[name], size=theme.TEXT, color=theme.INK)
        kinds += _panel(figure, top, one, end, clock=number == len(shown))
        top += _height(one)
    title(figure, headline or f"{len(shown)} runs on one clock")
    legend(figure, list(dict.fromkeys(kinds)))
    return figure


def _height(shown: Timeline) -> float:
    return shown.size * min(0.45, max(2.2 / shown.size, min(0.17, 4 / shown.size)))


def _panel(figure: Picture, top: float, shown: Timeline, end: float, *, clock: bool) -> list[str]:
    """A lane a rank from `top` inches on; the kinds of span drawn."""
    width, height = figure.get_size_inches()
    box = LEFT / width, 1 - (top + _height(shown)) / height, 1 - (LEFT + RIGHT) / width, _height(shown) / height
    axes = framed(figure, box)
    time_axis(axes, shown, end)
    name_lanes(axes, list(range(shown.size)))
    if not clock:
        axes.tick_params(axis="x", labelbottom=False)
        axes.set_xlabel("")
    lane_of = {rank: rank for rank in range(shown.size)}
    return draw_computes(axes, shown, lane_of, WHOLE) + draw_waits(axes, shown, lane_of, WHOLE)
