"""Lanes over a time axis, one a rank, rank 0 on top. Timelines, schedules and memory are drawn on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from parlab.views.engine import theme
from parlab.views.engine.marks import text_width
from parlab.views.engine.picture import Picture, panel, scale, sheet, write
from parlab.world import Run, Timeline
from parlab.world.units import TIMES

UNITS = {**TIMES, "ps": 1}
LEFT, RIGHT = 0.9, 0.35  # inches beside lanes
MOST_LABELS = 24  # lanes that are labelled one by one


def timeline_of(source: Any, name: str = "run") -> Timeline:
    """The timeline of a run, or a timeline itself; a ValueError for anything else."""
    if isinstance(source, Run):
        return source.timeline
    if not isinstance(source, Timeline):
        raise ValueError(f"{name}={source!r}: must be what run() or simulate() returned")
    return source


def timelines_of(runs: Any, most: float = math.inf, *, one_clock: bool = False) -> dict[str, Timeline]:
    """The timelines of {name: run}.

    Args:
        most: no more runs than this.
        one_clock: all clocks must have the same unit.

    Raises:
        ValueError: no run, too many runs, something else than a run, or clocks of several units.
    """
    if not isinstance(runs, Mapping) or not 1 <= len(runs) <= most:
        many = "at least one" if most == math.inf else f"1 to {most} of them"
        raise ValueError(f"runs={runs!r:.60}: must be {{name: run}}, with {many}")
    shown = {str(name): timeline_of(one, f"runs[{name!r}]" if name else "runs") for name, one in runs.items()}
    units = {one.unit for one in shown.values()}
    if one_clock and len(units) > 1:
        raise ValueError(f"runs: their clocks tick in {' and '.join(sorted(units))}; one clock needs one unit")
    return shown


def checked_ranks(ranks: Any, size: int) -> list[int]:
    """The ranks to show; None: all. No rank, an unknown rank, or a rank given twice is a ValueError."""
    if ranks is None:
        return list(range(size))
    try:
        shown = list(ranks)
    except TypeError:
        shown = [ranks]
    known = all(type(rank) is int and 0 <= rank < size for rank in shown)
    if not shown or not known or len(set(shown)) < len(shown):
        raise ValueError(f"ranks={ranks!r}: choose some of 0 to {size - 1}, each once")
    return shown


def check_end(end: Any) -> None:
    """Raise a ValueError for a time at which no axis can end."""
    a_number = isinstance(end, int | float) and not isinstance(end, bool)
    if end is not None and not (a_number and 0 < end < math.inf):
        raise ValueError(f"end={end!r}: the time axis must end after 0; None ends it at the makespan")


def lane_height(lanes: int) -> float:
    """The height of a lane in inches. Two ranks are drawn large, and 64 fit on a screen."""
    return min(1.0, max(6.5 / lanes, min(0.13, 9 / lanes)))


def lanes(
    text: str, timeline: Timeline, ranks: list[int], headline: str | None = None, *, end: float | None = None
) -> tuple[Picture, Axes]:
    """A picture with a lane for each of `ranks`, at y = 0, 1, ... from the top, over the timeline's clock."""
    height = lane_height(len(ranks)) * len(ranks)
    figure = sheet(text, 1.45 + height, headline)
    return figure, lanes_at(figure, timeline, end, 0.85, height, ranks=ranks)


def lanes_at(
    figure: Picture,
    timeline: Timeline,
    end: float | None,
    top: float,
    height: float,
    *,
    ranks: list[int] | None = None,
    right: float = RIGHT,
    clock: bool = True,
    words: bool = True,
) -> Axes:
    """Axes with a lane for each of `ranks` (None: all), from `top` inches on; `clock`, `words`: name times, ranks."""
    axes = panel(figure, LEFT, top, theme.WIDTH - LEFT - right, height)
    time_axis(axes, timeline, end, words=clock)
    name_lanes(axes, list(range(timeline.size)) if ranks is None else ranks, words=words)
    return axes


def ring_around(timeline: Timeline, rank: int) -> list[int]:
    """The ranks in the order of a ring, with `rank` in the middle lane."""
    first = rank - timeline.size // 2
    return [(first + lane) % timeline.size for lane in range(timeline.size)]


def name_lanes(axes: Axes, ranks: list[int], *, words: bool = True) -> None:
    """A lane for each rank, from the top, with its colour and, with `words`, its name."""
    shown = range(0, len(ranks), -(-len(ranks) // MOST_LABELS)) if words else ()
    name_rows(axes, len(ranks), [f"rank {ranks[lane]}" for lane in shown], shown, line=False, pad=9)
    chips = [[(-0.007, y - 0.4), (-0.002, y - 0.4), (-0.002, y + 0.4), (-0.007, y + 0.4)] for y in range(len(ranks))]
    colors = [theme.rank_color(rank) for rank in ranks]
    edge = {"edgecolors": theme.FAINT, "linewidths": 0.5}  # yellow is faint on white
    axes.add_artist(
        PolyCollection(chips, facecolors=colors, transform=axes.get_yaxis_transform(), clip_on=False, **edge)
    )


def name_rows(
    axes: Axes, count: int, names: Sequence[str] = (), named: Sequence[int] | None = None, **look: Any
) -> None:
    """`count` rows at y = 0, 1, ... from the top, with a name for each, or for those in `named`; see `scale`."""
    places = range(len(names)) if named is None else named
    scale(axes.yaxis, ends=(count - 0.5, -0.5), ticks=places, says=names, dashes=False, **look)


def time_axis(axes: Axes, timeline: Timeline, end: float | None = None, *, words: bool = True) -> None:
    """A time axis from 0 to `end` (None: the makespan) in a suitable unit. `words`: with its label."""
    end = end or timeline.makespan
    ticks = MaxNLocator(8 if end else 1, steps=[1, 2, 5, 10])
    end = end or 1
    unit, size = next(((u, s) for u, s in UNITS.items() if end >= 2 * s), ("ps", 1))
    if timeline.unit != "ps":
        unit, size = timeline.unit, 1
    label = f"time ({unit})"
    scale(axes.xaxis, label, ends=(0, end), ticks=ticks, says=lambda time: f"{time / size:g}", words=words)


def legend(figure: Picture, kinds: list[str]) -> None:
    """A legend of the kinds of action, each once, under the title."""
    legend_of(figure, [theme.KINDS[kind] for kind in dict.fromkeys(kinds)])


def legend_of(
    figure: Picture, entries: Sequence[tuple[str, str, str]], *, left: float = 0.15, below: float = 0.6
) -> None:
    """A legend of colours, each (colour, name, hatch), `left` and `below` in inches from the left and the top."""
    width, height = figure.get_size_inches()
    x, y, size = left, height - below, (0.22 / width, 0.14 / height)
    look = {"edgecolor": "#999999", "linewidth": 0.6, "transform": figure.transFigure}
    for color, name, hatch in entries:
        figure.add_artist(Rectangle((x / width, y / height), *size, facecolor=color, hatch=hatch, **look))
        write(figure, x + 0.28, height - y - 0.005, name, va="baseline")
        x += 0.28 + text_width(name) / 72 + 0.25
