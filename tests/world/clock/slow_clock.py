"""DESIGN's clock once more, slow and obviously right: at every instant everything is looked at again.

"At each instant endings and resumed ranks go first, then ready messages start, ordered by (ready time, sender's posting
number, sender); one whose port is busy is passed over." "In simulated time a collective is no barrier: a rank that
enters runs its own messages at once, and waits only for what it needs." A wait has two parts: until the peer has posted
its end, and from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Clocked:
    transfers: list[tuple[int, ...]]  # (src, dst, nbytes, ready, start, end), sorted
    computes: list[tuple[Any, ...]]  # (rank, start, end, name), sorted
    waits: list[tuple[Any, ...]]  # (rank, start, end, peer or None, name, came), sorted
    makespan: int


@dataclass
class Rules:
    """The rules, so that a test can break them one by one."""

    order: Any = field(default=lambda ready, number, src: (ready, number, src))
    pass_over: bool = True  # a message whose port is busy lets the next ones go first
    endings_first: bool = True  # before messages start, all ranks that an ending frees have moved on
    sender_port: bool = True
    receiver_port: bool = True
    barriers: bool = False  # nobody begins a collective before all have entered


def simulate(lists, flows, collectives, cluster, rules=None):
    rules = rules or Rules()
    size = len(lists)
    next_ = [0] * size  # the operation that each rank comes to
    busy_until = [0] * size
    since = [None] * size  # when a rank began to wait
    entered = [0] * len(collectives)
    posts = [0] * len(flows)
    number = [0] * len(flows)
    ready = [None] * len(flows)
    start = [None] * len(flows)
    end = [None] * len(flows)
    ended = [False] * len(flows)
    sent = [0] * size
    computes, waits = [], []
    now = 0

    def over(rank, name, message=None):
        if since[rank] is not None and since[rank] < now:
            peer, came = None, now
            if message is not None:
                flow = flows[message]
                peer = flow.dst if name == "send" else flow.src
                came = max(since[rank], ready[message])
            waits.append((rank, since[rank], now, peer, name, came))
        since[rank] = None
        next_[rank] += 1
        return True

    def move(rank):
        """Do the next operation of `rank`, if it can be done now."""
        if busy_until[rank] > now or next_[rank] == len(lists[rank]):
            return False
        kind, what = lists[rank][next_[rank]]
        if kind == "compute":
            ticks, name = what
            busy_until[rank] = now + ticks
            computes.append((rank, now, now + ticks, name))
            return over(rank, "")
        if kind.startswith("post"):
            if kind == "post send":
                number[what] = sent[rank]
                sent[rank] += 1
            posts[what] += 1
            if posts[what] == 2:
                ready[what] = now
            return over(rank, "")
        if kind == "enter" and not rules.barriers:
            return over(rank, "")
        if kind in ("enter", "meet"):
            if since[rank] is None:
                since[rank] = now
                entered[what] += 1
            return entered[what] == collectives[what] and over(rank, "split")
        if ended[what]:
            return over(rank, kind.removeprefix("wait "), what)
        if since[rank] is None:
            since[rank] = now
        return False

    def under_way(message):
        return start[message] is not None and not ended[message]

    def leaves_node(flow):
        return flow.src // cluster.ranks_per_node != flow.dst // cluster.ranks_per_node

    def port_is_free(message):
        flow = flows[message]
        if cluster.ports is None or flow.src == flow.dst:
            return True
        others = [flows[other] for other in range(len(flows)) if under_way(other)]
        others = [other for other in others if other.src != other.dst]
        most = cluster.ports
        if cluster.ports == "a level":  # one port into the node and another to the network
            most = 1
            crosses = leaves_node(flow)
            others = [other for other in others if leaves_node(other) == crosses]
        out = sum(other.src == flow.src for other in others)
        into = sum(other.dst == flow.dst for other in others)
        return (out < most or not rules.sender_port) and (into < most or not rules.receiver_port)

    while True:
        for message in range(len(flows)):
            if under_way(message) and end[message] == now:
                ended[message] = True
                if not rules.endings_first:
                    break
        while sum(move(rank) for rank in range(size)):
            pass
        waiting = [message for message in range(len(flows)) if ready[message] is not None and start[message] is None]
        for message in sorted(waiting, key=lambda m: rules.order(ready[m], number[m], flows[m].src)):
            if port_is_free(message):
                flow = flows[message]
                start[message] = now
                end[message] = now
                if flow.src != flow.dst:
                    end[message] += cluster.link(flow.src, flow.dst).picoseconds(flow.nbytes)
            elif not rules.pass_over:
                break
        times = [end[message] for message in range(len(flows)) if under_way(message)]
        times += [busy_until[rank] for rank in range(size) if busy_until[rank] > now]
        if not times:
            break
        now = min(times)
    assert all(next_[rank] == len(lists[rank]) for rank in range(size))
    transfers = [(f.src, f.dst, f.nbytes, ready[m], start[m], end[m]) for m, f in enumerate(flows)]
    return Clocked(sorted(transfers), sorted(computes), sorted(waits), now)
