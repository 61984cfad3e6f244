"""Whether a schedule can run at all, and within which memory."""

from __future__ import annotations

from parlab.arguments import instance
from parlab.pipeline.costs import Limit, MemoryLimit, as_limit
from parlab.pipeline.dependencies import action_table
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.times import start_and_end


def validate(schedule: Schedule, memory_limit: Limit = None) -> None:
    """Refuse a schedule that cannot run to the right gradients.

    Args:
        memory_limit: the most chunks whose activations a rank may keep at once, a number or one a rank, or a
            `MemoryLimit` in bytes; None: no limit.

    Raises:
        ValueError: a stage does not do a microbatch exactly once (F and B, or F, I and W, all on one rank); an action
            stands before the action that it needs, the first such is named; ranks wait for each other, the cycle is
            printed; or a rank keeps more than its limit, with the action that exceeds it.

    >>> from parlab.pipeline import Action, Schedule
    >>> validate(Schedule([[Action("B", 0, 0), Action("F", 0, 0)]]))
    Traceback (most recent call last):
    ...
    ValueError: 0B0 (rank 0, action 0) needs 0F0, which the same rank does only later (rank 0, action 1)
    """
    instance("schedule", schedule, Schedule)
    limit = None if memory_limit is None else as_limit(memory_limit)
    table = action_table(schedule)
    nothing = [0] * len(table.actions)
    start_and_end(table, duration=nothing, travel=nothing)
    if limit is not None:
        _check_memory(schedule, limit)


def _check_memory(schedule: Schedule, limit: MemoryLimit) -> None:
    limits, changes = limit.of_ranks(schedule.num_ranks), limit.changes
    for rank, (actions, most) in enumerate(zip(schedule.actions, limits, strict=True)):
        kept: float = 0
        for position, action in enumerate(actions):
            kept += changes[action.kind]
            if kept > most:
                raise ValueError(
                    f"rank {rank} keeps {float(kept):g} activations at {action} (action {position}), but its limit is "
                    f"{float(most):g}: run a backward before this forward"
                )
