"""Why a schedule takes so long: a critical path, the actions without slack, and the cause of an idle slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes

from parlab.pipeline import Action, Idle, ScheduleTimeline
from parlab.views.engine import marks, theme
from parlab.views.pipeline.panels import WHOLE, bars_of_all
from parlab.world import Span

Place = tuple[float, int]  # a time, and a rank
THICK, THIN, MANY = 2.4, 0.9, 60  # points; more frames than that are thin


def path_in_words(shown: ScheduleTimeline) -> list[str]:
    """How long a critical path computes, how often it goes to another rank, and how many actions have no slack."""
    path, moves = shown.critical_path, _moves(shown)
    computing = sum(step.end - step.start for step in path)
    return [
        f"thick: a critical path: {len(path)} actions take {computing:g}, "
        f"{len(moves)} moves to another rank take {shown.makespan - computing:g}",
        f"thick or thin: no slack, {len(_without_slack(shown))} of {len(shown.slack)} actions",
    ]


def _without_slack(shown: ScheduleTimeline) -> set[Action]:
    """The actions that end as late as they may, but for rounding."""
    return {action for action, slack in shown.slack.items() if slack <= 1e-9 * shown.makespan}


def draw_critical_path(axes: Axes, shown: ScheduleTimeline) -> None:
    """Frame a chain of actions none of which may take longer, with an arrow for each move to another rank, and,
    thinly, all that have no slack.
    """
    without = _without_slack(shown)
    tight = [bar for bar in bars_of_all(shown) if bar.action in without]
    frame(axes, "no slack", tight, theme.INK)
    by_rank = [list(steps) for _, steps in groupby(shown.critical_path, key=lambda step: step.rank)]
    frame(axes, "critical path", [steps[0]._replace(end=steps[-1].end) for steps in by_rank])
    arrows(axes, [((one.end, one.rank), (other.start, other.rank)) for one, other in _moves(shown)])


def _moves(shown: ScheduleTimeline) -> list[tuple[Span, Span]]:
    return [(one, other) for one, other in pairwise(shown.critical_path) if one.rank != other.rank]


def idle_slot(shown: ScheduleTimeline, why: int | tuple[int, float]) -> Idle:
    """The idle slot of a rank at a time; if only the rank is given, the longest in which it waits for something. A
    ValueError for no such rank, or one that is not idle then.
    """
    rank, time = why if isinstance(why, tuple) else (why, None)
    if not isinstance(rank, int) or not 0 <= rank < shown.size:
        raise ValueError(f"why={why!r}: choose a rank from 0 to {shown.size - 1}, or (rank, time)")
    slots = shown.idle(rank)
    if time is None:
        longest = max(slots, key=lambda slot: (slot.action is not None, slot.end - slot.start), default=None)
    else:
        longest = next((slot for slot in slots if slot.start <= time < slot.end), None)
    if longest is None:
        known = ", ".join(f"{slot.start:g} to {slot.end:g}" for slot in slots) or "never"
        raise ValueError(f"why={why!r}: rank {rank} is idle {known}")
    return longest


def draw_idle(axes: Axes, shown: ScheduleTimeline, slot: Idle) -> None:
    """Hatch the slot; frame the rank's next action and the one that it waited for, with an arrow between them."""
    marks.hatched_boxes(axes, "idle", [slot], [slot.rank], WHOLE, theme.KINDS["wait"])
    concerned = [bar for bar in bars_of_all(shown) if bar.action in (slot.action, slot.needs)]
    frame(axes, "needed", concerned)
    if slot.peer is not None:
        arrows(axes, [((slot.end - slot.travel, slot.peer), (slot.end, slot.rank))])


def arrows(axes: Axes, moves: Sequence[tuple[Place, Place]], color: str = theme.ALARM) -> None:
    """From a time on one rank to a time on another, between the edges of their boxes that face each other."""
    tails = [(time, rank + math.copysign(WHOLE[1], other - rank)) for (time, rank), (_, other) in moves]
    heads = [(time, rank + math.copysign(WHOLE[1], other - rank)) for (_, other), (time, rank) in moves]
    marks.arrows(axes, tails, heads, color)


def frame(axes: Axes, name: str, spans: Sequence[Any], color: str = theme.ALARM) -> None:
    """Frames around spans, which have a rank, a start and an end; red ones are thick: dark pages make them pale."""
    width = THICK if color == theme.ALARM and len(spans) <= MANY else THIN
    marks.frames(axes, name, spans, [span.rank for span in spans], WHOLE, color, linewidths=width, zorder=2.05)
