"""Lesson 04b: a schedule by a pattern, a quick one that becomes the best, and how long a rank keeps an activation."""

from __future__ import annotations

from itertools import count

from parlab.pipeline import Action, Schedule, ScheduleTimeline

FRONTIER_GUESSES = {  # the usual wrong guesses of lesson 04b, and the reasoning that leads there
    "best": (15.0, "where your bound is"),
    "room 16": (1103.0, "with twice the memory the gaps are filled"),
    "V-Half": (2.0, "at best it meets the bound: nothing is below"),
}


def by_a_pattern() -> Schedule:
    """Eight ranks, 16 microbatches, and never more than four activations: 79 units, where a search found 95.

    Every 18 units four microbatches start, 0, 2, 6 and 8 units after the first. Their F's and I's never wait. Each W
    takes the first unit that its rank has free.

    >>> from parlab.pipeline import simulate
    >>> timeline = simulate(by_a_pattern())
    >>> timeline.makespan, max(timeline.peak_activations)
    (79, 4)
    """
    p, begin = 8, [18 * group + after for group in range(4) for after in (0, 2, 6, 8)]
    rows = []
    for rank in range(p):
        does = {start + rank: Action("F", rank, i) for i, start in enumerate(begin)}
        does |= {start + 2 * p - 1 - rank: Action("I", rank, i) for i, start in enumerate(begin)}
        for i, start in enumerate(begin):
            after = start + 2 * p - rank
            free = next(unit for unit in count(after) if unit not in does)
            does[free] = Action("W", rank, i)
        rows.append([does[unit] for unit in sorted(does)])
    return Schedule(rows, name="by a pattern, 8 ranks, 16 microbatches")


def units_kept(timeline: ScheduleTimeline) -> list[float]:
    """For each rank, how long it keeps an activation of all its layers, from the end of an F to the end of its B.

    Of one microbatch with full backwards; a chunk counts as its share of the rank's layers.

    >>> from parlab.pipeline import Costs, one_f_one_b, simulate
    >>> units_kept(simulate(one_f_one_b(4, 1), Costs(1, 1, 0)))
    [7.0, 5.0, 3.0, 1.0]
    """
    chunks = timeline.schedule.num_stages / timeline.size
    ends = [{step.actions[0]: step.end for step in timeline.steps(rank)} for rank in range(timeline.size)]
    return [
        sum(end - of_rank[action._replace(kind="F")] for action, end in of_rank.items() if action.kind == "B") / chunks
        for of_rank in ends
    ]


def closer(schedule: Schedule) -> list[Schedule]:
    """The quick schedule of 3 ranks and 4 microbatches with room for 2, and move by move how it becomes the best.

    >>> from parlab.pipeline import simulate, zb_auto
    >>> quick = zb_auto(3, 4, memory_limit=2, tries=0, metric="makespan")
    >>> [simulate(one).makespan for one in closer(quick)]
    [19, 18, 17]
    """
    found = [schedule]
    for place in (1, 7):  # on rank 1 a forward goes before the I that stood before it
        rows = [list(row) for row in found[-1].actions]
        rows[1][place : place + 2] = reversed(rows[1][place : place + 2])
        found.append(Schedule(rows))
    return found
