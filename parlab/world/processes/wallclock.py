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


class Measurements(NamedTuple):
    """The times of one rank, in nanoseconds of its own clock."""

    ahead: int  # of that clock, ahead of rank 0's
    computes: list[tuple[int, int, str]]  # (start, end, name)
    waits: list[tuple[int, int, tuple[int, str, Any]]]  # (start, end, `waited_for`)


def measured(ranks: Sequence[Measurements], messages: Sequence[tuple[Any, Any]]) -> Timeline:
    """The timeline of these ranks, in picoseconds of rank 0's clock, from the first thing that was measured on.

    A message is ready when both ends are posted, each by the clock of its rank, and lasts until its receiver has it.
    `messages` are the two ends of each message, the send and the receive, None for one that was not posted. Memory is
    not measured.
    """
    ahead = [of_rank.ahead for of_rank in ranks]
    passed = [
        (send, receive) for send, receive in messages if send is not None and receive is not None and receive.passed_at
    ]
    starts = [start - each.ahead for each in ranks for start, *_ in (*each.computes, *each.waits)]
    for send, receive in passed:
        starts += [send.posted_at - ahead[send.src], receive.posted_at - ahead[receive.dst]]
    first = min(starts, default=0)

    def at(rank: int, nanoseconds: int) -> int:
        return max(0, nanoseconds - ahead[rank] - first) * 1000

    transfers, ready_at = [], {}
    for send, receive in passed:
        ready = max(at(send.src, send.posted_at), at(send.dst, receive.posted_at))
        end = max(ready, at(send.dst, receive.passed_at))
        ready_at[send.key] = ready
        start = ready  # a watch sees no ports, for which a message may have waited
        transfers.append((send.src, send.dst, send.nbytes, ready, start, end, send.name, send.label))
    computes, waits = [], []
    for rank, of_rank in enumerate(ranks):
        computes += [(rank, at(rank, start), at(rank, end), name) for start, end, name in of_rank.computes]
        for start, end, (peer, name, key) in of_rank.waits:
            start, end = at(rank, start), at(rank, end)
            waits.append((rank, start, end, peer, name, min(end, max(start, ready_at.get(key, end)))))
    ends = [end for _, _, end, _ in computes]
    ends += [end for _, _, _, _, _, end, _, _ in transfers]
    ends += [end for _, _, end, _, _, _ in waits]
    return Timeline(
        len(ranks),
        max(ends, default=0),
        computes=columns_of(sorted(computes, key=lambda row: row[1]), 4),
        transfers=columns_of(transfers, 8),
        waits=columns_of(sorted(waits, key=lambda row: row[2]), 6),
        cluster="the wall clock",
    )


def waited_for(task: Task) -> tuple[int, str, Any]:
    """The peer and the name of a task's wait, as a `Wait` has them, and the key of its message."""
    waits_for: Any = task.waits_for
    if isinstance(waits_for, Signal):
        return task.rank, "request", None
    if isinstance(waits_for, CollectiveCall):
        return waits_for.members[0], task.call, None
    late = [message for message in waits_for if not message.passed] or waits_for
    message = late[-1]  # of a sendrecv the receive, as on the simulated clock
    return (message.dst, "send", message.key) if message.end == POST_SEND else (message.src, "receive", message.key)
