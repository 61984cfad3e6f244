"""Which rank has which stage, and which way a microbatch goes: straight, around, on a V, or from both ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parlab.pipeline import Schedule
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_lanes
from parlab.views.drawing.marks import Interval
from parlab.views.drawing.picture import Picture, panel, scale, sheet, write

MOST = 4  # placements in one picture
TOP, BOTTOM, LEFT, GAP, LANE = 1.0, 0.2, 0.9, 0.25, 0.44  # inches
HALF = 0.36  # of a stage's box, where stages stand 1 apart
PLACEMENTS = {  # how schedules of each are drawn where several are compared
    "straight": {"color": "#222222", "marker": "o"},
    "V": {"color": "#882255", "marker": "v"},
    "around": {"color": "#D55E00", "marker": "^"},  # as interleaved 1F1B in `bubble_and_memory`
    "both ends": {"color": "#117755", "marker": "D"},
    "other": {"color": "#666666", "marker": "s"},
}


def paths_of(schedule: Schedule) -> list[tuple[int, ...]]:
    """The ranks that a microbatch passes, stage by stage: each way that some of them go."""
    ways = (
        tuple(schedule.rank_of(stage, microbatch) for stage in range(schedule.num_stages))
        for microbatch in range(schedule.num_microbatches)
    )
    return list(dict.fromkeys(ways))


def placement_of(schedule: Schedule) -> str:
    """The name of its placement, of `PLACEMENTS`."""
    p, paths = schedule.num_ranks, paths_of(schedule)
    down, rounds = tuple(range(p)), schedule.num_stages // p
    named = {"straight": [down], "V": [down + down[::-1]], "around": [down * rounds], "both ends": [down, down[::-1]]}
    return next((name for name, ways in named.items() if sorted(paths) == sorted(ways)), "other")


def placements(schedules: Sequence[Schedule], *, headline: str | None = None) -> Picture:
    """Draw, side by side, which rank has which stages, and the way of a microbatch through them.

    Args:
        schedules: 1 to 4, of the same number of ranks.
        headline: what stands above; None: how often a microbatch changes the rank.

    Raises:
        ValueError: none or more, something else, or other numbers of ranks.
    """
    few = isinstance(schedules, Sequence) and 1 <= len(schedules) <= MOST
    if not few or not all(isinstance(one, Schedule) for one in schedules):
        raise ValueError(f"schedules={schedules!r:.60}: give 1 to {MOST} schedules")
    if len({one.num_ranks for one in schedules}) > 1:
        raise ValueError(f"schedules of {[one.num_ranks for one in schedules]} ranks: give the same number of ranks")
    ranks = schedules[0].num_ranks
    headline = headline or "Which rank has which stage, and the way of a microbatch"
    figure = sheet(map(_described, schedules), TOP + BOTTOM + LANE * ranks, headline)
    stage_width = (theme.WIDTH - LEFT - GAP * len(schedules)) / max(sum(one.num_stages for one in schedules), 8)
    left = LEFT
    for number, schedule in enumerate(schedules):
        across = stage_width * schedule.num_stages
        axes = panel(figure, left, TOP, across, LANE * ranks)
        scale(axes.xaxis, ends=(-0.5, schedule.num_stages - 0.5), ticks=(), line=False)
        name_lanes(axes, list(range(ranks)), words=number == 0)
        write(figure, left, 0.72, _short(schedule), va="center")
        for way, path in enumerate(paths_of(schedule)):
            spans = [Interval(stage - HALF, stage + HALF) for stage in range(len(path))]
            tails = [(span.end, rank) for span, rank in zip(spans, path, strict=True)]
            heads = [(span.start, rank) for span, rank in zip(spans, path, strict=True)]
            marks.arrows(axes, tails[:-1], heads[1:], (theme.INK, theme.ALARM)[way % 2])
            fills, names = [theme.rank_color(rank) for rank in path], [[str(stage)] for stage in range(len(path))]
            marks.boxes(axes, "stages", spans, path, (-HALF, HALF), fills, names)
        left += across + GAP
    return figure


def _short(schedule: Schedule) -> str:
    return schedule.name.split(",")[0] or placement_of(schedule)


def _described(schedule: Schedule) -> str:
    """Its ways, their messages in a forward, and on how many ranks the weights of a stage are."""
    paths = paths_of(schedule)
    ways = "; or ".join(" → ".join(map(str, path)) for path in paths[:2])
    hops = max(sum(a != b for a, b in pairwise(path)) for path in paths)
    held = max(len(schedule.holders(stage)) for stage in range(schedule.num_stages))
    held_on = f"each stage's weights on {held} rank{'s' * (held > 1)}"
    return f"{_short(schedule)}: ranks {ways}; {hops} messages a forward, {held_on}"
