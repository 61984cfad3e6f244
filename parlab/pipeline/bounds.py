"""How far a schedule is from the best possible: a bound that none can beat."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from parlab.arguments import checked
from parlab.pipeline.action_costs import UNIT_COSTS, Costs
from parlab.pipeline.arguments import RULES
from parlab.pipeline.memory import Limit, limit_tables, number_that_fits
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.simulate import simulate


class Task(NamedTuple):
    """An F, I or W of a rank: it cannot start before `head`, and after its end at least `tail` is still to come."""

    head: Any
    takes: Any
    tail: Any


@checked(RULES)
def lower_bound(
    p: int,
    m: int,
    costs: Costs = UNIT_COSTS,
    memory_limit: Limit = None,
    *,
    like: Schedule | None = None,
    metric: str = "makespan",
) -> Any:
    """A time that no schedule within the memory is below, in the unit of the costs.

    Proof. (1) A full backward may be replaced by its I and then its W: nothing starts later. (2) Microbatches that take
    the same path are alike, so call the k-th F, I and W that a stage ends those of microbatch k: every action still
    comes after what it needs, since k + 1 of those have ended by then, and memory counts only how many are kept. So it
    is enough to bound schedules in which the microbatches of a path stay in order. (3) In these, an action cannot start
    before its `head`: the longest chain of what it needs, over transfers, of the same action of the microbatch before,
    and of what its rank must have done first: for F number k so many I's and W's that memory holds one chunk more.
    Likewise at least its `tail` follows. (4) A rank does one thing at a time. If it could interrupt an action for a
    more urgent one, it would be best to run, of what may start, always what has the longest tail (Jackson); no schedule
    that cannot interrupt is shorter than that one. (5) By longest stage: the rank where all microbatches enter starts
    at 0, so (3) and (4) hold for it, if of the tails only what comes back to this rank counts; others take at least
    their work.

    Args:
        memory_limit: chunks a rank, or a `MemoryLimit` in bytes. None: no limit.
        like: stages and microbatches are on the ranks on which this schedule has them. None: stage r on rank r.
        metric: what is bounded, `makespan` or `longest_stage` (see `ScheduleTimeline.bubble_fraction`).

    Raises:
        ValueError: overlapped pairs with a cost of their own, or sizes that are not those of `like`.

    Source: the preemptive bound of one machine (Jackson, 1955; Carlier, 1982).

    >>> from parlab.pipeline import Costs, lower_bound
    >>> lower_bound(p=4, m=8), lower_bound(p=4, m=8, memory_limit=2)
    (27, 38)
    """
    tasks = rank_tasks(p, m, costs, memory_limit, like)
    if metric == "makespan":
        return max(map(_preemptive, tasks))
    entries = {like.rank_of(0, i) for i in range(m)} if like else {0}
    returning = rank_tasks(p, m, costs, memory_limit, like, ends_on=min(entries))[min(entries)]
    return max(
        [sum(task.takes for task in of_rank) for of_rank in tasks] + [_preemptive(returning)] * (len(entries) == 1)
    )


@checked(RULES)
def gap(schedule: Schedule, costs: Costs = UNIT_COSTS, memory_limit: Limit = None) -> float:
    """By which part of it the makespan of a schedule is above the lower bound of its ranks, stages and microbatches."""
    p, m = schedule.num_ranks, schedule.num_microbatches
    bound = lower_bound(p, m, costs, memory_limit, like=schedule)
    return simulate(schedule, costs).makespan / bound - 1 if bound else 0.0


def rank_tasks(
    p: int,
    m: int,
    costs: Costs,
    memory_limit: Limit = None,
    like: Schedule | None = None,
    ends_on: int | None = None,
) -> list[list[Task]]:
    """The actions of each rank with their heads and tails: F, I and W of each stage, path by path, from the last
    microbatch back.

    Args:
        ends_on: count tails only up to the last W of this rank. None: of any.
    """
    if costs.pair is not None:
        raise ValueError(f"pair={costs.pair!r}: the bound is for actions that run one after the other: leave it None")
    if like is not None and (like.num_ranks, like.num_microbatches) != (p, m):
        raise ValueError(f"p={p}, m={m}: like has {like.num_ranks} ranks and {like.num_microbatches} microbatches")
    paths = Counter(
        [tuple(like.rank_of(stage, i) for stage in range(like.num_stages)) for i in range(m)]
        if like
        else [tuple(range(p))] * m
    )
    tasks: list[list[Task]] = [[] for _ in range(p)]
    for path, number in paths.items():
        _add_tasks(tasks, path, number, costs, limit_tables(memory_limit, p, len(path)), ends_on)
    return tasks


def _add_tasks(
    tasks: list[list[Task]], path: Sequence[int], m: int, costs: Costs, memory: Any, ends_on: int | None
) -> None:
    stages, last = range(len(path)), len(path) - 1
    forward, half, weight, transfer = (
        costs.per_stage(name, len(path)) for name in ("forward", "backward_input", "backward_weight", "transfer")
    )
    hop = [transfer[s] if s < last and path[s] != path[s + 1] else 0 for s in stages]  # to the next stage
    back = [transfer[s] if s > 0 and path[s] != path[s - 1] else 0 for s in stages]
    limits, whole, rest = memory

    # Heads, microbatch by microbatch: down the stages and up again
    f_head: list[list[Any]] = [[] for _ in stages]
    i_head: list[list[Any]] = [[] for _ in stages]
    for k in range(m):
        for s in stages:
            halves, weights = _freed_before(k, limits[path[s]], whole[s], rest[s])
            at = [f_head[s - 1][k] + forward[s - 1] + hop[s - 1]] if s else [0]
            if k:
                at += [f_head[s][-1] + forward[s]]
                at += [f_head[s][0] + k * forward[s] + halves * half[s] + weights * weight[s]]
            at += [i_head[s][halves - 1] + half[s]] if halves else []
            at += [i_head[s][weights - 1] + half[s] + weight[s]] if weights else []
            f_head[s].append(max(at))
        for s in reversed(stages):
            weights = _freed_before(k, limits[path[s]], whole[s], rest[s])[1]
            at = [f_head[s][k] + forward[s]]
            at += [f_head[s][0] + (k + 1) * forward[s] + k * half[s] + weights * weight[s]]
            at += [i_head[s + 1][k] + half[s + 1] + back[s + 1]] if s < last else []
            i_head[s].append(max(at))

    # Tails, from the last microbatch back: a W has none
    final = [weight[s] if ends_on in (None, path[s]) else 0 for s in stages]
    f_tail: list[Any] = [-math.inf] * len(path)  # of the microbatch after this one
    i_tail: list[Any] = [-math.inf] * len(path)
    for k in reversed(range(m)):
        for s in stages:
            ahead = half[s - 1] + i_tail[s - 1] + back[s] if s else 0
            i_tail[s] = max(final[s], half[s] + i_tail[s], ahead)
        for s in reversed(stages):
            ahead = forward[s + 1] + f_tail[s + 1] + hop[s] if s < last else 0
            f_tail[s] = max(half[s] + i_tail[s], forward[s] + f_tail[s], ahead)
        for s in stages:
            tasks[path[s]] += [
                Task(f_head[s][k], forward[s], f_tail[s]),
                Task(i_head[s][k], half[s], i_tail[s]),
                Task(i_head[s][k] + half[s], weight[s], 0),
            ]


def _freed_before(k: int, limit: float, whole: float, rest: float) -> tuple[int, int]:
    """How many I's and how many W's a stage must have done before its F number k, for the memory to hold that."""
    if whole > limit:
        raise ValueError(f"memory_limit={limit!r}: a rank must be able to keep the activations of one chunk ({whole})")
    if number_that_fits(limit, whole) == math.inf:
        return 0, 0
    halves = max(0, k + 1 - int(number_that_fits(limit, whole)))
    weights = max(0, k - int(number_that_fits(limit - whole, rest))) if rest else 0
    return halves, weights


def _preemptive(tasks: Sequence[Task]) -> Any:
    """When the last tail ends, if a rank always runs the ready task with the longest tail and may interrupt it."""
    ready: list[tuple[Any, Any]] = []  # (minus its tail, what is left of it)
    time = latest = 0
    waiting = sorted(tasks, reverse=True)
    while waiting or ready:
        if not ready:
            time = max(time, waiting[-1].head)
        while waiting and waiting[-1].head <= time:
            task = waiting.pop()
            heapq.heappush(ready, (-task.tail, task.takes))
        tail, left = heapq.heappop(ready)
        run = min(left, waiting[-1].head - time) if waiting else left
        time += run
        if run < left:
            heapq.heappush(ready, (tail, left - run))
        else:
            latest = max(latest, time - tail)
    return latest
