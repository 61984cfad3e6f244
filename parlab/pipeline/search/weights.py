"""Where the W's go: into the gaps between the F's and I's of each rank, whose order is given."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import Costs, Limit, changes_of_kept, limit_tables
from parlab.pipeline.dependencies import input_from
from parlab.pipeline.times import EventLoop, RankRun

Rows = list[list[Action]]


class Filled(NamedTuple):
    """The actions of each rank with their W's, and how long they take by both metrics."""

    rows: Rows
    longest_stage: float
    makespan: float


class TimedAction(NamedTuple):
    """An F or I: the time that it takes, the action that it needs, how long that one's result travels, and by how much
    it changes what the rank keeps."""

    takes: float
    needs: Action | None
    travels: float
    change: float


class Filler:
    """Puts the W's into the rows of one skeleton: the F's and I's of each rank, in any order that can run.

    Args:
        skeleton: whose actions every later call orders: they stay on their ranks.
    """

    def __init__(self, skeleton: Iterable[Iterable[Action]], costs: Costs, memory_limit: Limit) -> None:
        rows = [list(row) for row in skeleton]
        home = {action: rank for rank, row in enumerate(rows) for action in row}
        stages = 1 + max(action.stage for action in home)
        self.limits, activation, pending = limit_tables(memory_limit, len(rows), stages)
        changes = changes_of_kept(activation, pending)
        self.freed = [-change for change in changes["W"]]
        takes, transfer = costs.by_kind(stages), costs.per_stage("transfer", stages)
        self.weight = takes["W"]
        self.timed: dict[Action, TimedAction] = {}
        for action, rank in home.items():
            kind, stage, _ = action
            needs = next(iter(input_from(action, stages - 1)), None)
            travels = transfer[needs.stage] if needs and home[needs] != rank else 0
            self.timed[action] = TimedAction(takes[kind][stage], needs, travels, changes[kind][stage])

    def __call__(self, rows: Sequence[Sequence[Action]], eager: Sequence[float], patient: bool) -> Filled | None:
        """The rows with their W's; None if they cannot run within the memory.

        A rank does the W's that a forward's memory needs, and while it waits, as many as fit into the wait. One more,
        which delays what follows: as often as it is `eager`, and if it is not `patient` also where waiting would make
        it the rank that has stood idle most.
        """
        loop = EventLoop()  # the event `action`: it has ended
        waiting, wake = loop.waiting, loop.wake
        ended: dict[Action, float] = {}
        out: Rows = [[] for _ in rows]
        spans: dict[int, tuple[float, float]] = {}
        most_idle: float = 0

        def run(rank: int) -> RankRun:
            nonlocal most_idle
            limit, squeezed, done = self.limits[rank], eager[rank], out[rank]
            put_off: deque[Action] = deque()  # the W's that may come next
            time: float = 0
            begin: float = 0
            kept: float = 0
            idle: float = 0

            def weight() -> None:
                nonlocal time, kept
                action = put_off.popleft()
                done.append(action)
                time += self.weight[action.stage]
                kept -= self.freed[action.stage]

            for action in rows[rank]:
                takes, needs, travels, change = self.timed[action]
                arrival: float = 0
                if needs:
                    while needs not in ended:
                        yield needs
                    arrival = ended[needs] + travels
                while kept + change > limit:
                    if not put_off:
                        return
                    weight()
                while put_off and time + self.weight[put_off[0].stage] <= arrival:
                    weight()
                wait = arrival - time
                if put_off and wait > 0 and (squeezed > 0 or (not patient and idle + wait > most_idle)):
                    squeezed -= 1
                    weight()
                if not done:
                    begin = arrival
                elif arrival > time:
                    idle += arrival - time
                    most_idle = max(most_idle, idle)
                time = max(time, arrival) + takes
                done.append(action)
                ended[action] = time
                if action in waiting:
                    wake(action)
                kept += change
                if action.kind == "I":
                    put_off.append(Action("W", action.stage, action.microbatch))
            while put_off:
                weight()
            spans[rank] = begin, time

        loop.run(run(rank) for rank in range(len(rows)))
        if len(spans) < len(rows):
            return None
        return Filled(out, max(end - begin for begin, end in spans.values()), max(end for _, end in spans.values()))


def skeleton_of(actions: Iterable[Sequence[Action]]) -> Rows:
    """The F's and I's of a schedule whose backwards are split.

    Raises:
        ValueError: a full backward, which has no W to place.
    """
    rows = [[action for action in row if action.kind != "W"] for row in actions]
    whole = next((action for row in rows for action in row if action.kind == "B"), None)
    if whole:
        raise ValueError(f"{whole} is a full backward: only the W's of split backwards (I, then W) can be placed")
    return rows


def order_of(metric: str) -> Callable[[Filled], tuple[float, float]]:
    """The order of the better ones: by the time of `metric`, then by the other time."""
    return operator.itemgetter(1, 2) if metric == "longest_stage" else operator.itemgetter(2, 1)


def best_filled(filler: Filler, skeletons: Iterable[Rows], metric: str = "longest_stage") -> Filled:
    """The best that a filler makes of some skeletons, patient or not.

    Raises:
        ValueError: none of them can run within the memory.
    """
    tried = (filler(rows, [0] * len(rows), patient) for rows in skeletons for patient in (False, True))
    found = [filled for filled in tried if filled]
    if not found:
        raise ValueError("memory_limit: no order was found that keeps to it; a rank needs room for one more chunk")
    best = min(found, key=order_of(metric))
    again = filler(skeleton_of(best.rows), [2] * len(best.rows), True)
    return min(best, again or best, key=order_of(metric))
