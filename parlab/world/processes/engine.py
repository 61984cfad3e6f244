"""The engine of ranks as processes: one rank in this process.

A task that waits polls: it moves the messages of this process on (`under_way`), handles the notes of other ranks, then
sleeps, longer and longer. So ranks that wait leave the cores to ranks that compute.

Notes are of four kinds, in two pairs. A rank asks, and one rank answers all:

    Enters  ─▶  Begins    a member enters a collective; rank 0 of the group lets all members go on (`coordinator`)
    Report  ─▶  Over      a rank waits, or its program is over; rank 0 ends the run, as no rank can move (`deadlock`)

Invariant, whenever the mutex is free: a collective that this rank has entered is in `not_begun` until it begins.

A rank reports once each time that all its tasks have been blocked for PATIENCE seconds, and once when its program is
over. The delay saves the notes of short waits; what `deadlock` finds does not depend on it.
"""

from __future__ import annotations

import math
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
from parlab.world.processes.coordinator import Begins, CollectiveKey, Coordinator, Enters, ProcessCollective
from parlab.world.processes.deadlock import Detector, Over, Report, report_of
from parlab.world.processes.mailboxes import ProcessGroup, ProcessMailbox
from parlab.world.processes.messages import MessageEnd, ReceiveEnd, SendEnd, header_of
from parlab.world.processes.pause import Pause
from parlab.world.processes.transport import Transport
from parlab.world.processes.under_way import UnderWay
from parlab.world.processes.wallclock import Measurements, waited_for
from parlab.world.values import Value

PATIENCE = 0.05  # seconds


