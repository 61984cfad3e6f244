"""The times of a schedule, exactly, from given costs."""

from __future__ import annotations

from typing import Any

from parlab.arguments import flag, instance
from parlab.pipeline.costs import UNIT_COSTS, Costs
from parlab.pipeline.dependencies import ActionTable, action_table, pair_rows
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.timeline import ScheduleTimeline
from parlab.pipeline.times import start_and_end


def simulate(schedule: Schedule, costs: Costs = UNIT_COSTS, *, post_validation: bool = False) -> ScheduleTimeline:
    """When each action runs: as soon as its rank is free and its inputs have arrived.

    A message travels for `costs.transfer` and keeps nobody from computing; ranks never wait to send.

    Args:
        post_validation: when the optimizer steps, if `costs.optimizer` is given. False: a rank waits until it knows the
            norm of all gradients, so that no rank can begin its next step early. True: a rank steps when it knows the
            norms of the ranks before it. The whole norm comes around during the next forwards; in the rare case that it
            forbids the step, the rank takes it back (Zero Bubble, section 4).

    Raises:
        ValueError: the schedule cannot run (see `validate`), no `Costs`, or a list of costs that is not one a stage.

    >>> from parlab.pipeline import one_f_one_b
    >>> timeline = simulate(one_f_one_b(p=4, m=8))
    >>> timeline.makespan, timeline.peak_activations
    (33, [4, 3, 2, 1])
    """
    instance("schedule", schedule, Schedule)
    instance("costs", costs, Costs)
    flag("post_validation", post_validation)
    table = action_table(schedule)
    duration = durations(table, costs)
    lag = _lags(table, costs)
    start, end = start_and_end(table, duration, lag)
    steps = [] if costs.optimizer is None else _optimizer_steps(table, costs, end, post_validation)
    return ScheduleTimeline(table, costs, duration, lag, start, end, steps)


def durations(table: ActionTable, costs: Costs) -> list[Any]:
    """How long each row takes; None for the forward of an atomic pair, whose backward has the duration of both."""
    stages = table.schedule.num_stages
    by_kind = costs.by_kind(stages)
    duration: list[Any] = [by_kind[kind][stage] for kind, stage, _ in table.actions]
    if costs.pair is not None:
        together = costs.per_stage("pair", stages)
        for row in pair_rows(table):
            duration[row : row + 2] = None, together[table.actions[row].stage]
    return duration


def _lags(table: ActionTable, costs: Costs) -> list[Any]:
    """How long the input of each row travels: not at all on its own rank."""
    transfer = costs.per_stage("transfer", table.schedule.num_stages)
    if not any(transfer):
        return [0] * len(table.source)
    return [
        transfer[table.actions[needed].stage] if needed >= 0 and table.rank_of_row[needed] != rank else 0
        for needed, rank in zip(table.source, table.rank_of_row, strict=True)
    ]


def _optimizer_steps(table: ActionTable, costs: Costs, end: list[Any], post_validation: bool) -> list[tuple[Any, Any]]:
    """Start and end of each rank's step; news of the norm travels from rank to rank like the slowest message."""
    stages, ranks = table.schedule.num_stages, range(table.schedule.num_ranks)
    took, hop = costs.per_stage("optimizer", stages), max(costs.per_stage("transfer", stages))
    done = [max(end[table.first[r] : table.first[r + 1]], default=0) for r in ranks]
    starts = [max(done[q] + abs(r - q) * hop for q in (range(r + 1) if post_validation else ranks)) for r in ranks]
    held = [{action.stage for action in row} for row in table.schedule.actions]
    return [(start, start + sum(took[s] for s in own)) for start, own in zip(starts, held, strict=True)]
