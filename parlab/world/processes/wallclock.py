"""The measured times of a run on processes, on one clock, as a `Timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.world.engines.log import POST_SEND
from parlab.world.engines.tasks import CollectiveCall, Signal, Task
from parlab.world.timeline import Timeline, columns_of

Clock = tuple[int, list[tuple[int, int, str]], list[tuple[int, int, Any]]]  # nanoseconds ahead, computes, waits


def measured(clocks: Sequence[Clock], messages: Sequence[tuple[Any, Any]]) -> Timeline:
    """The timeline of the ranks' notes, in picoseconds of rank 0's clock, from the first note on.

    `messages` are the two ends of each message, the send and the receive, None for one that was not posted. Memory is
    not measured.
    """
    ahead = [clock[0] for clock in clocks]
    passed = [(sent, asked) for sent, asked in messages if sent is not None and asked is not None and asked.done_at]
    noted = [start - ahead[rank] for rank, clock in enumerate(clocks) for start, *_ in (*clock[1], *clock[2])]
    for sent, asked in passed:
        noted += [sent.posted_at - ahead[sent.src], asked.posted_at - ahead[sent.dst]]
    first = min(noted, default=0)

    def at(rank: int, time: int) -> int:
        return max(0, time - ahead[rank] - first) * 1000

    transfers, ready = [], {}
    for sent, asked in passed:
        begin = max(at(sent.src, sent.posted_at), at(sent.dst, asked.posted_at))
        end = max(begin, at(sent.dst, asked.done_at))
        ready[sent.key] = begin
        transfers.append((sent.src, sent.dst, sent.nbytes, begin, begin, end, sent.name, sent.label))
    computes, waits = [], []
    for rank, (_, computed, waited) in enumerate(clocks):
        computes += [(rank, at(rank, start), at(rank, end), name) for start, end, name in computed]
        for start, end, (peer, name, key) in waited:
            start, end = at(rank, start), at(rank, end)
            waits.append((rank, start, end, peer, name, min(end, max(start, ready.get(key, end)))))
    ends = [row[2] for row in computes] + [row[5] for row in transfers] + [row[2] for row in waits]
    return Timeline(
        len(clocks),
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
    late = [message for message in waits_for if not message.matched] or waits_for
    message = late[-1]  # of a sendrecv the receive, as on the simulated clock
    key = (*message.key, message.number)
    return (message.dst, "send", key) if message.end == POST_SEND else (message.src, "receive", key)
