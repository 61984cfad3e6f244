"""What a rank does at a time, and when it posts its receives."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from parlab.pipeline.actions import Pair
from parlab.pipeline.dependencies import Program
from parlab.pipeline.replay import replay


class Receive(NamedTuple):
    """The rank posts a receive when it has done `after` of its steps, for what row `source` sends to row `row`."""

    after: int
    source: int
    row: int


def steps_of(program: Program, rank: int, joined: Collection[int]) -> list[range]:
    """The rows of each step: one or, from the forward of an atomic pair (a row in `joined`) on, two."""
    starts = [row for row in range(program.first[rank], program.first[rank + 1]) if row - 1 not in joined]
    return [range(row, row + 2 if row in joined else row + 1) for row in starts]


def step_name(program: Program, step: range) -> str:
    """`2F0`, or `(0F7;7B3)OVERLAP_F_B`."""
    actions = program.actions[step.start : step.stop]
    return str(actions[0] if len(actions) == 1 else Pair(*actions))


def receives(program: Program, rank: int, joined: Collection[int]) -> list[Receive]:
    """The receives of a rank, in the order in which it posts them, which for each peer is the peer's sending order.

    Each is posted after the last of the rank's own steps that the sender's action comes after in any case. So it stands
    open when the message is sent, whatever the actions cost; and 1F1B has a few open at a time, not m.

    On a clock on which each step of this rank takes 1 and everything else takes no time, an action starts at the number
    of this rank's steps that come before it.
    """
    ticks: list[int | None] = [int(r == rank) for r in program.rank]
    for row in joined:
        ticks[row] = None
    steps_before, _ = replay(program, ticks, lag=[0] * len(ticks))
    own = range(program.first[rank], program.first[rank + 1])
    return sorted(
        Receive(steps_before[program.source[row]], program.source[row], row)
        for row in own
        if program.source[row] >= 0 and program.rank[program.source[row]] != rank
    )
