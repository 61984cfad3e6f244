"""The steps of a rank, and when it posts its receives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from parlab.pipeline.actions import Action, Pair, Slot
from parlab.pipeline.dependencies import ActionTable, pair_lines
from parlab.pipeline.times import start_and_end

Step = tuple[Action, ...]  # an action, or the forward and the backward of an atomic pair


def steps_of(row: Iterable[Slot], atomic: bool) -> list[Step]:
    """The steps of a rank, in order.

    Args:
        atomic: the two actions of a `Pair` are one step; else they are two, one after the other.
    """
    steps: list[Step] = []
    for slot in row:
        if isinstance(slot, Pair):
            steps += [(slot.F, slot.B)] if atomic else [(slot.F,), (slot.B,)]
        elif slot is not None:
            steps.append((slot,))
    return steps


def step_name(step: Step) -> str:
    """`2F0`, or `(0F7;7B3)OVERLAP_F_B`."""
    return str(step[0] if len(step) == 1 else Pair(*step))


class Receive(NamedTuple):
    """A rank posts a receive from `peer` when it has done `after` of its steps: `source` sends what `action` needs."""

    after: int
    peer: int
    source: Action
    action: Action


def receives(table: ActionTable, rank: int, atomic: bool) -> list[Receive]:
    """The receives of a rank, in the order in which it posts them, which for each peer is the peer's sending order.

    For each message that comes, this finds how many of this rank's own steps must be over before its sender can begin
    the action that sends it, and posts the receive right after that many. So the receive is open when the message is
    sent, whatever the actions cost; and 1F1B has a few receives open at a time, not m.

    The number is the start of the sender's action on a clock on which a step of this rank takes 1, and all else no
    time. For rank 0 of 1F1B with 2 ranks and 3 microbatches:

        starts at   0     1     2     3     4     5
        rank 0      0F0   0F1   0B0   0F2   0B1   0B2
        rank 1            1F0   1F1         1F2
                          1B0   1B1         1B2

    So it posts a receive from 1B0 when 1 of its steps is over, from 1B1 after 2, and from 1B2 after 4.

    Args:
        atomic: as of `steps_of`.
    """
    pairs = pair_lines(table) if atomic else frozenset()
    own_steps = [int(of_line == rank and line not in pairs) for line, of_line in enumerate(table.rank_of_line)]
    own_steps_over, _ = start_and_end(table, duration=own_steps, travel=[0] * len(own_steps), pairs=pairs)
    messages = []
    for line in range(table.first[rank], table.first[rank + 1]):
        source = table.source[line]
        if source >= 0 and table.rank_of_line[source] != rank:
            messages.append((own_steps_over[source], source, line))
    return [
        Receive(after, table.rank_of_line[source], table.actions[source], table.actions[line])
        for after, source, line in sorted(messages)
    ]
