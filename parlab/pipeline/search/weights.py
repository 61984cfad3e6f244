"""Where the W's go: into the gaps between the F's and I's of each rank, whose order is given.

Invariant: the F's and I's of a rank stay in their order, its W's have that of its I's, and it keeps to its limit.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import Costs, Limit, as_limit
from parlab.pipeline.dependencies import input_from
from parlab.pipeline.times import EventLoop, RankRun

Rows = list[list[Action]]


class Filled(NamedTuple):
    """The actions of each rank with their W's, and how long they take by both metrics."""

    rows: Rows
    longest_stage: float
    makespan: float


class Planned(NamedTuple):
    """An F or I: how long it takes, the action that it needs, how long that one's result is under way, and by how much
    it changes what the rank keeps."""

    duration: float
    needs: Action | None
    travel: float
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
        limit = as_limit(memory_limit)
        self.limits, changes = limit.of_ranks(len(rows)), limit.changes
        self.freed_by_weight = -changes["W"]
        duration, transfer = costs.by_kind(stages), costs.per_stage("transfer", stages)
        self.weight_duration = duration["W"]
        self.planned: dict[Action, Planned] = {}
        for action, rank in home.items():
            kind, stage, _ = action
            needs = next(iter(input_from(action, stages - 1)), None)
            travel = transfer[needs.stage] if needs and home[needs] != rank else 0
            self.planned[action] = Planned(duration[kind][stage], needs, travel, changes[kind])

    def __call__(self, rows: Sequence[Sequence[Action]], eager: Sequence[float], patient: bool) -> Filled | None:
        """The rows with their W's; None if they cannot run within the memory.

        A rank does a W

        1. where a forward needs its memory;
        2. where the rank waits, and the W is no longer than the wait;
        3. in some waits that are shorter than the W, which then delays what follows: in as many as the rank is `eager`,
           and, if it is not `patient`, wherever the wait would make it the rank that has stood idle most.
        """
        loop = EventLoop()  # the event `action`: it has ended
        ended: dict[Action, float] = {}
        states = [_RankState(self, limit, waits) for limit, waits in zip(self.limits, eager, strict=True)]
        most_idle: float = 0  # of any rank so far

        def run(rank: int) -> RankRun:
            nonlocal most_idle
            state = states[rank]
            for action in rows[rank]:
                duration, needs, travel, change = self.planned[action]
                arrival: float = 0
                if needs:
                    while needs not in ended:
                        yield needs
                    arrival = ended[needs] + travel
                while state.kept + change > state.limit:  # 1
                    if not state.put_off:
                        return
                    state.do_weight()
                while state.put_off and state.next_weight_ends <= arrival:  # 2
                    state.do_weight()
                wait = arrival - state.time
                if state.put_off and wait > 0:
                    idles_most = state.idle + wait > most_idle
                    if state.eager > 0 or (idles_most and not patient):  # 3
                        state.eager -= 1
                        state.do_weight()
                ended[action] = state.do(action, duration, change, arrival)
                if state.idle > most_idle:
                    most_idle = state.idle
                loop.happened(action)
            state.do_other_weights()

        loop.run(run(rank) for rank in range(len(rows)))
        if not all(state.ended for state in states):
            return None
        longest = max(state.time - state.begin for state in states)
        return Filled([state.done for state in states], longest, max(state.time for state in states))


class _RankState:
    """One rank while its row is filled.

    Attributes:
        done: its actions so far.
        put_off: the W's that may come next.
        eager: how many more W's may delay what follows.
        begin, time: when its first action began, and when its last one ends.
        kept: by its activations, at most `limit`.
        idle: how long it has stood idle since it began.
        ended: all its actions are done.
    """

    def __init__(self, filler: Filler, limit: float, eager: float) -> None:
        self.weight_duration, self.freed = filler.weight_duration, filler.freed_by_weight
        self.limit, self.eager = limit, eager
        self.done: list[Action] = []
        self.put_off: deque[Action] = deque()
        self.begin: float = 0
        self.time: float = 0
        self.kept: float = 0
        self.idle: float = 0
        self.ended = False

    @property
    def next_weight_ends(self) -> float:
        """When the W that was put off first would end."""
        return self.time + self.weight_duration[self.put_off[0].stage]

    def do_weight(self) -> None:
        """The W that was put off first."""
        action = self.put_off.popleft()
        self.done.append(action)
        self.time += self.weight_duration[action.stage]
        self.kept -= self.freed

    def do(self, action: Action, duration: float, change: float, arrival: float) -> float:
        """An F or I, whose input comes at `arrival`; returns when it ends."""
        time = self.time
        if arrival > time:
            if self.done:
                self.idle += arrival - time
            else:
                self.begin = arrival
            time = arrival
        self.time = time + duration
        self.done.append(action)
        self.kept += change
        if action.kind == "I":
            self.put_off.append(Action("W", action.stage, action.microbatch))
        return self.time

    def do_other_weights(self) -> None:
        """All W's that are left; then the rank has ended."""
        while self.put_off:
            self.do_weight()
        self.ended = True


def skeleton_of(actions: Iterable[Sequence[Action]]) -> Rows:
    """The F's and I's of a schedule whose backwards are split."""
    return [[action for action in row if action.kind != "W"] for row in actions]


def order_of(metric: str) -> Callable[[Filled], tuple[float, float]]:
    """The order of the better ones: by the time of `metric`, then by the other time."""
    other = "makespan" if metric == "longest_stage" else "longest_stage"
    return operator.attrgetter(metric, other)


def best_filled(filler: Filler, skeletons: Iterable[Rows], metric: str = "longest_stage") -> Filled:
    """The best that a filler makes of some skeletons, patient or not; one of them can run within the memory.

    The best of all is filled once more, with ranks that each let two W's delay what follows.
    """
    tried = (filler(rows, [0] * len(rows), patient) for rows in skeletons for patient in (False, True))
    best = min(filter(None, tried), key=order_of(metric))
    eager = filler(skeleton_of(best.rows), [2] * len(best.rows), True)
    return min(best, eager or best, key=order_of(metric))
