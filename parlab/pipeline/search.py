"""Schedules found by search: the Zero Bubble paper's heuristic, and local search from any split backwards."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parlab.arguments import checked
from parlab.pipeline.actions import Action
from parlab.pipeline.arguments import RULES
from parlab.pipeline.bounds import lower_bound
from parlab.pipeline.costs import UNIT_COSTS, Costs, Limit, limit_tables, number_that_fits
from parlab.pipeline.schedule import Schedule, title
from parlab.pipeline.schedules import zb_h1, zb_h2
from parlab.pipeline.simulate import simulate
from parlab.pipeline.validate import validate
from parlab.pipeline.weights import Filled, Filler, Rows, best_filled, order_of, skeleton_of


@dataclass(frozen=True)
class Search:
    """The schedules that a search found, and its tries.

    Attributes:
        times: of each try, in the unit of the costs, by the metric of the search; infinite where it could not run.
        better: the number of the try and the schedule, each time that one was better than all before it; the first is
            the schedule from which the search began, as try 0.
    """

    times: list[float]
    better: list[tuple[int, Schedule]]

    @property
    def schedule(self) -> Schedule:
        """The best."""
        return self.better[-1][1]


@checked(RULES)
def zb_auto(
    p: int,
    m: int,
    costs: Costs = UNIT_COSTS,
    memory_limit: Limit = None,
    *,
    tries: int | None = None,
    seconds: float | None = None,
    metric: str = "longest_stage",
) -> Schedule:
    """Backwards in two halves, ordered for these costs within this memory: ZB-1p and ZB-2p, with limits of p and 2p.

    The heuristic of the paper: forwards as memory allows until the first I arrives, then I and F in turn; a W where the
    wait is long enough for it, where waiting would exceed the most that a rank has stood idle, and where memory is
    full. All combinations of its three choices are tried (whether a forward may delay the first I; whether a rank may
    run more than two forwards ahead of the next one; whether a W may go into a gap that is too small for it), and of
    one more: whether a rank stays one forward behind a rank whose memory is full, or two. The best of them, of ZB-H1
    and of ZB-H2, where these keep to the limit, is then improved by local search.

    Args:
        memory_limit: chunks a rank, or a `MemoryLimit` in bytes. None: no limit.
        tries: of the local search. None: as many as the seconds allow, or up to 5000, fewer the longer each takes.
        seconds: after which no further try begins, which makes the result depend on the machine. None: no limit.
        metric: the time that is to be short, `longest_stage` or `makespan` (see `ScheduleTimeline.bubble_fraction`).

    Raises:
        ValueError: a limit in which no activation fits, or an argument out of range.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 3.1.

    >>> from parlab.pipeline import simulate, zb_h1
    >>> simulate(zb_h1(p=4, m=8)).longest_stage, simulate(zb_auto(p=4, m=8, memory_limit=8)).longest_stage
    (27, 24)
    """
    costs = replace(costs, pair=None, optimizer=None)  # neither changes which order is best
    limits, activation, _ = limit_tables(memory_limit, p, p)
    fits = [int(min(m, number_that_fits(*of_rank))) for of_rank in zip(limits, activation, strict=True)]
    if min(fits) < 1:
        raise ValueError(f"memory_limit={memory_limit!r}: a rank must be able to keep the activations of one chunk")
    warmups = [
        _warmups(costs, fits, may_delay=may_delay, step=step, behind_full=behind_full)
        for behind_full in (1, 2)
        for may_delay in (False, True)
        for step in (2, m)
    ]  # the fourth choice is whether the filler is patient
    skeletons = [_in_turn(m, chosen) for chosen in dict.fromkeys(warmups)]
    filled = best_filled(Filler(skeletons[0], costs, memory_limit), skeletons, metric)
    known = [make(p, m) for make, keeps in ((zb_h1, p), (zb_h2, 2 * p - 1)) if m >= p and min(fits) >= min(keeps, m)]
    best = min([Schedule(filled.rows), *known], key=lambda schedule: getattr(simulate(schedule, costs), metric))
    start = Schedule(best.ranks, name=title("ZB by search", p, m))
    return improve(start, costs, memory_limit, tries=tries, seconds=seconds, metric=metric).schedule


def _warmups(costs: Costs, fits: Sequence[int], may_delay: bool, step: int, behind_full: int) -> tuple[int, ...]:
    """Forwards of each rank before its first I: as many as fit until that arrives, at most `step` more than the next
    rank's, and fewer than those of the rank before: by `behind_full`, if that one's memory is full then."""
    p = len(fits)
    forward, half, transfer = (costs.per_stage(name, p) for name in ("forward", "backward_input", "transfer"))
    free = [sum(forward[: r + 1]) + sum(transfer[:r]) for r in range(p)]  # after the first forward
    warmups = [1] * p
    arrival = free[-1]
    for r in reversed(range(p)):
        for _ in range(min(fits[r], warmups[r + 1] + step) - 1 if r + 1 < p else 0):
            if free[r] >= arrival if may_delay else free[r] + forward[r] > arrival:
                break
            warmups[r] += 1
            free[r] += forward[r]
        arrival = max(free[r], arrival) + half[r] + transfer[r]
    for r in range(1, p):  # a rank can forward only what the rank before it has forwarded
        fewer = behind_full if warmups[r - 1] == fits[r - 1] else 1
        warmups[r] = min(warmups[r], max(1, warmups[r - 1] - fewer))
    return tuple(warmups)


def _in_turn(m: int, warmups: Sequence[int]) -> Rows:
    rows: Rows = []
    for r, warmup in enumerate(warmups):
        rows.append([Action("F", r, i) for i in range(warmup)])
        for i in range(m):
            rows[r].append(Action("I", r, i))
            rows[r] += [Action("F", r, warmup + i)] if warmup + i < m else []
    return rows


@checked(RULES)
def improve(
    schedule: Schedule,
    costs: Costs = UNIT_COSTS,
    memory_limit: Limit = None,
    *,
    tries: int | None = None,
    seconds: float | None = None,
    metric: str = "longest_stage",
) -> Search:
    """Local search from a schedule. In each try one F or I of a rank moves past a few others, or a rank squeezes more
    or fewer W's into gaps that are too small for them; then the W's are placed anew. A schedule that is no worse takes
    the place of the one before. The search ends early where `lower_bound` shows that nothing is better.

    Args:
        memory_limit, tries, seconds, metric: as of `zb_auto`.

    Raises:
        ValueError: a schedule that cannot run, does not keep to the limit, or has a full backward.

    >>> from parlab.pipeline import zb_h1
    >>> search = improve(zb_h1(p=2, m=4), memory_limit=3)
    >>> search.times[0], search.times[search.better[-1][0]]
    (13, 12)
    """
    validate(schedule, memory_limit)
    costs = replace(costs, pair=None, optimizer=None)  # neither changes which order is best
    rows = skeleton_of(schedule.actions)
    filler = Filler(rows, costs, memory_limit)
    random_number = random.Random(0).random
    timeline = simulate(schedule, costs)
    start = Filled([list(row) for row in schedule.actions], timeline.longest_stage, timeline.makespan)
    order = order_of(metric)
    times, better = [order(start)[0]], [(0, start)]
    current = Filled(rows, math.inf, math.inf)
    eager: list[float] = [2] * len(rows)
    if tries is None:
        tries = min(MOST_TRIES, TRIED_ACTIONS // len(filler.timed)) if seconds is None else sys.maxsize - 1
    stop = math.inf if seconds is None else time.monotonic() + seconds
    sizes = len(rows), schedule.num_microbatches
    least = lower_bound(*sizes, costs, memory_limit, like=schedule, metric=metric) if tries else math.inf
    for number in range(1, tries + 1):
        best = better[-1][1]
        if order(best)[0] <= least or time.monotonic() > stop:
            break
        rank = int(random_number() * len(rows))
        before = rows[rank], eager[rank]
        if number == 1:
            pass  # the order as it is given, its W's placed anew
        elif random_number() < 0.7:
            eager[rank] = int(random_number() * MOST_EAGER)
        else:
            rows[rank] = _moved(rows[rank], random_number(), random_number())
        filled = filler(rows, eager, patient=True)
        times.append(order(filled)[0] if filled else math.inf)
        if filled is None or order(filled) > order(current):
            rows[rank], eager[rank] = before
            continue
        current = filled
        if order(filled) < order(best):
            better.append((number, filled))
    return Search(times, [(number, Schedule(filled.rows, schedule.name)) for number, filled in better])


MOST_EAGER = 8
MOST_TRIES = 5000  # with 4 ranks, 8 microbatches and room for 2 six seeds of six end at the same makespan
TRIED_ACTIONS = 320_000  # F's and I's in all tries together: about half a second
REACH = (-3, -2, -1, -1, 1, 1, 2, 3)


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
