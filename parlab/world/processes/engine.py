"""The engine of ranks as processes: one rank in this process.

It is a loop and a post office. A task that waits polls: it moves the messages of this process on (`under_way`), handles
the notes of other ranks, then sleeps, longer and longer. So ranks that wait leave the cores to ranks that compute.

Notes are of four kinds, in two pairs. A rank asks, and one rank answers all:

    enters  ─▶  begins    a member enters a collective; rank 0 of the group lets all members go on (`doorkeeper`)
    report  ─▶  over      a rank waits, or its program is over; rank 0 ends the run, as no rank can move (`deadlock`)

Invariant, whenever the mutex is free: a collective that this rank has entered is in `awaited` until it begins.
"""

from __future__ import annotations

import math
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from parlab.world import values
from parlab.world.engines.base import Engine
from parlab.world.engines.diagnosis import places_of
from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import BACKGROUND, Arrival, CollectiveCall, Group, Mailbox, Task
from parlab.world.errors import Unwind
from parlab.world.processes.deadlock import Judge, Report, report_of
from parlab.world.processes.doorkeeper import CallKey, Doorkeeper, ProcessCall
from parlab.world.processes.messages import MessageEnd, ProcessGroup, ProcessMailbox, ReceiveEnd, SendEnd, header_of
from parlab.world.processes.transport import Transport
from parlab.world.processes.under_way import UnderWay
from parlab.world.processes.wallclock import Watch, waited_for
from parlab.world.values import Value

SPINS, YIELDS = 5, 15  # polls without a pause, then polls that offer the core, before the first sleep
SHORTEST, LONGEST = 20e-6, 5e-3  # seconds of a sleep; between them, a tenth of the time since the first poll
STUCK = 0.05  # seconds in a wait before this rank reports it to rank 0


