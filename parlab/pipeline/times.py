"""When each action of a schedule starts and ends.

Invariant: a line gets its end once, and after the lines that it needs; so the order in which ranks are run changes no
time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

from parlab.pipeline.dependencies import ActionTable

RankRun = Iterator[Hashable]  # one rank's run: it yields each event that it waits for


class EventLoop:
    """Runs ranks, each a generator: it yields the event that it waits for, and goes on when that has happened.

    A rank that makes an event happen says `happened`. Nobody looks at all ranks: the work is proportional to the number
    of events.

    Attributes:
        waiting: for each event that has not happened, the ranks that wait for it.
    """

    def __init__(self) -> None:
        self.waiting: dict[Hashable, list[RankRun]] = {}
        self._ready: list[RankRun] = []

    def run(self, runs: Iterable[RankRun]) -> None:
        """Run the ranks until none can go on; those that have not ended are in `waiting` then."""
        self._ready += runs
        while self._ready:
            of_rank = self._ready.pop()
            event = next(of_rank, None)
            if event is not None:
                self.waiting.setdefault(event, []).append(of_rank)

    def happened(self, event: Hashable) -> None:
        """Those who wait for this event may go on."""
        self._ready += self.waiting.pop(event, ())


def start_and_end(
    table: ActionTable, duration: Sequence[Any], travel: Sequence[Any], pairs: Collection[int] = ()
) -> tuple[list[Any], list[Any]]:
    """Starts and ends, one a line: each action starts as soon as its rank is free and its input has arrived.

    Args:
        duration: of each line.
        travel: of each line, how long its input is under way.
        pairs: the lines of forwards that start and end together with the line after them, whose duration counts.

    Raises:
        ValueError: a deadlock, with the cycle.
    """
    source = table.source
    start: list[Any] = [0] * len(source)
    end: list[Any] = [None] * len(source)
    loop = EventLoop()  # the event `line`: this line has ended

    def run(rank: int) -> RankRun:
        own = slice(table.first[rank], table.first[rank + 1])
        free = 0  # when the rank can do the next action
        forward = None  # of a pair, until its backward has run
        for line, needed in enumerate(source[own], own.start):
            begin = free
            if needed >= 0:
                while end[needed] is None:
                    yield needed
                arrival = end[needed] + travel[line]
                if arrival > begin:
                    begin = arrival
            if line in pairs:  # its backward, on the next line, begins when both have their inputs
                forward, free = line, begin
                continue
            free = begin + duration[line]
            start[line], end[line] = begin, free
            loop.happened(line)
            if forward is not None:
                start[forward], end[forward] = begin, free
                loop.happened(forward)
                forward = None

    loop.run(run(rank) for rank in range(len(table.first) - 1))
    if loop.waiting:
        raise ValueError(_deadlock(table, loop.waiting))
    return start, end


def _deadlock(table: ActionTable, awaited: Collection[Any]) -> str:
    """The text of a deadlock. From a blocked rank it goes to the rank for whose action that one waits, until a rank
    repeats."""
    actions, rank_of_line = table.actions, table.rank_of_line
    waiting = map(table.source.index, awaited)  # lines: at most one needs each awaited line
    blocked = {rank_of_line[line]: line for line in waiting}  # rank -> where it stands
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
