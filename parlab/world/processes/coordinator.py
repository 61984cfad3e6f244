"""How a collective begins: each member tells its arrival to rank 0 of the group, the coordinator. When the last one has
come, the coordinator compares the arrivals, and tells all members the same: the collective begins.

Invariant: a collective is in `Coordinator.entering` from its first member's arrival to its last one's. Its key names it
in all processes, as every member counts the collectives of the group alike.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from parlab.world.engines.diagnosis import collective_mismatch
from parlab.world.engines.tasks import Arrival, CollectiveCall

CollectiveKey = tuple[str, int]  # the name of its group, and the number of collectives before it there


class ProcessCollective(CollectiveCall):
    """A collective call between processes, as one of them knows it."""

    __slots__ = ("key", "split_id")

    def __init__(self, members: tuple[int, ...], key: CollectiveKey):
        super().__init__(members)
        self.key = key
        self.split_id = 0  # of a split that has begun: see `Begins`


class Enters(NamedTuple):
    """A note to rank 0 of a group: `member` has entered a collective."""

    key: CollectiveKey
    members: tuple[int, ...]
    member: int
    arrival: Arrival


class Begins(NamedTuple):
    """A note to each member of a group: all have entered a collective."""

    key: CollectiveKey
    arrivals: dict[int, Arrival]
    error: str | None  # how the calls differ
    split_id: int  # goes into the tags of the groups that a split makes: no other split has it; 0: this is no split


class Coordinator:
    """Rank `rank` of `size`, for all groups of which it is rank 0."""

    def __init__(self, rank: int, size: int):
        self.entering: dict[CollectiveKey, ProcessCollective] = {}  # some members have entered, and others not yet
        self.split_ids = count(1 + rank, size)  # no other coordinator has these: it counts from its own rank

    def add(self, note: Enters) -> Begins | None:
        """The note for all members, if the last one has entered; else None."""
        collective = self.entering.setdefault(note.key, ProcessCollective(note.members, note.key))
        collective.arrivals[note.member] = note.arrival
        if not collective.all_entered:
            return None
        del self.entering[note.key]
        group, _ = note.key
        split_id = next(self.split_ids) if collective.is_split else 0
        return Begins(note.key, collective.arrivals, collective_mismatch(collective, group), split_id)
