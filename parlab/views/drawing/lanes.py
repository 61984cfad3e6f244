"""A lane a rank, rank 0 on top, over a time axis: what timelines, schedules and memory are drawn on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from parlab.views.drawing import theme
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import Picture, plot
from parlab.world import Run, Timeline

UNITS = (("s", 10**12), ("ms", 10**9), ("µs", 10**6), ("ns", 10**3), ("ps", 1))
MOST_LABELS = 24  # lanes that are labelled one by one


def timeline_of(source: Any, name: str = "run") -> Timeline:
    """The timeline of a run, or a timeline itself.

    Raises:
        ValueError: neither.
    """
    if isinstance(source, Run):
        return source.timeline
    if not isinstance(source, Timeline):
        raise ValueError(f"{name}={source!r}: must be what run() or simulate() returned")
    return source


def checked_ranks(ranks: Any, size: int) -> list[int]:
    """The ranks to show; None: all.

    Raises:
        ValueError: one that is not there, or none at all.
    """
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
    """Refuse a time at which no axis can end.

    Raises:
        ValueError: so it is.
    """
    if end is not None and not (isinstance(end, int | float) and 0 < end < math.inf):
        raise ValueError(f"end={end!r}: the time axis must end after 0; None ends it at the makespan")


def lane_height(lanes: int) -> float:
    """Inches, so that two ranks are drawn large and 64 still fit on a screen; of more ranks, better choose some."""
    return min(1.0, max(6.5 / lanes, min(0.13, 9 / lanes)))


def lanes(text: str, timeline: Timeline, ranks: list[int], *, end: float | None = None) -> tuple[Picture, Axes]:
    """A picture with a lane for each of `ranks`, at y = 0, 1, ... from the top, over the timeline's clock.

    The chip before each lane has the rank's colour.
    """
    figure, axes = plot(text, 1.45 + lane_height(len(ranks)) * len(ranks), top=0.85)
    time_axis(axes, timeline, end)
    name_lanes(axes, ranks)
    return figure, axes


def name_lanes(axes: Axes, ranks: list[int], *, words: bool = True) -> None:
    """A lane a rank, from the top, with a chip in its colour and, unless another panel has it, its name."""
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    every = -(-len(ranks) // MOST_LABELS)
    shown = range(0, len(ranks), every) if words else ()
    axes.set_yticks(list(shown), [f"rank {ranks[lane]}" for lane in shown])
    axes.tick_params(axis="y", length=0, pad=9)
    axes.spines["left"].set_visible(False)
    chips = [[(-0.007, y - 0.4), (-0.002, y - 0.4), (-0.002, y + 0.4), (-0.007, y + 0.4)] for y in range(len(ranks))]
    colors = [theme.rank_color(rank) for rank in ranks]
    axes.add_artist(PolyCollection(chips, facecolors=colors, transform=axes.get_yaxis_transform(), clip_on=False))


def time_axis(axes: Axes, timeline: Timeline, end: float | None = None) -> None:
    """From 0 to `end` (None: the makespan), in the timeline's own ticks, labelled in a unit that suits them."""
    takes_time = bool(end or timeline.makespan)
    end = end or timeline.makespan or 1
    unit, size = next(((u, s) for u, s in UNITS if end >= 2 * s), UNITS[-1])
    if timeline.unit != "ps":
        unit, size = timeline.unit, 1
    axes.set_xlim(0, end)
    axes.xaxis.set_major_locator(MaxNLocator(8 if takes_time else 1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time / size:g}"))
    axes.set_xlabel(f"time ({unit})", size=theme.TEXT, color=theme.INK)


def legend(figure: Picture, kinds: list[str]) -> None:
    """Name the kinds of action that are drawn, under the title."""
    legend_of(figure, [theme.KINDS[kind] for kind in kinds])


def legend_of(
    figure: Picture, entries: Sequence[tuple[str, str, str]], *, left: float = 0.15, below: float = 0.6
) -> None:
    """Name colours, (colour, name, hatch) each: under the title, or at inches from the left and the top."""
    width, height = figure.get_size_inches()
    x, y = left, height - below
    for color, name, hatch in entries:
        figure.add_artist(
            Rectangle(
                (x / width, y / height),
                0.22 / width,
                0.14 / height,
                facecolor=color,
                edgecolor="#999999",
                hatch=hatch,
                linewidth=0.6,
                transform=figure.transFigure,
            )
        )
        figure.text((x + 0.28) / width, (y + 0.005) / height, name, size=theme.SMALL, color=theme.INK)
        x += 0.28 + text_width(name) / 72 + 0.25
