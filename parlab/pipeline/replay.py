"""When each action of a schedule starts and ends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from parlab.pipeline.dependencies import Program


def replay(program: Program, duration: Sequence[Any], lag: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Starts and ends, one a row: each action starts as soon as its rank is free and its input has arrived.

    Each rank is a coroutine that goes on until it needs a row that has not ended; when that row ends, the rank is put
    back on the worklist. So every row is looked at once or twice: O(actions).

    Args:
        duration: of each row; None for the forward of an atomic pair, which starts and ends with the row after it.
        lag: of each row, the time that its input travels.

    Raises:
        ValueError: a deadlock, with the cycle.
    """
    start: list[Any] = [0] * len(duration)
    end: list[Any] = [None] * len(duration)
    waiting: dict[int, Iterator[None]] = {}  # row -> the rank that waits for it: only one does, its neighbour

    def run(rank: int) -> Iterator[None]:
        own = slice(program.first[rank], program.first[rank + 1])
        time, forward = 0, -1
        for row, needed, travel, took in zip(
            range(own.start, own.stop), program.source[own], lag[own], duration[own], strict=True
        ):
            if needed >= 0:
                while end[needed] is None:
                    waiting[needed] = ranks[rank]
                    yield
                arrival = end[needed] + travel
                if arrival > time:
                    time = arrival
            start[row] = time
            if took is None:
                forward = row
                continue
            time += took
            end[row] = time
            if row in waiting:
                worklist.append(waiting.pop(row))
            if forward >= 0:
                start[forward], end[forward] = start[row], time
                if forward in waiting:
                    worklist.append(waiting.pop(forward))
                forward = -1

    ranks = [run(rank) for rank in range(len(program.first) - 1)]
    worklist = list(ranks)
    while worklist:
        next(worklist.pop(), None)
    if waiting:
        raise ValueError(_deadlock(program, waiting))
    return start, end


def _deadlock(program: Program, awaited: Collection[int]) -> str:
    """From a blocked rank to what it waits for, to what keeps that from being done, until a rank repeats."""
    actions, rank = program.actions, program.rank
    blocked = {rank[row]: row for row in map(program.source.index, awaited)}  # rank -> the row at which it stands
    path = [min(blocked)]
    while path[-1] not in path[:-1]:
        path.append(rank[program.source[blocked[path[-1]]]])
    cycle = path[path.index(path[-1]) : -1]
    lines = [
        f"deadlock: {len(cycle)} rank{'s wait for each other' if len(cycle) > 1 else ' waits for itself'} in a cycle"
    ]
    for waiting_rank in cycle:
        row = blocked[waiting_rank]
        needed = program.source[row]
        peer = rank[needed]
        lines.append(
            f"  rank {waiting_rank} stands at {actions[row]}, which needs {actions[needed]}; "
            f"rank {peer} does that only after {actions[blocked[peer]]}"
        )
    return "\n".join(lines)
