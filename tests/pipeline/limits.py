"""Whether a schedule keeps to a limit of memory, counted along the actions of each rank."""

import math

from parlab.pipeline import validate


def most_kept(schedule):
    """The most chunks that each rank keeps at once, each from its F to its W or B."""
    changes = {"F": 1, "I": 0, "W": -1, "B": -1}
    peaks = []
    for row in schedule.actions:
        kept = [0]
        for action in row:
            kept.append(kept[-1] + changes[action.kind])
        peaks.append(max(kept))
    return peaks


def validate_within(schedule, memory_limit):
    """The schedule can run, and each rank keeps to its limit: chunks, one number or one a rank; None: any."""
    validate(schedule)
    limit = math.inf if memory_limit is None else memory_limit
    limits = limit if isinstance(limit, list) else [limit] * schedule.num_ranks
    assert all(most <= of_rank for most, of_rank in zip(most_kept(schedule), limits, strict=True))
