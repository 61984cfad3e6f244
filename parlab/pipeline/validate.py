"""Whether a schedule can run at all."""

from __future__ import annotations

from parlab.arguments import instance
from parlab.pipeline.dependencies import action_table
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.times import start_and_end


def validate(schedule: Schedule) -> None:
    """Refuse a schedule that cannot run to the right gradients.

    Raises:
        ValueError: a stage does not do a microbatch exactly once (F and B, or F, I and W, all on one rank); an action
            stands before the action that it needs, the first such is named; or ranks wait for each other, the cycle is
            printed.

    >>> from parlab.pipeline import Action, Schedule
    >>> validate(Schedule([[Action("B", 0, 0), Action("F", 0, 0)]]))
    Traceback (most recent call last):
    ...
    ValueError: 0B0 (rank 0, action 0) needs 0F0, which the same rank does only later (rank 0, action 1)
    """
    instance("schedule", schedule, Schedule)
    table = action_table(schedule)
    nothing = [0] * len(table.actions)
    start_and_end(table, duration=nothing, travel=nothing)
