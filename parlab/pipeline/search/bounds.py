"""A time that no schedule is below."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from parlab.arguments import instance, one_of, whole
from parlab.pipeline.costs import UNIT_COSTS, Costs, Limit, as_limit, number_that_fits
from parlab.pipeline.schedule import Schedule, check_sizes
from parlab.pipeline.timeline import METRICS
from parlab.world.units import several


def check_search(costs: Any, metric: Any = "makespan", tries: Any = None) -> None:
    """Refuse what no search and no bound can use."""
    instance("costs", costs, Costs)
    if tries is not None:
        whole("tries", tries, least=0)
    one_of("metric", metric, METRICS)


class Task(NamedTuple):
    """An F, I or W of a rank: it cannot start before `head`, and after its end at least `tail` is still to come."""

    head: Any
    duration: Any
    tail: Any


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

    Proof.

    1. Replace each full backward by its I and then its W. Nothing starts later.
    2. Microbatches on the same path are alike. So rename them: the k-th F, I and W that a stage ends are those of
       microbatch k. Every action still comes after the actions that it needs, because k + 1 of those have ended by
       then. Memory stays the same, because it counts only how many are kept. So it is enough to bound schedules in
       which the microbatches of a path stay in order.
    3. An action cannot start before its `head`. That is the longest chain of actions before it: those that it needs,
       with their transfers; the same action of the microbatch before; and the I's and W's of its rank that must free
       memory first, if it is an F. In the same way at least its `tail` follows.
    4. A rank does one action at a time. Suppose that it could interrupt an action. Then it is best to run always the
       action with the longest tail, of those that may start (Jackson). No schedule without interruption is shorter.
    5. By longest stage: the rank where all microbatches enter starts at 0. So 3 and 4 hold for it, if its tails count
       only as far as they come back to this rank. The other ranks take at least their work.

    Where stages are straight and alike, with F, I, W and a transfer of f, i, w and c, and where a rank keeps at most L
    activations, 3 and 4 hold three times that can be written down. The first is of the makespan, and the others are of
    the longest stage, too, for they count from the first F of rank 0 to a W of rank 0:

    - the last rank: (p − 1)(f + c) + m(f + i + w). So late its first F starts, and then it has all its work.
    - a place on rank 0: ⌈m/L⌉ (p(f + i) + 2(p − 1)c + w). From its F to its W a microbatch goes down and comes back.
    - the last I: (p − 1)(f + i + 2c) + m(f + i + w) − (min(L, m) − 1)w. When it ends on the last rank, at most
      min(L, m) of that rank's W's are open, because each of them keeps an activation; all else is done. Then the
      gradient must come up to rank 0, (p − 1)(i + c), and its W is still to do. So a place more saves at most one W.

    Args:
        memory_limit: chunks a rank, or a `MemoryLimit` in bytes. None: no limit.
        like: stages and microbatches are on the ranks on which this schedule has them. None: stage r on rank r.
        metric: the time that is bounded, `makespan` or `longest_stage` (see `ScheduleTimeline.bubble_fraction`).

    Raises:
        ValueError: a cost of overlapped pairs, or other sizes than those of `like`.

    Source: the preemptive bound of one machine (Jackson, 1955; Carlier, 1982).

    >>> from parlab.pipeline import Costs, lower_bound
    >>> lower_bound(p=4, m=8), lower_bound(p=4, m=8, memory_limit=2)
    (27, 38)
    """
    check_sizes(p=p, m=m)
    check_search(costs, metric)
    if like is not None:
        instance("like", like, Schedule)
    tasks = rank_tasks(p, m, costs, memory_limit, like)
    if metric == "makespan":
        return max(map(_preemptive, tasks))
    entries = {like.rank_of(0, i) for i in range(m)} if like else {0}
    least = max(sum(task.duration for task in of_rank) for of_rank in tasks)
    if len(entries) > 1:
        return least
    entry = min(entries)
    return max(least, _preemptive(rank_tasks(p, m, costs, memory_limit, like, ends_on=entry)[entry]))


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
        found = f"{several(like.num_ranks, 'rank')} and {like.num_microbatches} microbatches"
        raise ValueError(f"p={p}, m={m}: like has {found}")
    passed = [tuple(range(p))] * m
    if like:
        passed = [tuple(like.rank_of(stage, i) for stage in range(like.num_stages)) for i in range(m)]
    tasks: list[list[Task]] = [[] for _ in range(p)]
    for ranks, number in Counter(passed).items():
        for rank, task in _tasks_of_path(_path(ranks, costs, memory_limit, p), number, ends_on):
            tasks[rank].append(task)
    return tasks


class Path(NamedTuple):
    """The stages that some microbatches pass; each attribute has one number a stage.

    Attributes:
        ranks: that run the stages.
        forward, half, weight: the time of F, of I and of W.
        hop, back: the transfer after F, to the next stage, and after I, to the stage before; 0 on one rank.
        room: how many chunks the rank can keep.
        room_pending: how many chunks that wait for their W it can keep beside a whole one.
    """

    ranks: Sequence[int]
    forward: Sequence[Any]
    half: Sequence[Any]
    weight: Sequence[Any]
    hop: Sequence[Any]
    back: Sequence[Any]
    room: Sequence[float]
    room_pending: Sequence[float]


