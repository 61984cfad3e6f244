"""The measured times of a run on processes, on one clock, as a `Timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parlab.world.engines.log import POST_SEND
from parlab.world.engines.tasks import CollectiveCall, Signal, Task
from parlab.world.timeline import Timeline, columns_of


class Watch(NamedTuple):
    """The measurements of one rank, in nanoseconds of its own clock."""

    ahead: int  # of that clock, ahead of rank 0's
    computes: list[tuple[int, int, str]]  # (start, end, name)
    waits: list[tuple[int, int, tuple[int, str, Any]]]  # (start, end, `waited_for`)


def measured(watches: Sequence[Watch], messages: Sequence[tuple[Any, Any]]) -> Timeline:
    """The timeline of the ranks' watches, in picoseconds of rank 0's clock, from the first thing that was measured on.

    A message is ready when both ends are posted, each by the clock of its rank, and lasts until its receiver has it.
    `messages` are the two ends of each message, the send and the receive, None for one that was not posted. Memory is
    not measured.
    """
    ahead = [watch.ahead for watch in watches]
    passed = [(sent, asked) for sent, asked in messages if sent is not None and asked is not None and asked.done_at]
    noted = [start - watch.ahead for watch in watches for start, *_ in (*watch.computes, *watch.waits)]
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
    for rank, watch in enumerate(watches):
        computes += [(rank, at(rank, start), at(rank, end), name) for start, end, name in watch.computes]
        for start, end, (peer, name, key) in watch.waits:
            start, end = at(rank, start), at(rank, end)
            waits.append((rank, start, end, peer, name, min(end, max(start, ready.get(key, end)))))
    ends = [row[2] for row in computes] + [row[5] for row in transfers] + [row[2] for row in waits]
    return Timeline(
        len(watches),
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
    return (message.dst, "send", message.key) if message.end == POST_SEND else (message.src, "receive", message.key)