class ProcessEngine(Engine):
    """Runs one program on the processes of `transport`."""

    world: ProcessGroup

    def __init__(self, transport: Transport):
        self.transport = transport
        super().__init__([transport.rank], ProcessGroup("world", tuple(range(transport.size)), 0))
        self.groups["world"] = self.world
        self.under_way = UnderWay()
        self.measurements = Measurements(transport.ahead, [], [])
        self.not_begun: dict[CollectiveKey, ProcessCollective] = {}
        self.coordinator = Coordinator(transport.rank, transport.size)
        self.detector = Detector(transport.size)  # used on rank 0
        self.report_at = math.inf  # when this rank reports, if all its tasks are blocked then
        self.last_reports: list[Report] = []  # of all ranks, at the end of the run
        self.handlers: dict[type, Callable[[Any], None]] = {
            Enters: self._on_enters,
            Begins: self._on_begins,
            Report: self._on_report,
            Over: self._on_over,
        }

    # The loop

    def _sleep(self, task: Task) -> None:
        """See `Crew`."""
        began = time.perf_counter_ns()
        what = None if task.is_background else waited_for(task)
        self._poll(lambda: task.strand.park(blocking=False))
        if what is not None:
            self.measurements.waits.append((began, time.perf_counter_ns(), what))
        if self.ending:
            raise Unwind

    def _poll(self, until: Callable[[], Any]) -> None:
        """Move the messages and notes of this process on until `until()`."""
        pause = Pause()
        while True:
            with self.mutex:
                if until():
                    return
                self._progress()
                self._report_if_due()
            pause()

    def _progress(self) -> None:
        """Mark the messages that have passed, and handle the notes of other ranks.

        If that fails, the other ranks would wait for ever, so all processes end.
        """
        try:
            for message in self.under_way.take_passed():
                self._mark_passed(message)
            for data in self.transport.heard():
                note = pickle.loads(data)
                self.handlers[type(note)](note)
        except Exception:
            traceback.print_exc()
            self.transport.abort()

    def _tell(self, rank: int, note: Enters | Begins | Report | Over) -> None:
        """Let the process of `rank` handle a note."""
        if rank == self.transport.rank:
            self.handlers[type(note)](note)
        else:
            self.transport.tell(rank, pickle.dumps(note))

    # Messages

    def post_send(
        self, task: Task, box: Mailbox, value: Value, holds: int, name: str, label: Any, *, call: str = ""
    ) -> MessageEnd:
        """See `Engine`."""
        assert isinstance(box, ProcessMailbox)
        self.check(task)
        leaves = [self.transport.prepared(leaf) for leaf in values.leaves(value)]
        header = header_of(value, leaves, label)
        with self.mutex:
            wire = self.transport.send(header, leaves, box.dst, box.tag)
            message = SendEnd(box, name, wire)
            message.nbytes, message.holds, message.label = values.nbytes(value), holds, label
            task.log += (POST_SEND, message)
            self.under_way.offer(message)
            must_wait = call != "" and self._block_until_passed(task, (message,), call)
        if must_wait:
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
            message.nbytes, message.expected_label = values.nbytes(like), label
            task.log += (POST_RECEIVE, message)
            self.under_way.ask(message)
            must_wait = call != "" and self._block_until_passed(task, (message,), call)
        if must_wait:
            self._sleep(task)
        return message

    # Collectives

    def _enter(self, task: Task, group: Group, arrival: Arrival) -> tuple[CollectiveCall, bool]:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        collective = ProcessCollective(group.members, (group.name, group.next_collective))
        group.next_collective += 1
        collective.arrivals[task.rank] = arrival
        task.log += (ENTER, collective)
        self.not_begun[collective.key] = collective
        self._block_until_begun(task, group, collective)  # first: on rank 0 of the group it may begin at once
        self._tell(group.members[0], Enters(collective.key, group.members, task.rank, arrival))
        return collective, True

    def _on_enters(self, note: Enters) -> None:
        """A member has entered a collective of a group of which this rank is rank 0."""
        begins = self.coordinator.add(note)
        if begins is not None:
            for member in note.members:
                self._tell(member, begins)

    def _on_begins(self, note: Begins) -> None:
        """A collective that this rank has entered begins."""
        collective = self.not_begun.pop(note.key)
        collective.arrivals, collective.error, collective.split_id = note.arrivals, note.error, note.split_id
        self._release(collective.waiters[0])

    def subgroup(self, name: str, members: tuple[int, ...], split: CollectiveCall) -> ProcessGroup:
        """See `Engine`."""
        assert isinstance(split, ProcessCollective)
        self.groups[name] = group = ProcessGroup(name, members, split.split_id)
        return group

    def background_of(self, group: Group) -> ProcessGroup:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        name = group.name + BACKGROUND
        if name not in self.groups:
            self.groups[name] = ProcessGroup(name, group.members, group.split_id, background=True)
        return self.groups[name]  # type: ignore[return-value]

    # Reports, and the end

    def _all_blocked(self) -> None:
        """See `Crew`. If this lasts, rank 0 must know."""
        self.report_at = time.monotonic() + PATIENCE

    def _await_the_end(self) -> None:
        """See `Crew`. A program that is over stays so: rank 0 must know at once."""
        super()._await_the_end()
        self.report_at = time.monotonic()
        self._poll(lambda: self.last_reports or self.presses)

    def _report_if_due(self) -> None:
        all_blocked = self.blocked == self.present  # also when the program is over, and no task is present
        if all_blocked and time.monotonic() >= self.report_at:
            self.report_at = math.inf  # once
            main = self.tasks[0]
            place = places_of(self.tasks).get(main.rank, "")
            self._tell(0, report_of(main, place, self.groups))

    def _on_report(self, report: Report) -> None:
        """A rank has reported. Called on rank 0."""
        over = self.detector.add(report)
        if over is not None:
            for rank in reversed(range(self.transport.size)):
                self._tell(rank, over)

    def _on_over(self, note: Over) -> None:
        self.last_reports = note.reports
        self._unwind()

    # Measured times

    @contextmanager
    def timed(self, task: Task, name: str) -> Iterator[None]:
        """See `Engine`."""
        start = time.perf_counter_ns()
        yield
        self.measurements.computes.append((start, time.perf_counter_ns(), name))
