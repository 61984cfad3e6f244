"""The first pass of a step: all microbatches forward, for the loads of the experts alone (see `mixture.py`).

Invariant: microbatch after microbatch, stage after stage, so one activation is held at a time; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from parlab.arrays import Array
from parlab.pipeline import Action, Schedule
from parlab.world import Comm


def first_forwards(schedule: Schedule, rank: int) -> list[Action]:
    """The forwards of a rank in the pass; none where there is one microbatch alone."""
    if schedule.num_microbatches == 1:
        return []
    every = product(range(schedule.num_microbatches), range(schedule.num_stages))
    return [
        Action("F", stage, microbatch) for microbatch, stage in every if schedule.rank_of(stage, microbatch) == rank
    ]


def run_first_pass(
    pp: Comm,
    schedule: Schedule,
    actions: Sequence[Action],
    chains: Mapping[int, Any],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    like: Array,
) -> None:
    """Run this rank's forwards. The arguments are those of `run_schedule`, which runs the schedule after it.

    `chains`: its pipeline stages, by their numbers.
    """
    for _, stage, microbatch in actions:
        if stage == 0:
            x = inputs[microbatch]
        elif (source := schedule.rank_of(stage - 1, microbatch)) != pp.rank:
            x = pp.recv(source, like)
        # else x is there: the action before was this microbatch's on the stage before
        if stage == schedule.num_stages - 1:
            chains[stage].forward(x, targets[microbatch])
            continue
        x, _ = chains[stage].forward(x)
        if (after := schedule.rank_of(stage + 1, microbatch)) != pp.rank:
            pp.send(x, after)
