"""A pipeline schedule as time goes by: who works on which microbatch, and the activations that fill and drain."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.ticker import MaxNLocator

from parlab.pipeline import Costs, Schedule, ScheduleTimeline, Search, simulate
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import LEFT, legend_of
from parlab.views.drawing.picture import panel, png, scale, sheet
from parlab.views.drawing.png_film import Film, moments_of, revealed, steps_of
from parlab.views.schedules.panels import (
    BOTTOM,
    RIGHT,
    TOP,
    bars_of,
    bars_of_all,
    draw_panels,
    legend_entries,
    panel_height,
)
from parlab.views.schedules.schedule import schedule, simulated, summary
from parlab.views.timelines.timeline import ACTION_KINDS

MOST_RANKS = 8  # that a line names
CURVE, AXIS = 1.7, 0.75  # inches: the tries, and what stands below them
BEST = "#0072B2"


def schedule_film(source: Schedule | ScheduleTimeline, costs: Costs | None) -> Film:
    """For `step_through`: `views.schedule`, in which the future is pale."""
    shown = simulated("source", source, costs)
    figure = schedule(shown)
    times = sorted({bar.start for bar in bars_of_all(shown)})
    lines = [_line(shown, time) for time in times]
    return Film(summary(shown), lines, moments_of(times, shown.makespan), revealed(figure, figure.axes))


def _line(shown: ScheduleTimeline, time: Any) -> str:
    ranks = range(min(shown.size, MOST_RANKS))
    does = "; ".join(f"rank {rank} {_activity(shown, rank, time)}" for rank in ranks)
    kept = [[0, *(chunks for at, chunks in shown.kept(rank) if at <= time)][-1] for rank in ranks]
    return f"time {shown.format(time)}: {does}; activations kept: {', '.join(map(str, kept))}"


def _activity(shown: ScheduleTimeline, rank: int, time: Any) -> str:
    now = [bar.action for bar in bars_of(shown.steps(rank)) if bar.start <= time < bar.end]
    named = [f"{theme.KINDS[ACTION_KINDS[action.kind]].name} of microbatch {action.microbatch}" for action in now]
    return " and ".join(named) or "idle"


def search_film(search: Search, costs: Costs | None) -> Film:
    """For `step_through`: a step each time that the search found something better."""
    shown = [simulate(schedule, costs or Costs()) for _, schedule in search.better]
    end, highest = max(one.makespan for one in shown), max(max(one.peak_activations) for one in shown)
    tries = [number for number, _ in search.better]
    found = [search.times[number] for number in tries]
    seen = [time for time in search.times if time < math.inf]

    def picture(place: float) -> bytes:
        step = int(place)
        until = tries[step] if place == step else tries[step] + (tries[step + 1] - tries[step]) * (place - step)
        top = TOP + CURVE + AXIS
        headline = f"Try {int(until)} of {len(search.times) - 1}: the best takes {found[step]:g}"
        figure = sheet("", top + panel_height(shown[0].size, memory=True) + BOTTOM, headline)
        axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - RIGHT, CURVE)
        tried = [(number, time) for number, time in enumerate(search.times) if number <= until and time < math.inf]
        axes.plot(*zip(*tried, strict=True), linestyle="None", marker=".", color=theme.ARROW)
        axes.step([*tries[: step + 1], until], [*found[: step + 1], found[step]], where="post", color=BEST, linewidth=2)
        scale(axes.xaxis, "tries", ends=(0, len(search.times) - 1 or 1))
        ends = min(found) - 1, min(max(seen), 1.25 * found[0]) + 1
        scale(axes.yaxis, "time", ends=ends, ticks=MaxNLocator(4, integer=True))
        draw_panels(figure, top, shown[step], highest, end)
        legend_of(figure, legend_entries([shown[step].schedule]))
        return png(figure)

    lines = [
        f"try {number}: {time:g}, {100 * one.bubble_fraction():.1f} % idle, keeps {max(one.peak_activations)}"
        for number, time, one in zip(tries, found, shown, strict=True)
    ]
    headline = f"search from {found[0]:g} to {found[-1]:g} in {len(search.times) - 1} tries"
    return Film(headline, lines, steps_of(len(tries)), picture)