def _path(ranks: Sequence[int], costs: Costs, memory_limit: Limit, p: int) -> Path:
    stages, last = range(len(ranks)), len(ranks) - 1
    duration, transfer = costs.by_kind(len(ranks)), costs.per_stage("transfer", len(ranks))
    hop = [transfer[s] if s < last and ranks[s] != ranks[s + 1] else 0 for s in stages]
    back = [transfer[s] if s > 0 and ranks[s] != ranks[s - 1] else 0 for s in stages]
    room, room_pending = [], []
    limit = as_limit(memory_limit)
    of_ranks, each = limit.of_ranks(p), limit.activation
    for most in (of_ranks[rank] for rank in ranks):
        if each > most:
            raise ValueError(
                f"memory_limit={most!r}: a rank must be able to keep the activations of one chunk ({each})"
            )
        room.append(number_that_fits(most, each))
        room_pending.append(number_that_fits(most - each, -limit.changes["W"]))
    return Path(ranks, duration["F"], duration["I"], duration["W"], hop, back, room, room_pending)


def _tasks_of_path(path: Path, m: int, ends_on: int | None) -> Iterator[tuple[int, Task]]:
    """The tasks of m microbatches, each with its rank, from the last microbatch back."""
    f_head, i_head = _heads(path, m)
    for k, f_tail, i_tail in _tails(path, m, ends_on):
        for s, rank in enumerate(path.ranks):
            yield rank, Task(f_head[s][k], path.forward[s], f_tail[s])
            yield rank, Task(i_head[s][k], path.half[s], i_tail[s])
            yield rank, Task(i_head[s][k] + path.half[s], path.weight[s], 0)


def _heads(path: Path, m: int) -> tuple[list[list[Any]], list[list[Any]]]:
    """The heads of the F's and the I's of each stage, microbatch by microbatch: down the stages and up again.

    A head is the latest of the times `at` which each thing that must be before is done (3 of the proof).
    """
    _, forward, half, weight, hop, back, room, room_pending = path
    stages, last = range(len(forward)), len(forward) - 1
    f_head: list[list[Any]] = [[] for _ in stages]
    i_head: list[list[Any]] = [[] for _ in stages]
    for k in range(m):
        for s in stages:
            halves, weights = _freed_before(k, room[s], room_pending[s])
            at = [f_head[s - 1][k] + forward[s - 1] + hop[s - 1] if s > 0 else 0]  # its input is there
            if k > 0:  # the F before it is done, and all that must be before it
                at.append(f_head[s][-1] + forward[s])
                at.append(f_head[s][0] + k * forward[s] + halves * half[s] + weights * weight[s])
            if halves > 0:  # the last I that must free memory is done
                at.append(i_head[s][halves - 1] + half[s])
            if weights > 0:  # the last W that must free memory is done
                at.append(i_head[s][weights - 1] + half[s] + weight[s])
            f_head[s].append(max(at))
        for s in reversed(stages):
            _, weights = _freed_before(k, room[s], room_pending[s])
            at = [f_head[s][k] + forward[s]]  # its F is done
            at.append(f_head[s][0] + (k + 1) * forward[s] + k * half[s] + weights * weight[s])  # so is all before it
            if s < last:  # its gradient is there
                at.append(i_head[s + 1][k] + half[s + 1] + back[s + 1])
            i_head[s].append(max(at))
    return f_head, i_head


def _tails(path: Path, m: int, ends_on: int | None) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """From the last microbatch back: (its number, the tail of its F on each stage, the tail of its I). A W has none.

    The two lists are used before the next is asked for: they are the same lists, with other numbers.
    """
    ranks, forward, half, weight, hop, back, *_ = path
    stages, last = range(len(ranks)), len(ranks) - 1
    final = [weight[s] if ends_on in (None, ranks[s]) else 0 for s in stages]
    f_tail: list[Any] = [-math.inf for _ in stages]  # of the microbatch after this one
    i_tail: list[Any] = [-math.inf for _ in stages]
    for k in reversed(range(m)):
        for s in stages:
            ahead = half[s - 1] + i_tail[s - 1] + back[s] if s else 0
            i_tail[s] = max(final[s], half[s] + i_tail[s], ahead)
        for s in reversed(stages):
            ahead = forward[s + 1] + f_tail[s + 1] + hop[s] if s < last else 0
            f_tail[s] = max(half[s] + i_tail[s], forward[s] + f_tail[s], ahead)
        yield k, f_tail, i_tail


def _freed_before(k: int, room: float, room_pending: float) -> tuple[int, int]:
    """How many I's and how many W's a stage must have done before its F number k, so that the memory holds that one."""
    if room == math.inf:
        return 0, 0
    halves = max(0, k + 1 - room)
    weights = max(0, k - room_pending)
    return int(halves), int(weights)


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
            heapq.heappush(ready, (-task.tail, task.duration))
        tail, left = heapq.heappop(ready)
        run = min(left, waiting[-1].head - time) if waiting else left
        time += run
        if run < left:
            heapq.heappush(ready, (tail, left - run))
        else:
            latest = max(latest, time - tail)
    return latest
