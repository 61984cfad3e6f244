"""The simulated clock: one event loop runs over a trace and computes when everything happens on a cluster.

At each instant of simulated time:

1. Complete the messages and computations due now. Each task that waited for one continues until it waits or computes.
2. Messages that are ready (both ends are posted) start. Their order: the time when they became ready, then the sender's
   posting number, then the sender. A message whose port is busy is passed over.

A message occupies the sender's out-port and the receiver's in-port for latency + bytes/bandwidth. Both requests end
together, and until then the sender holds the message's memory. A rank that enters a collective sends its own messages
at once. Two kinds block: a split, until all members have entered; and a collective that some rank never enters, for
ever. Nothing else takes time.

Invariant, between two instants: a message that is ready and has not started queues at a port that is busy; a task that
neither computes nor has ended waits for a message, a collective or a signal that is still to come.

The result depends on the trace alone, so it is the same on every machine.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from parlab.world.clock.trace import Trace
from parlab.world.cluster import A_LEVEL, Cluster, picoseconds
from parlab.world.engines.log import AWAIT, COMPUTE, ENTER, HOLD, POST_RECEIVE, SIGNAL, WAIT
from parlab.world.timeline import Columns, Timeline, columns_of

Printed = tuple[int, int, str]  # time, rank, text


def replay(trace: Trace, cluster: Cluster) -> tuple[Timeline, list[Printed]]:
    """The timeline of `trace` on `cluster`, and the ranks' prints, by time, then rank.

    A run that failed is replayed as far as it came. A rank that never moves again waits until the end.
    """
    clock = _Clock(trace, cluster)
    while clock.events:
        going_on = clock.complete()
        ready: list[int] = []
        for task in going_on:  # grows when a collective is complete, or a signal raised
            clock.continue_task(task, going_on, ready)
        clock.start(ready)
    return clock.timeline(), sorted(clock.prints, key=lambda printed: printed[:2])


class _Clock:
    """The state of all messages and tasks at one instant, `now`, and a method for each thing that an instant has."""

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        count, tasks = len(trace.src), len(trace.actions)
        self.trace, self.cluster = trace, cluster
        self.transfer_time = _transfer_times(trace, cluster)
        self.actions = [iter(actions) for actions in trace.actions]  # of each task; the first `size` are the ranks'
        self.ends_posted = bytearray(count)  # how many ends of each message are posted
        self.ready_at, self.start_at, self.end_at = [-1] * count, [-1] * count, [-1] * count
        self.sender_task, self.receiver_task = [-1] * count, [-1] * count  # that wait for the message, at either end
        self.waiting: list[tuple[int, int, int] | None] = [None] * tasks  # since when; its (code, operand)
        self.waits: list[tuple[int, int, int, int, int]] = []  # those that are over: rank, start, end, code, operand
        self.entered: list[list[int]] = [[] for _ in trace.collectives]
        self.raised = bytearray(trace.signals)
        self.awaiting: list[list[int]] = [[] for _ in range(trace.signals)]
        self.held: list[list[tuple[int, int, str]]] = [[] for _ in range(trace.size)]
        self.prints: list[Printed] = []
        self.computes: tuple[list[Any], ...] = ([], [], [], [])  # the columns rank, start, end, name
        self.ports = _Ports(trace, cluster)
        self.events = [(0, ~task) for task in range(tasks)]  # (time, message that ends) or (time, ~task that runs on)
        self.now = 0

    def complete(self) -> list[int]:
        """Go to the next instant, and complete its messages. Returns the tasks that continue now."""
        events, trace = self.events, self.trace
        now = self.now = events[0][0]
        going_on = []
        while events and events[0][0] == now:
            message = heappop(events)[1]
            if message < 0:
                going_on.append(~message)
                continue
            self.end_at[message] = now
            self.ports.release(message)
            if trace.holds[message]:
                self.held[trace.src[message]].append((now, -trace.holds[message], "sent"))
            if self.sender_task[message] >= 0:
                going_on.append(self.sender_task[message])
            if self.receiver_task[message] >= 0:
                going_on.append(self.receiver_task[message])
        return going_on

    def continue_task(self, task: int, going_on: list[int], ready: list[int]) -> None:
        """Run a task until it waits or computes.

        Args:
            going_on: tasks that continue at this instant; those that this one wakes are added.
            ready: messages whose second end is posted at this instant; added here.
        """
        trace, now, ends_posted, end_at = self.trace, self.now, self.ends_posted, self.end_at
        rank = trace.ranks[task]
        held = self.held[rank]
        self._end_wait(task)
        for code, operand in self.actions[task]:
            if code <= POST_RECEIVE:  # of either end
                if code == POST_RECEIVE:
                    if trace.nbytes[operand]:
                        held.append((now, trace.nbytes[operand], "received"))
                elif trace.holds[operand]:
                    held.append((now, trace.holds[operand], "sent"))
                ends_posted[operand] += 1
                if ends_posted[operand] == 2:
                    self.ready_at[operand] = now
                    ready.append(operand)
            elif code == WAIT:
                if end_at[operand] < 0:
                    task_at_end = self.sender_task if trace.src[operand] == rank else self.receiver_task
                    task_at_end[operand] = task
                    self.waiting[task] = (now, code, operand)
                    return
            elif code == COMPUTE:
                if self._compute(task, *operand):
                    return
            elif code == ENTER:
                if trace.collectives[operand].joint:
                    self._enter(task, operand, going_on)
                    return
            elif code == HOLD:
                name, change = operand
                held.append((now, change, name))
            elif code == SIGNAL:
                self.raised[operand] = 1
                going_on.extend(self.awaiting[operand])
            elif code == AWAIT:
                if not self.raised[operand]:
                    self.awaiting[operand].append(task)
                    self.waiting[task] = (now, code, operand)
                    return
            else:
                self.prints.append((now, rank, operand))

    def _end_wait(self, task: int) -> None:
        """Record the wait of a task, if it is a rank's main task and has waited until now."""
        waited, self.waiting[task] = self.waiting[task], None
        if waited is not None and task < self.trace.size and self.now > waited[0]:
            start, code, operand = waited
            self.waits.append((task, start, self.now, code, operand))

    def _enter(self, task: int, collective: int, going_on: list[int]) -> None:
        """Let a task wait in a joint collective. With its last member, all its members go on."""
        entered = self.entered[collective]
        entered.append(task)
        self.waiting[task] = (self.now, ENTER, collective)
        if len(entered) == len(self.trace.collectives[collective].members):
            going_on.extend(entered)

    def _compute(self, task: int, name: str, flops: float, moved: float, seconds: float | None) -> bool:
        """Begin a computation; returns whether it takes time."""
        rank = self.trace.ranks[task]
        if seconds is None:
            seconds = self.cluster.device.seconds(flops, moved)
        end = self.now + picoseconds(seconds)
        ranks, starts, ends, names = self.computes
        ranks.append(rank)
        starts.append(self.now)
        ends.append(end)
        names.append(name)
        if end > self.now:
            heappush(self.events, (end, ~task))
        return end > self.now

    def start(self, ready: list[int]) -> None:
        """Start the messages whose ports are free."""
        for message in self.ports.occupy(ready, self.now):
            self.start_at[message] = self.now
            heappush(self.events, (self.now + self.transfer_time[message], message))

    def timeline(self) -> Timeline:
        """The timeline, when nothing is left to happen."""
        trace, waits = self.trace, self.waits
        for rank in range(trace.size):
            self._end_wait(rank)
        times = self.ready_at, self.start_at, self.end_at
        transfers: Columns = (trace.src, trace.dst, trace.nbytes, *times, trace.names, trace.labels)
        passed = [message for message, end in enumerate(self.end_at) if end >= 0]
        if len(passed) < len(self.end_at):
            transfers = tuple([column[message] for message in passed] for column in transfers)
        return Timeline(
            trace.size,
            self.now,
            computes=self.computes,
            transfers=transfers,
            waits=lambda: columns_of([self._wait(*wait) for wait in waits], 6),
            held=self.held,
            cluster=self.cluster.name,
        )

    def _wait(self, rank: int, start: int, end: int, code: int, operand: int) -> tuple[int, int, int, int, str, int]:
        """The fields of the `Wait` of `rank`, which waited in (code, operand) from `start` to `end`."""
        trace = self.trace
        if code == WAIT:
            sends = trace.src[operand] == rank
            peer, name = (trace.dst[operand], "send") if sends else (trace.src[operand], "receive")
            came = max(start, self.ready_at[operand]) if self.ready_at[operand] >= 0 else end
            return rank, start, end, peer, name, came
        if code == ENTER:
            names, members, _ = trace.collectives[operand]
            entered = [trace.ranks[task] for task in self.entered[operand]]
            peer = entered[-1]
            if len(entered) < len(members):  # no rank can move any more: it waits for a rank that did not enter
                peer = min(set(members) - set(entered))
            return rank, start, end, peer, names[rank], end
        return rank, start, end, rank, "request", start


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


def _port_sets(trace: Trace, cluster: Cluster) -> list[int]:
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
        sets = _port_sets(trace, cluster)
        self.out = [2 * trace.size * its_set + src for src, its_set in zip(trace.src, sets, strict=True)]
        self.into = [2 * trace.size * its_set + trace.size + dst for dst, its_set in zip(trace.dst, sets, strict=True)]
        self.to_itself = [src == dst for src, dst in zip(trace.src, trace.dst, strict=True)]
        # by posting number, then sender
        self.order = [number * trace.size + src for number, src in zip(trace.posting, trace.src, strict=True)]

    def release(self, message: int) -> None:
        """The message has passed: its ports are free again."""
        if self.limited and not self.to_itself[message]:
            for port in (self.out[message], self.into[message]):
                self.free[port] += 1
                if self.queues[port]:
                    self.freed.append(port)

    def occupy(self, ready: list[int], now: int) -> list[int]:
        """Of the messages that are `ready` now, and those that queue at ports freed now, those that find their ports
        free. They hold them from now on.
        """
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