class ProcessEngine(Engine):
    """Runs one program on the processes of `transport`."""

    world: ProcessGroup

    def __init__(self, transport: Transport):
        self.transport = transport
        super().__init__([transport.rank], ProcessGroup("world", tuple(range(transport.size)), 0))
        self.groups["world"] = self.world
        self.under_way = UnderWay()
        self.watch = Watch(transport.ahead, [], [])
        self.awaited: dict[CallKey, ProcessCall] = {}  # collectives in which this rank waits
        self.doorkeeper = Doorkeeper(transport.rank, transport.size)
        self.judge = Judge(transport.size)  # used on rank 0
        self.report_at = math.inf  # when this rank tells rank 0 what it waits for, if it still waits then
        self.last_reports: list[Report] = []  # of all ranks, at the end of the run
        self.handlers: dict[str, Callable[..., None]] = {  # of the notes of other ranks, by their kind
            "enters": self._on_enters,
            "begins": self._on_begins,
            "report": self._on_report,
            "over": self._on_over,
        }

    # Messages

    def post_send(
        self, task: Task, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> MessageEnd:
        """See `Engine`."""
        assert isinstance(box, ProcessMailbox)
        self.check(task)
        leaves = [self.transport.prepared(leaf) for leaf in values.leaves(value)]
        header = header_of(value, leaves, label)
        with self.mutex:
            wire = self.transport.send(header, leaves, box.dst, box.tag)
            message = SendEnd(box, name, wire)
            message.nbytes, message.kept, message.label = nbytes, kept, label
            task.log += (POST_SEND, message)
            self.under_way.offer(message)
            parked = call and self._park(task, message, call)
        if parked:
            self._sleep(task)
        return message

    def post_receive(
        self, task: Task, box: Mailbox, like: Value, name: str, label: Any, *, call: str = ""
    ) -> MessageEnd:
        """See `Engine`."""
        assert isinstance(box, ProcessMailbox)
        self.check(task)
        with self.mutex:
            wire = self.transport.expect(box.src, box.tag, list(values.leaves(like)))
            message = ReceiveEnd(box, name, wire, like)
            message.nbytes, message.expected = values.nbytes(like), label
            task.log += (POST_RECEIVE, message)
            self.under_way.ask(message, box)
            parked = call and self._park(task, message, call)
        if parked:
            self._sleep(task)
        return message

    # Collectives

    def _enter(self, task: Task, group: Group, arrival: Arrival) -> tuple[CollectiveCall, bool]:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        call = ProcessCall(group.members, (group.name, group.next_collective))
        group.next_collective += 1
        call.arrivals[task.rank] = arrival
        task.log += (ENTER, call)
        self.awaited[call.key] = call
        self._await_members(task, group, call)  # first: on rank 0 of the group the note may release this task
        self._notify(group.members[0], "enters", call.key, group.members, task.rank, arrival)
        return call, True

    def _on_enters(self, key: CallKey, members: tuple[int, ...], member: int, arrival: Arrival) -> None:
        """A member has entered a collective of a group of which this rank is rank 0."""
        call = self.doorkeeper.arrives(key, members, member, arrival)
        if call is not None:
            for each in members:
                self._notify(each, "begins", key, call.arrivals, call.error, call.split_number)

    def _on_begins(self, key: CallKey, arrivals: dict[int, Arrival], error: str | None, split_number: int) -> None:
        """A collective that this rank has entered begins."""
        call = self.awaited.pop(key)
        call.arrivals, call.error, call.split_number = arrivals, error, split_number
        self._release(call.waiters[0])

    def subgroup(self, name: str, members: tuple[int, ...], split: CollectiveCall) -> ProcessGroup:
        """See `Engine`."""
        assert isinstance(split, ProcessCall)
        self.groups[name] = group = ProcessGroup(name, members, split.split_number)
        return group

    def background_of(self, group: Group) -> ProcessGroup:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        name = group.name + BACKGROUND
        if name not in self.groups:
            self.groups[name] = ProcessGroup(name, group.members, group.split, background=True)
        return self.groups[name]  # type: ignore[return-value]

    # Waiting

    def _sleep(self, task: Task) -> None:
        began = time.perf_counter_ns()
        what = waited_for(task) if task.waits_for and not task.is_background else None
        self._poll(lambda: task.strand.park(blocking=False))
        if what is not None:
            self.watch.waits.append((began, time.perf_counter_ns(), what))
        if self.ending:
            raise Unwind

    def _poll(self, until: Callable[[], Any]) -> None:
        """Progress the messages and notes of this process until `until()`."""
        pause = Pause()
        while True:
            with self.mutex:
                if until():
                    return
                self._progress()
                self._report_if_due()
            pause()

    def _progress(self) -> None:
        """Match the messages that have passed, and handle the notes of other ranks.

        If that fails, the other ranks would wait for ever, so all processes end.
        """
        try:
            for message in self.under_way.take_passed():
                self._match(message)
            for note in self.transport.heard():
                kind, *contents = pickle.loads(note)
                self.handlers[kind](*contents)
        except Exception:
            traceback.print_exc()
            self.transport.abort()

    def _notify(self, rank: int, kind: str, *contents: Any) -> None:
        """Call `handlers[kind](*contents)` on the process of `rank`."""
        if rank == self.transport.rank:
            self.handlers[kind](*contents)
        else:
            self.transport.tell(rank, pickle.dumps((kind, *contents)))

    @contextmanager
    def timed(self, task: Task, name: str) -> Iterator[None]:
        """See `Engine`."""
        start = time.perf_counter_ns()
        yield
        self.watch.computes.append((start, time.perf_counter_ns(), name))

    # The end

    def _nobody_can_move(self) -> None:
        self.report_at = time.monotonic() + STUCK

    def _await_the_end(self) -> None:
        super()._await_the_end()
        self.report_at = time.monotonic()  # at once: a program that is over stays so
        self._poll(lambda: self.last_reports or self.presses)

    def _report_if_due(self) -> None:
        """If it is time, and all tasks of this rank wait or are over, report to rank 0 what they wait for."""
        if self.blocked == self.running and time.monotonic() >= self.report_at:
            self.report_at = math.inf  # once
            main = self.tasks[0]
            place = places_of(self.tasks).get(main.rank, "")
            self._notify(0, "report", report_of(main, place, self.groups))

    def _on_report(self, report: Report) -> None:
        """A rank waits, or its program is over. Called on rank 0."""
        reports = self.judge.hears(report)
        if reports is not None:
            for rank in reversed(range(self.transport.size)):
                self._notify(rank, "over", reports)

    def _on_over(self, reports: list[Report]) -> None:
        self.last_reports = reports
        self._unwind()


give_way = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


class Pause:
    """The pause between polls: at first none, then the core is offered to others, then longer and longer sleeps."""

    def __init__(self) -> None:
        self.polls, self.began = 0, time.monotonic()

    def __call__(self) -> None:
        """Pause once."""
        self.polls += 1
        if SPINS < self.polls <= SPINS + YIELDS:
            give_way()
        elif self.polls > SPINS:
            time.sleep(min(max(SHORTEST, (time.monotonic() - self.began) / 10), LONGEST))
