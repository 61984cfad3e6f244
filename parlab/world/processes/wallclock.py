"""The measured times of a run on processes, on one clock, as a `Timeline`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parlab.world.engines.log import POST_SEND
from parlab.world.engines.tasks import CollectiveCall, Signal, Task
from parlab.world.timeline import Timeline, columns_of

ROUND_TRIPS = 50  # the shortest one gives the offset between two clocks


def clock_ahead(
    rank: int, size: int, send: Callable[[bytes, int], None], receive: Callable[[int], bytes | bytearray]
) -> int:
    """See `Transport.ahead`; all processes call this. `send(data, dst)` and `receive(src)` wait.

    Rank 0 answers each question of a rank with its clock. The fastest answer was read half a round trip earlier.
    """
    best, ahead = None, 0
    for peer in range(1, size):
        for _ in range(ROUND_TRIPS):
            if rank == 0:
                receive(peer)
                send(time.perf_counter_ns().to_bytes(8, "big"), peer)
            elif rank == peer:
                asked = time.perf_counter_ns()
                send(bytes(8), 0)
                theirs = int.from_bytes(receive(0), "big")
                answered = time.perf_counter_ns()
                if best is None or answered - asked < best:
                    best, ahead = answered - asked, (asked + answered) // 2 - theirs
    return ahead


class WaitedFor(NamedTuple):
    """The cause of a wait: the peer and the name, as a `Wait` has them, and the key of the message."""

    peer: int
    name: str
    key: Any = None  # None: it was no message


class Measurements(NamedTuple):
    """The times of one rank, in nanoseconds of its own clock."""

    ahead: int  # of that clock, ahead of rank 0's
    computes: list[tuple[int, int, str]]  # (start, end, name)
    waits: list[tuple[int, int, WaitedFor]]  # (start, end, cause)


def measured_timeline(ranks: Sequence[Measurements], messages: Sequence[tuple[Any, Any]]) -> Timeline:
    """The timeline of these ranks, in picoseconds of rank 0's clock, from the first thing that was measured on.

    A message is ready when both ends are posted, each by the clock of its rank, and lasts until its receiver has it.
    `messages` are the two ends of each message, the send and the receive, None for one that was not posted. Memory is
    not measured.
    """
    passed = [
        (send, receive) for send, receive in messages if send is not None and receive is not None and receive.passed_at
    ]
    at = _one_clock(ranks, passed)
    transfers, ready_at, ends = [], {}, []
    for send, receive in passed:
        ready = max(at(send.src, send.posted_at), at(send.dst, receive.posted_at))
        start = ready  # a watch sees no ports, for which a message may have waited
        end = max(ready, at(send.dst, receive.passed_at))
        transfers.append((send.src, send.dst, send.nbytes, ready, start, end, send.name, send.label))
        ready_at[send.key] = ready
        ends.append(end)
    computes, waits = [], []
    for rank, of_rank in enumerate(ranks):
        for began, ended, name in of_rank.computes:
            start, end = at(rank, began), at(rank, ended)
            computes.append((rank, start, end, name))
            ends.append(end)
        for began, ended, (peer, name, key) in of_rank.waits:
            start, end = at(rank, began), at(rank, ended)
            came = min(end, max(start, ready_at.get(key, end)))
            waits.append((rank, start, end, peer, name, came))
            ends.append(end)
    return Timeline(
        len(ranks),
        max(ends, default=0),
        computes=columns_of(sorted(computes, key=lambda row: row[1]), 4),
        transfers=columns_of(transfers, 8),
        waits=columns_of(sorted(waits, key=lambda row: row[2]), 6),
        cluster="the wall clock",
    )


def _one_clock(ranks: Sequence[Measurements], passed: Sequence[tuple[Any, Any]]) -> Callable[[int, int], int]:
    """The function `at(rank, nanoseconds)`: what the clock of `rank` said, as a time of `measured_timeline`."""
    ahead = [of_rank.ahead for of_rank in ranks]
    starts = [start - each.ahead for each in ranks for start, *_ in (*each.computes, *each.waits)]
    for send, receive in passed:
        starts += [send.posted_at - ahead[send.src], receive.posted_at - ahead[receive.dst]]
    first = min(starts, default=0)

    def at(rank: int, nanoseconds: int) -> int:
        return max(0, nanoseconds - ahead[rank] - first) * 1000

    return at


def waited_for(task: Task) -> WaitedFor:
    """The cause for which a task is blocked."""
    waits_for: Any = task.waits_for
    if isinstance(waits_for, Signal):
        return WaitedFor(task.rank, "request")
    if isinstance(waits_for, CollectiveCall):
        return WaitedFor(waits_for.members[0], task.call)
    late = [message for message in waits_for if not message.passed] or waits_for
    message = late[-1]  # of a sendrecv the receive, as on the simulated clock
    if message.end == POST_SEND:
        return WaitedFor(message.dst, "send", message.key)
    return WaitedFor(message.src, "receive", message.key)
