"""The times of a schedule, exactly, from given costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parlab.arguments import instance
from parlab.pipeline.costs import UNIT_COSTS, Costs
from parlab.pipeline.dependencies import ActionTable, action_table, pair_lines
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.timeline import ScheduleTimeline
from parlab.pipeline.times import start_and_end


def simulate(schedule: Schedule, costs: Costs = UNIT_COSTS) -> ScheduleTimeline:
    """When each action runs: as soon as its rank is free and its inputs have arrived.

    A message travels for `costs.transfer` and keeps nobody from computing; ranks never wait to send.

    Raises:
        ValueError: the schedule cannot run (see `validate`), no `Costs`, or a list of costs that is not one a stage.

    >>> from parlab.pipeline import one_f_one_b
    >>> timeline = simulate(one_f_one_b(p=4, m=8))
    >>> timeline.makespan, timeline.peak_activations
    (33, [4, 3, 2, 1])
    """
    instance("schedule", schedule, Schedule)
    instance("costs", costs, Costs)
    table = action_table(schedule)
    pairs = () if costs.pair is None else pair_lines(table)
    duration, travel = durations(table, costs, pairs), _travels(table, costs)
    start, end = start_and_end(table, duration, travel, pairs)
    return ScheduleTimeline(table, costs, duration, travel, start, end)


def durations(table: ActionTable, costs: Costs, pairs: Iterable[int] = ()) -> list[Any]:
    """How long each line takes. The backward of an atomic pair has the time of both, and its forward none."""
    stages = table.schedule.num_stages
    by_kind, together = costs.by_kind(stages), costs.per_stage("pair", stages)
    duration: list[Any] = [by_kind[kind][stage] for kind, stage, _ in table.actions]
    for line in pairs:
        duration[line : line + 2] = 0, together[table.actions[line].stage]
    return duration


def _travels(table: ActionTable, costs: Costs) -> list[Any]:
    """How long the input of each line is under way: not at all on its own rank."""
    transfer = costs.per_stage("transfer", table.schedule.num_stages)
    if not any(transfer):
        return [0] * len(table.source)
    return [
        transfer[table.actions[needed].stage] if needed >= 0 and table.rank_of_line[needed] != rank else 0
        for needed, rank in zip(table.source, table.rank_of_line, strict=True)
    ]
