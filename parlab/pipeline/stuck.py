"""How far the ranks of a schedule come, also of one that cannot run."""

from __future__ import annotations

import math
from typing import Any

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import UNIT_COSTS
from parlab.pipeline.dependencies import input_from, kept_from
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.timeline import Idle, TimedStep
from parlab.pipeline.times import EventLoop, RankRun


def until_stuck(schedule: Schedule) -> tuple[list[TimedStep], list[Idle]]:
    """The steps of all ranks, with unit costs, until none can go on; and for each rank that is not done then, the
    action at which it stands for ever.

    >>> needs_itself = Schedule([[Action("F", 1, 0), Action("F", 0, 0)]])
    >>> done, (stop,) = until_stuck(needs_itself)
    >>> done, str(stop.action), str(stop.needs)
    ([], '1F0', '0F0')
    """
    last, duration = schedule.num_stages - 1, UNIT_COSTS.by_kind(schedule.num_stages)
    rank_of = {action: rank for rank, row in enumerate(schedule.actions) for action in row}
    done: list[list[TimedStep]] = [[] for _ in schedule.actions]
    ended: dict[Action, Any] = {}
    loop = EventLoop()  # an event: a value is made

    def unmet(action: Action) -> Action | None:
        """The action that this one needs and that has not ended."""
        kept, inputs = kept_from(action), input_from(action, last)
        if kept is not None and kept not in ended:
            return kept
        if not inputs or any(source in ended for source in inputs):
            return None
        return next((source for source in inputs if source in rank_of), inputs[-1])

    def free(rank: int) -> Any:
        return done[rank][-1].end if done[rank] else 0

    def run(rank: int) -> RankRun:
        for action in schedule.actions[rank]:
            while needed := unmet(action):
                yield _made(needed)
            arrivals = [ended[source] for source in input_from(action, last) if source in ended]
            start = max([free(rank), *arrivals])
            ended[action] = start + duration[action.kind][action.stage]
            done[rank].append(TimedStep(rank, start, ended[action], (action,)))
            loop.happened(_made(action))

    loop.run(run(rank) for rank in range(schedule.num_ranks))
    stops = []
    for rank, row in enumerate(schedule.actions):
        if len(done[rank]) < len(row):
            action = row[len(done[rank])]
            needs = unmet(action)
            peer = None if needs is None else rank_of.get(needs)
            stops.append(Idle(rank, free(rank), math.inf, action, needs, peer, 0))
    return [step for steps in done for step in steps], stops


def _made(action: Action) -> tuple[str, int, int]:
    """The value that an action makes. I and B make the same one: the gradient of the stage's input."""
    return "B" if action.kind == "I" else action.kind, action.stage, action.microbatch
