"""Where the W's go: the order of the F's and I's of each rank is given, and the W's fill its gaps."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from parlab.pipeline.action_costs import Costs
from parlab.pipeline.actions import Action
from parlab.pipeline.dependencies import input_from
from parlab.pipeline.memory import Limit, limit_tables

Rows = list[list[Action]]


class Filled(NamedTuple):
    """The actions of each rank with their W's, and how long they take by both metrics."""

    rows: Rows
    longest_stage: float
    makespan: float


class Filler:
    """Puts the W's into the rows of one skeleton: the F's and I's of each rank, in any order that can run.

    Args:
        skeleton: whose actions every later call orders: they stay on their ranks.
    """

    def __init__(self, skeleton: Iterable[Iterable[Action]], costs: Costs, memory_limit: Limit) -> None:
        rows = [list(row) for row in skeleton]
        home = {action: rank for rank, row in enumerate(rows) for action in row}
        stages = 1 + max(action.stage for action in home)
        self.limits, self.whole, self.rest = limit_tables(memory_limit, len(rows), stages)
        took = {"F": costs.per_stage("forward", stages), "I": costs.per_stage("backward_input", stages)}
        self.weight = costs.per_stage("backward_weight", stages)
        transfer = costs.per_stage("transfer", stages)
        self.steps: dict[Action, tuple[float, Action | None, float]] = {}  # (takes, needs, whose result travels for)
        for action, rank in home.items():
            needs = next(iter(input_from(action, stages - 1)), None)
            lag = transfer[needs.stage] if needs and home[needs] != rank else 0
            self.steps[action] = (took[action.kind][action.stage], needs, lag)

    def __call__(self, rows: Sequence[Sequence[Action]], eager: Sequence[float], patient: bool) -> Filled | None:
        """The rows with their W's; None if they cannot run within the memory.

        A rank does what W's memory needs before a forward, and while it waits, as many as fit into the wait. One more,
        which delays what follows: as often as it is `eager`, and if it is not `patient` also where waiting would make
        it the rank that has stood idle most.
        """
        ended: dict[Action, float] = {}
        waiting: dict[Action, Iterator[None]] = {}  # what has not ended -> the rank that waits for it
        out: Rows = [[] for _ in rows]
        spans: dict[int, tuple[float, float]] = {}
        most_idle: float = 0

        def run(rank: int) -> Iterator[None]:
            nonlocal most_idle
            limit, squeezed, done = self.limits[rank], eager[rank], out[rank]
            pending: deque[Action] = deque()
            time: float = 0
            begin: float = 0
            kept: float = 0
            idle: float = 0

            def weight() -> None:
                nonlocal time, kept
                action = pending.popleft()
                done.append(action)
                time += self.weight[action.stage]
                kept -= self.rest[action.stage]

            for action in rows[rank]:
                kind, stage, microbatch = action
                took, needs, lag = self.steps[action]
                arrival: float = 0
                if needs:
                    while needs not in ended:
                        waiting[needs] = ranks[rank]
                        yield
                    arrival = ended[needs] + lag
                if kind == "F":
                    while kept + self.whole[stage] > limit:
                        if not pending:
                            return
                        weight()
                while pending and time + self.weight[pending[0].stage] <= arrival:
                    weight()
                wait = arrival - time
                if pending and wait > 0 and (squeezed > 0 or (not patient and idle + wait > most_idle)):
                    squeezed -= 1
                    weight()
                if not done:
                    begin = arrival
                elif arrival > time:
                    idle += arrival - time
                    most_idle = max(most_idle, idle)
                time = max(time, arrival) + took
                done.append(action)
                ended[action] = time
                if action in waiting:
                    worklist.append(waiting.pop(action))
                if kind == "F":
                    kept += self.whole[stage]
                else:
                    kept += self.rest[stage] - self.whole[stage]
                    pending.append(Action("W", stage, microbatch))
            while pending:
                weight()
            spans[rank] = begin, time

        ranks = [run(rank) for rank in range(len(rows))]
        worklist = list(ranks)
        while worklist:
            next(worklist.pop(), None)
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
    """What makes one better than another: the time by `metric`, then the other one."""
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
