"""Whether a schedule can run at all, and within which memory."""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arguments import whole
from parlab.pipeline.dependencies import lower
from parlab.pipeline.replay import replay
from parlab.pipeline.schedule import Schedule


def validate(schedule: Schedule, memory_limit: int | Sequence[int] | None = None) -> None:
    """Refuse a schedule that cannot run to the right gradients.

    Args:
        memory_limit: the most chunks whose activations a rank may keep at once, a number or one a rank; None: no limit.

    Raises:
        ValueError: a stage does not do a microbatch exactly once (F and B, or F, I and W, all on one rank); an action
            stands before what it needs, the first such is named; ranks wait for each other, the cycle is printed; or
            a rank keeps more than its limit, with the action that exceeds it.

    >>> from parlab.pipeline import Action, Schedule
    >>> validate(Schedule([[Action("B", 0, 0), Action("F", 0, 0)]]))
    Traceback (most recent call last):
    ...
    ValueError: 0B0 (rank 0, action 0) needs 0F0, which the same rank does only later (rank 0, action 1)
    """
    program = lower(schedule)
    nothing = [0] * len(program.actions)
    replay(program, duration=nothing, lag=nothing)
    if memory_limit is not None:
        _check_memory(schedule, memory_limit)


def _check_memory(schedule: Schedule, memory_limit: int | Sequence[int]) -> None:
    limits = memory_limit if isinstance(memory_limit, Sequence) else [memory_limit] * schedule.num_ranks
    if len(limits) != schedule.num_ranks:
        raise ValueError(f"memory_limit has {len(limits)} numbers for {schedule.num_ranks} ranks: give one a rank")
    for limit in limits:
        whole("memory_limit", limit, 0, ", or None for no limit")
    for rank, (actions, limit) in enumerate(zip(schedule.actions, limits, strict=True)):
        kept = 0
        for position, action in enumerate(actions):
            kept += {"F": 1, "I": 0}.get(action.kind, -1)
            if kept > limit:
                raise ValueError(
                    f"rank {rank} keeps {kept} activations at {action} (action {position}), but its limit is {limit}: "
                    "run a backward before this forward"
                )
