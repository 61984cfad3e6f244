"""When each action of a schedule starts and ends."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

from parlab.pipeline.dependencies import ActionTable

RankRun = Iterator[Hashable]  # one rank's run: it yields each event that it waits for


class EventLoop:
    """Runs ranks, each a generator: it yields the event that it waits for, and goes on when that has happened.

    A rank that makes an event happen calls `wake` for those in `waiting`. Nobody looks at all ranks: the work is
    proportional to the number of events.

    Attributes:
        waiting: for each event that has not happened, the ranks that wait for it.
    """

    def __init__(self) -> None:
        self.waiting: dict[Hashable, list[RankRun]] = {}
        self._ready: list[RankRun] = []

    def run(self, runs: Iterable[RankRun]) -> None:
        """Run the ranks until none can go on; those that have not ended are in `waiting` then."""
        ready, waiting = self._ready, self.waiting
        ready += runs
        while ready:
            of_rank = ready.pop()
            event = next(of_rank, None)
            if event is None:
                continue
            if event in waiting:
                waiting[event].append(of_rank)
            else:
                waiting[event] = [of_rank]

    def wake(self, event: Hashable) -> None:
        """The event has happened: those who wait for it may go on."""
        self._ready.extend(self.waiting.pop(event, ()))


def start_and_end(table: ActionTable, duration: Sequence[Any], lag: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Starts and ends, one a line: each action starts as soon as its rank is free and its input has arrived.

    Args:
        duration: of each line; None for the forward of an atomic pair, which starts and ends with the line after it.
        lag: of each line, the time that its input travels.

    Raises:
        ValueError: a deadlock, with the cycle.
    """
    start: list[Any] = [0] * len(duration)
    end: list[Any] = [None] * len(duration)
    loop = EventLoop()  # the event `line`: this line has ended
    waiting, wake = loop.waiting, loop.wake

    def run(rank: int) -> RankRun:
        own = slice(table.first[rank], table.first[rank + 1])
        time, forward = 0, None
        for line, needed, travel, took in zip(
            range(own.start, own.stop), table.source[own], lag[own], duration[own], strict=True
        ):
            if needed >= 0:
                while end[needed] is None:
                    yield needed
                arrival = end[needed] + travel
                if arrival > time:
                    time = arrival
            start[line] = time
            if took is None:
                forward = line
                continue
            time += took
            end[line] = time
            if line in waiting:
                wake(line)
            if forward is not None:
                start[forward], end[forward] = start[line], time
                wake(forward)
                forward = None

    loop.run(run(rank) for rank in range(len(table.first) - 1))
    if waiting:
        raise ValueError(_deadlock(table, waiting))
    return start, end


def _deadlock(table: ActionTable, awaited: Collection[Any]) -> str:
    """The text of a deadlock. From a blocked rank it goes to the rank for whose action that one waits, until a rank
    repeats."""
    actions, rank_of_line = table.actions, table.rank_of_line
    blocked = {rank_of_line[line]: line for line in map(table.source.index, awaited)}  # rank -> where it stands
    path = [min(blocked)]
    while path[-1] not in path[:-1]:
        path.append(rank_of_line[table.source[blocked[path[-1]]]])
    cycle = path[path.index(path[-1]) : -1]
    lines = [
        f"deadlock: {len(cycle)} rank{'s wait for each other' if len(cycle) > 1 else ' waits for itself'} in a cycle"
    ]
    for waiting_rank in cycle:
        line = blocked[waiting_rank]
        needed = table.source[line]
        peer = rank_of_line[needed]
        lines.append(
            f"  rank {waiting_rank} stands at {actions[line]}, which needs {actions[needed]}; "
            f"rank {peer} does that only after {actions[blocked[peer]]}"
        )
    return "\n".join(lines)
