"""The steps of a rank, and when it posts its receives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from parlab.pipeline.actions import Action, Pair, Slot
from parlab.pipeline.dependencies import ActionTable, pair_rows
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

    The number is read from a clock on which each step of this rank takes 1 and all else no time: the sender's action
    starts there at as many ticks as this rank's steps must be over.

    Args:
        atomic: as of `steps_of`.
    """
    ticks: list[int | None] = [int(r == rank) for r in table.rank_of_row]
    for row in pair_rows(table) if atomic else ():
        ticks[row] = None
    steps_before, _ = start_and_end(table, ticks, lag=[0] * len(ticks))
    messages = []
    for row in range(table.first[rank], table.first[rank + 1]):
        source = table.source[row]
        if source >= 0 and table.rank_of_row[source] != rank:
            messages.append((steps_before[source], source, row))
    return [
        Receive(after, table.rank_of_row[source], table.actions[source], table.actions[row])
        for after, source, row in sorted(messages)
    ]
