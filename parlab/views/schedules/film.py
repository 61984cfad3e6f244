"""A pipeline schedule as time goes by: who works on which microbatch, and the activations that fill and drain."""

from __future__ import annotations

from typing import Any

from parlab.pipeline import Costs, Schedule, ScheduleTimeline
from parlab.views.drawing import theme
from parlab.views.drawing.film import Film, moments_of, revealed
from parlab.views.schedules.bars import bars_of
from parlab.views.schedules.schedule import schedule, simulated, summary
from parlab.views.timelines.timeline import ACTION_KINDS

MOST_RANKS = 8  # that a line names


def schedule_film(source: Schedule | ScheduleTimeline, costs: Costs | None) -> Film:
    """For `step_through`: `views.schedule`, of which what is still to come is pale.

    Raises:
        ValueError: see `views.schedule`; a schedule that cannot run.
    """
    shown = simulated("source", source, costs)
    figure = schedule(shown)
    times = sorted({bar.start for bar in bars_of(shown)})
    lines = [_line(shown, time) for time in times]
    return Film(summary(shown), lines, moments_of(times, shown.makespan), revealed(figure, figure.axes))


def _line(shown: ScheduleTimeline, time: Any) -> str:
    now: list[list[str]] = [[] for _ in range(shown.size)]
    for bar in bars_of(shown):
        if bar.start <= time < bar.end:
            now[bar.rank].append(f"{theme.KINDS[ACTION_KINDS[bar.kind]].name} of microbatch {bar.microbatch}")
    named = now[:MOST_RANKS]
    does = "; ".join(f"rank {rank} {' and '.join(actions) or 'idle'}" for rank, actions in enumerate(named))
    kept = [[0, *(chunks for at, chunks in shown.kept(rank) if at <= time)][-1] for rank in range(len(named))]
    return f"time {shown.format(time)}: {does}; activations kept: {', '.join(map(str, kept))}"
