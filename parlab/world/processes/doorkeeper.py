"""How the members of a group enter a collective: each sends its arrival to rank 0 of the group, the doorkeeper, which
compares the arrivals, and lets all members go on.
"""

from __future__ import annotations

from parlab.world.engines.diagnosis import difference
from parlab.world.engines.tasks import Arrival, CollectiveCall

CallKey = tuple[str, int]  # of a collective: the name of its group, and the number of collectives before it there


class ProcessCall(CollectiveCall):
    """A collective call between processes: one that a member has entered, or one that the doorkeeper compares.

    `split_number` goes into the tags of the groups that a split makes; 0: this is no split.
    """

    __slots__ = ("key", "split_number")

    def __init__(self, members: tuple[int, ...], key: CallKey):
        super().__init__(members)
        self.key = key
        self.split_number = 0


class Doorkeeper:
    """Rank `rank` of `size`, for all groups of which it is rank 0."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.calls: dict[CallKey, ProcessCall] = {}  # that some members have entered, and others not yet
        self.splits = 0  # that it has let go on

    def arrives(self, key: CallKey, members: tuple[int, ...], member: int, arrival: Arrival) -> ProcessCall | None:
        """The call with all arrivals, compared, if `member` is the last to enter; else None."""
        call = self.calls.setdefault(key, ProcessCall(members, key))
        call.arrivals[member] = arrival
        if not call.all_entered:
            return None
        del self.calls[key]
        call.error = difference(call, group=key[0])
        if arrival.detail is not None:  # a split's color and key; no other collective has any
            self.splits += 1
            call.split_number = 1 + self.splits * self.size + self.rank  # no other has it: modulo `size`, 1 + rank
        return call
