"""The simulated clock: one event loop runs over a trace and computes when everything happens on a cluster.

At each instant of simulated time:

1. Complete the messages and computations due now. Each task that waited for one continues until it waits or computes.
2. Messages that are ready (both ends are posted) start. Their order: the time when they became ready, then the sender's
   posting number, then the sender. A message whose port is busy is passed over.

A message occupies the sender's out-port and the receiver's in-port for latency + bytes/bandwidth. Both requests end
together, and until then the sender holds the message's memory. A rank that enters a collective sends its own messages
at once. Two kinds block: a split, until all members have entered; and a collective that some rank never enters, for
ever. Nothing else takes time.

The result depends on the trace alone, so it is the same on every machine.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from parlab.world.clock.trace import Trace
from parlab.world.cluster import A_LEVEL, Cluster, picoseconds
from parlab.world.engines.log import AWAIT, COMPUTE, ENTER, HOLD, POST_RECEIVE, SIGNAL, WAIT
from parlab.world.timeline import Timeline, columns_of

Printed = tuple[int, int, str]  # time, rank, text


def replay(trace: Trace, cluster: Cluster) -> tuple[Timeline, list[Printed]]:
    """The timeline of `trace` on `cluster`, and the ranks' prints, by time, then rank.

    A run that failed is replayed as far as it came. A rank that never moves again waits until the end.
    """
    size, ranks, src, dst, nbytes, kept = trace.size, trace.ranks, trace.src, trace.dst, trace.nbytes, trace.kept
    count = len(src)
    transfer_time = _transfer_times(trace, cluster)

    programs = [iter(program) for program in trace.programs]  # of each task; the first `size` are the ranks'
    tasks = len(programs)
    posted = bytearray(count)  # how many ends of each message are posted
    ready_at = [-1] * count
    start_at = [-1] * count
    end_at = [-1] * count
    sender_task = [-1] * count  # the task that waits for the message, at either end
    receiver_task = [-1] * count
    stands: list[tuple[int, int, int] | None] = [None] * tasks  # since when a task waits, and in which (code, row)
    entered: list[list[int]] = [[] for _ in trace.collectives]
    raised = bytearray(trace.signals)
    awaiting: list[list[int]] = [[] for _ in range(trace.signals)]
    held: list[list[tuple[int, int, str]]] = [[] for _ in range(size)]
    prints: list[Printed] = []
    computes: tuple[list[Any], ...] = ([], [], [], [])  # the columns rank, start, end, name
    compute_ranks, compute_starts, compute_ends, compute_names = computes
    stops: list[tuple[int, int, int, int, int]] = []  # rank, end, start, code, row

    ports = _Ports(trace, cluster)
    events = [(0, ~task) for task in range(tasks)]  # (time, message that ends) or (time, ~task that runs on)
    now = 0

    while events:
        now = events[0][0]
        free: list[int] = []  # tasks that run on now
        ready: list[int] = []  # messages whose second end is posted at this instant
        while events and events[0][0] == now:
            message = heappop(events)[1]
            if message < 0:
                free.append(~message)
                continue
            end_at[message] = now
            ports.release(message)
            if kept[message]:
                held[src[message]].append((now, -kept[message], "sent"))
            if sender_task[message] >= 0:
                free.append(sender_task[message])
            if receiver_task[message] >= 0:
                free.append(receiver_task[message])

        for task in free:  # grows when a collective is complete, or a signal raised
            rank = ranks[task]
            mine = held[rank]
            stood = stands[task]
            if stood is not None:
                stands[task] = None
                if task < size and now > stood[0]:
                    stops.append((rank, now, *stood))
            for code, row in programs[task]:
                if code <= POST_RECEIVE:  # of either end
                    if code == POST_RECEIVE:
                        if nbytes[row]:
                            mine.append((now, nbytes[row], "received"))
                    elif kept[row]:
                        mine.append((now, kept[row], "sent"))
                    posted[row] += 1
                    if posted[row] == 2:
                        ready_at[row] = now
                        ready.append(row)
                elif code == WAIT:
                    if end_at[row] < 0:
                        if src[row] == rank:
                            sender_task[row] = task
                        else:
                            receiver_task[row] = task
                        stands[task] = (now, code, row)
                        break
                elif code == COMPUTE:
                    name, flops, moved, seconds = row
                    if seconds is None:
                        seconds = cluster.device_of(rank).seconds(flops, moved)
                    end = now + picoseconds(seconds)
                    compute_ranks.append(rank)
                    compute_starts.append(now)
                    compute_ends.append(end)
                    compute_names.append(name)
                    if end > now:
                        heappush(events, (end, ~task))
                        break
                elif code == ENTER:
                    if not trace.collectives[row].joint:
                        continue
                    members = entered[row]
                    members.append(task)
                    stands[task] = (now, code, row)
                    if len(members) == len(trace.collectives[row].members):
                        free.extend(members)
                    break
                elif code == HOLD:
                    name, change = row
                    mine.append((now, change, name))
                elif code == SIGNAL:
                    raised[row] = 1
                    free.extend(awaiting[row])
                elif code == AWAIT:
                    if not raised[row]:
                        awaiting[row].append(task)
                        stands[task] = (now, code, row)
                        break
                else:
                    prints.append((now, rank, row))

        for message in ports.start(ready, now):
            start_at[message] = now
            heappush(events, (now + transfer_time[message], message))

    for rank, stood in enumerate(stands[:size]):
        if stood is not None and now > stood[0]:
            stops.append((rank, now, *stood))
    passed = [message for message in range(count) if end_at[message] >= 0]
    transfers = (src, dst, nbytes, ready_at, start_at, end_at, trace.names, trace.labels)
    timeline = Timeline(
        size,
        now,
        computes=computes,
        transfers=transfers if len(passed) == count else tuple([column[row] for row in passed] for column in transfers),
        waits=lambda: columns_of([_wait(trace, entered, ready_at, *stop) for stop in stops], 6),
        held=held,
        cluster=cluster.name,
    )
    return timeline, sorted(prints, key=lambda printed: printed[:2])


def _transfer_times(trace: Trace, cluster: Cluster) -> list[int]:
    """Picoseconds that each message takes; one to oneself takes none."""
    known: dict[tuple[bool, int], int] = {}
    per_node, times = cluster.ranks_per_node, []
    for src, dst, nbytes in zip(trace.src, trace.dst, trace.nbytes, strict=True):
        kind = (src // per_node == dst // per_node, nbytes)
        if kind not in known:
            known[kind] = cluster.link(src, dst).picoseconds(nbytes)
        times.append(known[kind] if src != dst else 0)
    return times


def _levels(trace: Trace, cluster: Cluster) -> list[int]:
    """Which set of ports each message takes: 1 for those between nodes, where that is a set of its own; else 0."""
    if cluster.ports != A_LEVEL:
        return [0] * len(trace.src)
    per_node = cluster.ranks_per_node
    return [int(src // per_node != dst // per_node) for src, dst in zip(trace.src, trace.dst, strict=True)]


class _Ports:
    """Which messages may start. A message that finds a port busy queues there until that port is free again.

    A rank has one set of ports for all of its messages, or, with ports "a level", one for those inside its node and
    another for those between nodes.
    """

    def __init__(self, trace: Trace, cluster: Cluster):
        self.limited = cluster.ports is not None
        width = 1 if cluster.ports in (None, A_LEVEL) else int(cluster.ports)
        self.free = [width] * (4 * trace.size)  # out-ports by rank, then in-ports; then those between nodes
        self.queues: list[list[tuple[int, int, int]]] = [[] for _ in self.free]
        self.freed: list[int] = []  # ports with a queue that became free at this instant
        levels = _levels(trace, cluster)
        self.out = [2 * trace.size * level + src for src, level in zip(trace.src, levels, strict=True)]
        self.into = [2 * trace.size * level + trace.size + dst for dst, level in zip(trace.dst, levels, strict=True)]
        self.to_itself = [src == dst for src, dst in zip(trace.src, trace.dst, strict=True)]
        # by posting number, then sender
        self.order = [number * trace.size + src for number, src in zip(trace.posting, trace.src, strict=True)]

    def release(self, message: int) -> None:
        if self.limited and not self.to_itself[message]:
            for port in (self.out[message], self.into[message]):
                self.free[port] += 1
                if self.queues[port]:
                    self.freed.append(port)

    def start(self, ready: list[int], now: int) -> list[int]:
        """Of the messages that are `ready` now, and those that queue at ports freed now, the ones that start."""
        if not self.limited:
            return ready
        candidates = [(now, self.order[message], message, -1) for message in ready]
        for port in self.freed:
            if self.queues[port]:
                candidates.append((*heappop(self.queues[port]), port))
        self.freed.clear()
        heapify(candidates)
        started = []
        while candidates:
            ready_at, order, message, queue = heappop(candidates)
            out, into = self.out[message], self.into[message]
            if self.to_itself[message]:
                started.append(message)
            elif self.free[out] and self.free[into]:
                self.free[out] -= 1
                self.free[into] -= 1
                started.append(message)
            else:
                heappush(self.queues[into if self.free[out] else out], (ready_at, order, message))
            if queue >= 0 and self.free[queue] and self.queues[queue]:
                heappush(candidates, (*heappop(self.queues[queue]), queue))
        return started


def _wait(
    trace: Trace, entered: list[list[int]], ready_at: list[int], rank: int, end: int, start: int, code: int, row: int
) -> tuple[int, int, int, int, str, int]:
    """The fields of the `Wait` of `rank`, which stood in (code, row) from `start` to `end`."""
    if code == WAIT:
        sends = trace.src[row] == rank
        peer, name = (trace.dst[row], "send") if sends else (trace.src[row], "receive")
        came = max(start, ready_at[row]) if ready_at[row] >= 0 else end
        return rank, start, end, peer, name, came
    if code == ENTER:
        names, members, _ = trace.collectives[row]
        peer = trace.ranks[entered[row][-1]]
        if len(entered[row]) < len(members):  # no rank can move any more: it waits for a rank that did not enter
            peer = min(set(members) - {trace.ranks[task] for task in entered[row]})
        return rank, start, end, peer, names[rank], end
    return rank, start, end, rank, "request", start
