"""The engine of ranks as processes: one rank in this process, messages by a `Transport`.

A task that waits polls: it progresses all messages of this process, then sleeps, longer and longer. So ranks that wait
leave the cores to ranks that compute.

A collective begins at rank 0 of its group. Each member sends its arrival to rank 0. Rank 0 compares them and releases
the members. `deadlock.py` says how the processes find out that no rank can move.

Invariant, whenever the mutex is free: a message of this process is in `moving`, or in the `no_header_yet` of a mailbox
that is `listening`, until it has passed, and in no other place; a collective that this rank has entered is in `awaited`
until rank 0 of its group releases it.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from parlab.arrays import is_array
from parlab.world import values
from parlab.world.engines.base import Engine
from parlab.world.engines.diagnosis import difference, places_of
from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import BACKGROUND, Arrival, CollectiveCall, Group, Mailbox, Task
from parlab.world.errors import Unwind
from parlab.world.processes import deadlock
from parlab.world.processes.messages import ExpectedArray, MessageEnd, ProcessGroup, ProcessMailbox, header_of
from parlab.world.processes.transport import Transport
from parlab.world.processes.wallclock import waited_for
from parlab.world.values import Value

SPINS, YIELDS = 5, 15  # polls without a pause, then polls that offer the core, before the first sleep
SHORTEST, LONGEST = 20e-6, 5e-3  # seconds of a sleep; between them, a tenth of the time since the first poll
STUCK = 0.05  # seconds in a wait before this rank reports it to rank 0


class ProcessEngine(Engine):
    """Runs one program on the processes of `transport`. `native`: with its collectives, where it has them."""

    world: ProcessGroup

    def __init__(self, transport: Transport, native: bool = False):
        self.transport, self.native = transport, native
        members = tuple(range(transport.size))
        super().__init__([transport.rank], ProcessGroup("world", members, 0))
        self.groups["world"] = self.world
        self.moving: list[MessageEnd] = []  # messages on the wire
        self.listening: dict[ProcessMailbox, None] = {}  # mailboxes with receives that wait for a header
        self.awaited: dict[tuple[str, int], CollectiveCall] = {}  # collectives in which this rank waits
        self.to_release: dict[tuple[str, int], CollectiveCall] = {}  # collectives, when their last member has entered
        self.last_split = 0  # the number of the last split that this rank took part in
        self.splits_released = 0  # by this rank
        self.report_at = math.inf  # when this rank tells rank 0 what it waits for, if it still waits then
        self.reports: dict[int, deadlock.Report] = {}  # on rank 0
        self.last_reports: list[deadlock.Report] = []  # of all ranks, at the end of the run
        self.computes: list[tuple[int, int, str]] = []  # measured: (start, end, name)
        self.waits: list[tuple[int, int, Any]] = []  # measured: (start, end, reason)
        self.handlers: dict[str, Callable[[Any], None]] = {  # of the notes of other ranks, by their kind
            "enters": self._on_enters,
            "begins": self._on_begins,
            "report": self._on_report,
            "over": self._on_over,
        }
        if native:
            self._connect(self.world)

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
            message = MessageEnd(box, POST_SEND, name, wire)
            message.nbytes, message.kept, message.label = nbytes, kept, label
            task.log += (POST_SEND, message)
            self.moving.append(message)
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
            message = MessageEnd(box, POST_RECEIVE, name, wire, like=values.mapped(ExpectedArray, like))
            message.nbytes, message.expected = values.nbytes(like), label
            task.log += (POST_RECEIVE, message)
            box.no_header_yet.append(message)
            self.listening[box] = None
            parked = call and self._park(task, message, call)
        if parked:
            self._sleep(task)
        return message

    # Collectives

    def _enter(self, task: Task, group: Group, arrival: Arrival) -> tuple[CollectiveCall, bool]:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        collective = CollectiveCall(group.members, (group.name, group.next_collective))
        group.next_collective += 1
        collective.arrivals[task.rank] = arrival
        task.log += (ENTER, collective)
        self.awaited[collective.key] = collective
        self._await_members(task, group, collective)  # first: on rank 0 of the group the note may release this task
        self._notify(group.members[0], "enters", [collective.key, group.members, task.rank, arrival])
        return collective, True

    def _on_enters(self, payload: list[Any]) -> None:
        """A member has entered a collective that this rank releases."""
        (group, number), members, member, arrival = payload
        key = (group, number)
        collective = self.to_release.setdefault(key, CollectiveCall(tuple(members), key))
        collective.arrivals[member] = Arrival(*arrival)
        if not collective.all_entered:
            return
        del self.to_release[key]
        is_split = collective.arrivals[member].detail is not None
        split = self._next_split() if is_split else None
        error = difference(collective, group)
        arrivals = [collective.arrivals[member] for member in members]
        for member in members:
            self._notify(member, "begins", [key, split, error, arrivals])

    def _next_split(self) -> int:
        """The number of a split that this rank releases. No other split has it: modulo the size it is 1 + this rank."""
        self.splits_released += 1
        return 1 + self.splits_released * self.transport.size + self.transport.rank

    def _on_begins(self, payload: list[Any]) -> None:
        """A collective that this rank has entered begins."""
        key, split, error, arrivals = payload
        collective = self.awaited.pop(tuple(key))
        if split is not None:
            self.last_split = split
        collective.error = error
        for member, arrival in zip(collective.members, arrivals, strict=True):
            collective.arrivals[member] = Arrival(*arrival)
        self._release(collective.waiters[0])

    def subgroup(self, name: str, members: tuple[int, ...]) -> ProcessGroup:
        """See `Engine`. Called after a split, or for a group of background collectives."""
        if name not in self.groups:
            foreground: Any = self.groups.get(name.removesuffix(BACKGROUND))
            if foreground is None:
                self.groups[name] = group = ProcessGroup(name, members, self.last_split)
                if self.native:
                    self._connect(group)
            else:
                self.groups[name] = ProcessGroup(name, members, foreground.split, background=True)
        return self.groups[name]  # type: ignore[return-value]

    def _connect(self, group: ProcessGroup) -> None:
        """Make the transport's collectives for `group` and for its background, now that all members call this."""
        for each in (group, self.subgroup(group.name + BACKGROUND, group.members)):
            each.native_collectives = self.transport.connect(each.members, each.tag("collectives"))

    def disconnect(self) -> None:
        """Free the transport's collectives, after a run without an error."""
        for group in self.groups.values():
            assert isinstance(group, ProcessGroup)
            if group.native_collectives is not None:
                group.native_collectives.free()

    def native_of(
        self, group: Group, algorithm: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Callable[[], Any] | None:
        """See `Engine`. The transport's collectives have the names of our algorithms."""
        assert isinstance(group, ProcessGroup)
        start = getattr(group.native_collectives, getattr(algorithm, "__name__", ""), None)
        if start is None or not all(map(_known_to_libraries, arguments)):
            return None
        return lambda: self._settled(start, arguments)

    def _settled(self, start: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Start a collective of the transport, and return its result when this rank's part is over."""
        with self.mutex:
            handle, result = start(*arguments)
        self._poll(lambda: self.ending or handle.finish())
        if self.ending:
            raise Unwind
        return result

    # Waiting

    def _sleep(self, task: Task) -> None:
        began = time.perf_counter_ns()
        what = waited_for(task) if task.waits_for and not task.is_background else None
        self._poll(lambda: task.strand.park(blocking=False))
        if what is not None:
            self.waits.append((began, time.perf_counter_ns(), what))
        if self.ending:
            raise Unwind

    def _poll(self, until: Callable[[], Any]) -> None:
        """Progress the messages of this process until `until()`."""
        pause = Pause()
        while True:
            with self.mutex:
                if until():
                    return
                self._progress_or_abort()
                self._report_if_due()
            pause()

    def _progress_or_abort(self) -> None:
        """Progress all messages. If that fails, the other ranks would wait for ever, so all processes end."""
        try:
            self._progress()
        except Exception:
            traceback.print_exc()
            self.transport.abort()

    def _progress(self) -> None:
        """Receive what has arrived, complete what has passed, and handle the notes of other ranks."""
        for box in list(self.listening):
            while box.no_header_yet and (header := box.no_header_yet[0].wire.receive_header()) is not None:
                message = box.no_header_yet.popleft()
                message.meet(header)
                self.moving.append(message)
            if not box.no_header_yet:
                del self.listening[box]
        for message in list(self.moving):
            if message.complete():
                self.moving.remove(message)
                self._match(message)
        for note in self.transport.heard():
            kind, payload = json.loads(note)
            self.handlers[kind](payload)

    def _notify(self, rank: int, kind: str, payload: Any) -> None:
        """Call `handlers[kind](payload)` on the process of `rank`."""
        if rank == self.transport.rank:
            self.handlers[kind](payload)
        else:
            self.transport.tell(rank, json.dumps([kind, payload]).encode())

    @contextmanager
    def timed(self, task: Task, name: str) -> Iterator[None]:
        """See `Engine`."""
        start = time.perf_counter_ns()
        yield
        self.computes.append((start, time.perf_counter_ns(), name))

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
            self._notify(0, "report", deadlock.report(main, place, self.groups))

    def _on_report(self, report: deadlock.Report) -> None:
        self.reports[report["rank"]] = report
        if len(self.reports) == self.transport.size and not deadlock.some_can_move(self.reports):
            reports = [self.reports[rank] for rank in range(self.transport.size)]
            for rank in reversed(range(self.transport.size)):
                self._notify(rank, "over", reports)

    def _on_over(self, reports: list[deadlock.Report]) -> None:
        self.last_reports = reports
        self._unwind()


def _known_to_libraries(argument: Any) -> bool:
    """Whether an argument of a collective is no array, or one that every library of collectives knows."""
    if isinstance(argument, list) and argument:
        argument = argument[0]
    return not is_array(argument) or (isinstance(argument, np.ndarray) and argument.dtype != np.float16)


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
