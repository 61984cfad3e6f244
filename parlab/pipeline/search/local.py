"""Local search from any schedule with split backwards: its actions trade places, and its W's are placed anew."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import Costs, Limit
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.search.bounds import lower_bound
from parlab.pipeline.search.weights import Filled, Filler, order_of, skeleton_of
from parlab.pipeline.simulate import simulate

MOST_EAGER = 8
EAGER_TRIES = 0.7  # of all tries: they change how eager a rank is, the others its order
MOST_TRIES = 5000  # with 4 ranks, 8 microbatches and room for 2 six seeds of six end at the same makespan
TRIED_ACTIONS = 320_000  # F's and I's in all tries together: about half a second
REACH = (-3, -2, -1, -1, 1, 1, 2, 3)


def improve(schedule: Schedule, costs: Costs, memory_limit: Limit, tries: int | None, metric: str) -> Schedule:
    """Local search from a schedule. In each try one F or I of a rank moves past a few others, or a rank squeezes more
    or fewer W's into gaps that are too small for them; then the W's are placed anew. A schedule that is no worse takes
    the place of the one before. The search ends early where `lower_bound` shows that nothing is better.

    Invariant: the best so far keeps to the limit; each stage takes the microbatches of one kind in the order that
    `schedule` has.

    Args:
        schedule: with split backwards, within the memory limit.
        memory_limit, tries, metric: as of `zb_auto`.

    >>> from parlab.pipeline import zb_h1
    >>> start = zb_h1(p=2, m=4)
    >>> better = improve(start, Costs(), memory_limit=3, tries=100, metric="longest_stage")
    >>> simulate(start).longest_stage, simulate(better).longest_stage
    (13, 12)
    """
    costs = replace(costs, pair=None)  # which order is best does not depend on it
    rows = skeleton_of(schedule.actions)
    filler = Filler(rows, costs, memory_limit)
    random_number = random.Random(0).random
    timeline = simulate(schedule, costs)
    best = Filled([list(row) for row in schedule.actions], timeline.longest_stage, timeline.makespan)
    order = order_of(metric)
    current = Filled(rows, math.inf, math.inf)
    eager: list[float] = [2] * len(rows)
    if tries is None:
        tries = min(MOST_TRIES, TRIED_ACTIONS // len(filler.planned))
    sizes = len(rows), schedule.num_microbatches
    least = lower_bound(*sizes, costs, memory_limit, like=schedule, metric=metric) if tries else math.inf
    for number in range(1, tries + 1):
        if getattr(best, metric) <= least:
            break
        rank = int(random_number() * len(rows))
        before = rows[rank], eager[rank]
        if number > 1:  # the first try keeps the order that is given, and places its W's anew
            if random_number() < EAGER_TRIES:
                eager[rank] = int(random_number() * MOST_EAGER)
            else:
                rows[rank] = _moved(rows[rank], random_number(), random_number())
        filled = filler(rows, eager, patient=True)
        if filled is None or order(filled) > order(current):
            rows[rank], eager[rank] = before
            continue
        current = filled
        if order(filled) < order(best):
            best = filled
    return Schedule(best.rows, schedule.name)


def _moved(row: list[Action], which: float, how_far: float) -> list[Action]:
    """The row with one action up to three places earlier or later: never past its own F or I, nor past another of its
    kind and stage, which would change nothing."""
    place = int(which * len(row))
    action = row[place]
    reach = REACH[int(how_far * len(REACH))]
    step = 1 if reach > 0 else -1
    end = place
    for _ in range(abs(reach)):
        if not 0 <= end + step < len(row):
            break
        other = row[end + step]
        if other.stage == action.stage and (other.kind == action.kind or other.microbatch == action.microbatch):
            break
        end += step
    rest = row[:place] + row[place + 1 :]
    return [*rest[:end], action, *rest[end:]]
