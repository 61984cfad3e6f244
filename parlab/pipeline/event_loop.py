"""The one event loop of this room: ranks run until each has ended or waits for what will never come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

Rank = Iterator[tuple[Hashable, ...]]


class EventLoop:
    """Runs ranks. A rank is a generator. It yields the events of which it needs one, and goes on when one has happened.

    A rank that makes an event happen calls `wake`. It need not look at others: each of them is woken once for an event,
    so the work is proportional to the number of events.

    Attributes:
        waiting: for each event that has not happened, the ranks that wait for it.
    """

    def __init__(self) -> None:
        self.waiting: dict[Hashable, list[Rank]] = {}
        self._ready: list[Rank] = []

    def run(self, ranks: Iterable[Rank]) -> None:
        """Run the ranks until none can go on; those that have not ended are in `waiting` then."""
        self._ready += ranks
        while self._ready:
            rank = self._ready.pop()
            for event in next(rank, ()):
                self.waiting.setdefault(event, []).append(rank)

    def wake(self, event: Hashable) -> None:
        """The event has happened: those who wait for it may go on."""
        self._ready += self.waiting.pop(event, ())
