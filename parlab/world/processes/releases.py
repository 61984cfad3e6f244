"""The beginning of collectives among processes: rank 0 of a group compares what its members have called, and releases
them.

Invariant: a collective is in `entered` from its first member's arrival to its last one's. Then each member hears once
that it begins, and all hear the same: the arrivals of all, how they differ, and the number of a split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.world.engines.diagnosis import difference
from parlab.world.engines.tasks import Arrival, CollectiveCall


class Releases:
    """The collectives that a rank releases, as rank 0 of their groups. `notify(member, kind, payload)` sends a note."""

    def __init__(self, rank: int, size: int, notify: Callable[[int, str, Any], None]):
        self.rank, self.size, self.notify = rank, size, notify
        self.entered: dict[tuple[str, int], CollectiveCall] = {}
        self.splits = 0  # that this rank has released

    def member_enters(self, payload: list[Any]) -> None:
        """A member has entered a collective; with the last one it begins."""
        (group, number), members, member, arrival = payload
        key = (group, number)
        collective = self.entered.setdefault(key, CollectiveCall(tuple(members), key))
        collective.arrivals[member] = Arrival(*arrival)
        if collective.all_entered:
            self._release(self.entered.pop(key))

    def _release(self, collective: CollectiveCall) -> None:
        group, _ = collective.key
        arrivals = [collective.arrivals[member] for member in collective.members]
        is_split = arrivals[0].detail is not None
        split = self._next_split() if is_split else None
        error = difference(collective, group)
        for member in collective.members:
            self.notify(member, "begins", [collective.key, split, error, arrivals])

    def _next_split(self) -> int:
        """The number of a split. No other split has it: modulo the size it is 1 + this rank."""
        self.splits += 1
        return 1 + self.splits * self.size + self.rank
