"""Where the W's go: the order of the F's and I's of each rank is given, and the W's fill its gaps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from parlab.pipeline.actions import Action
from parlab.pipeline.dependencies import input_from
from parlab.pipeline.memory import Limit, limit_tables
from parlab.pipeline.simulate import Costs

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
        self.stages = stages = 1 + max(action.stage for action in home)
        self.limits, self.whole, self.rest = limit_tables(memory_limit, len(rows), stages)
        took = {"F": costs.per_stage("forward", stages), "I": costs.per_stage("backward_input", stages)}
        self.weight = costs.per_stage("backward_weight", stages)
        transfer = costs.per_stage("transfer", stages)
        self.steps: dict[Action, tuple[float, Action | None, float]] = {}  # (takes, needs, whose result travels for)
        for action, rank in home.items():
            needs = next(iter(input_from(action, stages - 1)), None)
            lag = transfer[needs.stage] if needs and home[needs] != rank else 0
            self.steps[action] = (took[action.kind][action.stage], needs, lag)
        self.work = [sum(took[a.kind][a.stage] + (a.kind == "I") * self.weight[a.stage] for a in row) for row in rows]

    def idle(self, filled: Filled) -> float:
        """Of the busiest rank, by longest stage."""
        return filled.longest_stage - max(self.work)

    def __call__(self, rows: Sequence[Sequence[Action]], patience: Sequence[float | None]) -> Filled | None:
        """The rows with their W's; None if they cannot run within the memory.

        A rank that waits does W's as long as they fit into the wait; one more, which delays what follows, where waiting
        would take its idle time beyond its `patience`; and what memory needs before a forward.

        Args:
            patience: of each rank; None: the most that any rank has stood idle so far.
        """
        ended: dict[Action, float] = {}
        waiting: dict[Action, Iterator[None]] = {}  # what has not ended -> the rank that waits for it
        out: Rows = [[] for _ in rows]
        spans: dict[int, tuple[float, float]] = {}
        most_idle: float = 0

        def run(rank: int) -> Iterator[None]:
            nonlocal most_idle
            limit, own, done = self.limits[rank], patience[rank], out[rank]
            pending: deque[Action] = deque()
            time = begin = kept = idle = 0.0

            def weight() -> None:
                nonlocal time, kept
                action = pending.popleft()
                done.append(action)
                time += self.weight[action.stage]
                kept -= self.rest[action.stage]

            for action in rows[rank]:
                kind, stage, microbatch = action
                took, needs, lag = self.steps[action]
                arrival = 0.0
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
                if pending and arrival - time > max(0, (most_idle if own is None else own) - idle):
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


def fill(skeleton: Iterable[Sequence[Action]], costs: Costs, memory_limit: Limit) -> Filled | None:
    """The best that `Filler` makes of a skeleton by patience alone; None if it cannot run within the memory."""
    rows: list[Any] = list(skeleton)
    filler = Filler(rows, costs, memory_limit)
    found = [filler(rows, [patience] * len(rows)) for patience in (None, math.inf)]
    runs = [filled for filled in found if filled]
    if runs:
        allowed = filler.idle(min(runs, key=lambda filled: filled[1:]))
        runs += filter(None, [filler(rows, [allowed * part] * len(rows)) for part in (1, 0.5)])
    return min(runs, key=lambda filled: filled[1:], default=None)
