"""The one event loop of this package: ranks run until each has ended or waits for what will never come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

Rank = Iterator[Hashable]


class EventLoop:
    """Runs ranks. A rank is a generator. It yields the event that it waits for, and goes on when that has happened.

    A rank that makes an event happen calls `wake` for those in `waiting`. Nobody looks at all ranks: the work is
    proportional to the number of events.

    Attributes:
        waiting: for each event that has not happened, the ranks that wait for it.
    """

    def __init__(self) -> None:
        self.waiting: dict[Hashable, list[Rank]] = {}
        self._ready: list[Rank] = []

    def run(self, ranks: Iterable[Rank]) -> None:
        """Run the ranks until none can go on; those that have not ended are in `waiting` then."""
        ready, waiting = self._ready, self.waiting
        ready += ranks
        while ready:
            rank = ready.pop()
            event = next(rank, None)
            if event is None:
                continue
            if event in waiting:
                waiting[event].append(rank)
            else:
                waiting[event] = [rank]

    def wake(self, event: Hashable) -> None:
        """The event has happened: those who wait for it may go on."""
        self._ready.extend(self.waiting.pop(event, ()))
