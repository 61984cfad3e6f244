"""The world of processes: one rank here, the others run_on_processes, messages by a `Transport`.

Whoever waits, polls: a line of work that stands in a call moves all that is under way here, more and more rarely, so
that ranks that wait leave the cores to those that compute. A collective begins when the lowest member of its group (by
rank in the group) has heard of all calls, has compared them, and tells the members. How it is noticed that no rank can
move: see `deadlock.py`.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.clock.log import ENTER, POST_RECEIVE, POST_SEND
from parlab.world.errors import MismatchError, Unwind
from parlab.world.processes import deadlock
from parlab.world.processes.transport import Transport, form_of
from parlab.world.processes.wallclock import waited_for
from parlab.world.threads.base import Engine
from parlab.world.threads.diagnosis import difference, other_form, other_label, places_of
from parlab.world.threads.tasks import BACKGROUND, CollectiveCall, Group, Mailbox, Message, Task
from parlab.world.values import Value

SPINS, YIELDS = 5, 15  # polls before the first sleep
SHORTEST, LONGEST = 20e-6, 5e-3  # seconds of a pause; between them, a tenth of what was waited already
STUCK = 0.05  # seconds in a wait before rank 0 hears of it

Key = tuple[str, str, int, int]  # of a way: group, channel, src, dst


class ProcessMailbox(Mailbox):
    """A mailbox between processes: it counts what this end has posted, and keeps what is asked for and not here."""

    __slots__ = ("coming", "key", "posted", "tag")

    def __init__(self, key: Key, tag: int):
        super().__init__(*key[2:])
        self.key = key
        self.tag = tag
        self.posted = {POST_SEND: 0, POST_RECEIVE: 0}
        self.coming: deque[MessageEnd] = deque()


class MessageEnd(Message):
    """A message, as one of its ends sees it. `key` and `number` name it at both ends."""

    leaves: list[Any]  # that it arrives in
    done_at = 0

    def __init__(self, way: ProcessMailbox, end: int, value: Value, name: str, wire: Any):
        super().__init__(way.src, way.dst, value, name)
        self.key, self.end, self.wire = way.key, end, wire  # Sent or Coming
        self.number = way.posted[end]
        way.posted[end] += 1
        self.posted_at = time.perf_counter_ns()


class ProcessGroup(Group):
    """A group of processes. Its `number` tells its messages from those of all groups that share two of its ranks."""

    def __init__(self, name: str, members: tuple[int, ...], number: int):
        super().__init__(name, members)
        self.number = number
        self.met = 0  # collectives that this rank has entered
        self.own: Any = None  # the transport's collectives

    def mailbox(self, channel: str, src: int, dst: int) -> ProcessMailbox:
        """See `Group`."""
        if (channel, src, dst) not in self.mailboxes:
            key = (self.name, channel, self.members[src], self.members[dst])
            self.mailboxes[channel, src, dst] = ProcessMailbox(key, 2 * self.number + (channel == "collectives"))
        return self.mailboxes[channel, src, dst]  # type: ignore[return-value]


class ProcessEngine(Engine):
    """Runs one program on all processes of `transport`; if `native`, with its own collectives, where it has them."""

    world: ProcessGroup

    def __init__(self, transport: Transport, native: bool = False):
        self.transport, self.native = transport, native
        members = tuple(range(transport.size))
        super().__init__([transport.rank], ProcessGroup("world", members, 0))
        self.groups["world"] = self.world
        self.moving: list[MessageEnd] = []  # on the wire
        self.listening: dict[ProcessMailbox, None] = {}  # ways with messages that are asked for
        self.calls: dict[tuple[str, int], CollectiveCall] = {}  # collectives that begin when this rank says so
        self.entered: dict[tuple[str, int], CollectiveCall] = {}  # those that this rank waits for
        self.serial = 0  # of the last split
        self.splits = 0  # that began here
        self.stuck_since = 0.0
        self.reported = False
        self.reports: dict[int, deadlock.Report] = {}  # on rank 0
        self.last_reports: list[deadlock.Report] = []  # when all is over
        self.computed: list[tuple[int, int, str]] = []  # measured: (start, end, name)
        self.stood: list[tuple[int, int, Any]] = []  # measured: (start, end, what for)
        if native:
            self._connect(self.world)

    # Messages

    def post_send(
        self, task: Task, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> MessageEnd:
        """See `Engine`."""
        assert isinstance(box, ProcessMailbox)
        self.check(task)
        leaves = [self.transport.ready(leaf) for leaf in values.leaves(value)]
        shown = None if label is None else str(label)
        header = [values.form(value), _kinds(value), [arrays.nbytes(leaf) for leaf in leaves], shown]
        with self.mutex:
            wire = self.transport.send(json.dumps(header).encode(), leaves, box.dst, box.tag)
            message = MessageEnd(box, POST_SEND, None, name, wire)  # counts as posted
            message.nbytes, message.kept, message.label = nbytes, kept, label
            task.log += (POST_SEND, message)
            self.moving.append(message)
            parked = call and self._parks(task, message, call)
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
            message = MessageEnd(box, POST_RECEIVE, values.mapped(ExpectedArray, like), name, wire)
            message.nbytes, message.expected = values.nbytes(like), label
            task.log += (POST_RECEIVE, message)
            box.coming.append(message)
            self.listening[box] = None
            parked = call and self._parks(task, message, call)
        if parked:
            self._sleep(task)
        return message

    def _arrives(self, message: MessageEnd, header: bytes) -> None:
        """Say where it goes; what does not fit is received too, and dropped."""
        form, kinds, sizes, message.label = json.loads(header)
        expected = values.form(message.value)
        if (form, kinds) == (expected, _kinds(message.value)):
            message.error = other_label(message)
            forms = [form_of(blank) for blank in values.leaves(message.value)]
        else:
            message.error = other_form(message, form, expected)
            forms = [((size,), np.uint8) for size in sizes]
        message.leaves = message.wire.into(forms)
        self.moving.append(message)

    def _passed(self, message: MessageEnd) -> bool:
        if not message.wire.done():
            return False
        message.done_at = time.perf_counter_ns()
        if message.end == POST_RECEIVE and message.error is None:
            leaves = iter(message.leaves)
            message.value = values.mapped(lambda blank: blank.filled(next(leaves)), message.value)
            del message.leaves
        message.wire = None  # it knows the memory, which must die with its last owner
        self._match(message)
        return True

    # Collectives

    def enter(self, task: Task, group: Group, rank: int, name: str, call: str, detail: Any = None) -> dict[int, Any]:
        """See `Engine`."""
        assert isinstance(group, ProcessGroup)
        self.check(task)
        with self.mutex:
            collective = CollectiveCall(group.members, (group.name, group.met))
            group.met += 1
            collective.names[task.rank], collective.calls[rank], collective.details[rank] = name, call, detail
            collective.waiters.append(task)
            task.log += (ENTER, collective)
            self.entered[collective.key] = collective
            self._block(task, collective, f"{name} of group {group.name}" if group is not self.world else name)
            self._tell(group.members[0], "calls", [collective.key, group.members, task.rank, rank, name, call, detail])
        self._sleep(task)
        if collective.error is not None:
            raise MismatchError(collective.error)
        self.serial = collective.serial
        return collective.details

    def _hear_calls(self, said: list[Any]) -> None:
        """A member has entered a collective that begins here."""
        (group, number), members, member, rank, name, call, detail = said
        key = (group, number)
        collective = self.calls.setdefault(key, CollectiveCall(tuple(members), key))
        collective.names[member], collective.calls[rank], collective.details[rank] = name, call, detail
        if len(collective.calls) < len(members):
            return
        del self.calls[key]
        self.splits += detail is not None
        serial = 1 + self.splits * self.transport.size + self.transport.rank
        error = difference(collective, Group(group, collective.members))
        details = [collective.details[rank] for rank in range(len(members))]
        for member in members:
            self._tell(member, "begins", [key, serial, error, collective.names, details])

    def _hear_begins(self, said: list[Any]) -> None:
        """A collective that this rank has entered begins."""
        key, serial, error, names, details = said
        collective = self.entered.pop(tuple(key))
        collective.serial, collective.error = serial, error
        collective.names = {int(member): name for member, name in names.items()}
        collective.details = dict(enumerate(details))
        self._release(collective.waiters[0])

    def subgroup(self, name: str, members: tuple[int, ...]) -> ProcessGroup:
        """See `Engine`: called after a split, or for the group that works beside one."""
        if name not in self.groups:
            of = self.groups.get(name.removesuffix(BACKGROUND))
            number = 2 * self.serial if of is None else of.number + 1  # type: ignore[attr-defined]
            self.groups[name] = group = ProcessGroup(name, members, number)
            if self.native and of is None:
                self._connect(group)
        return self.groups[name]  # type: ignore[return-value]

    def _connect(self, group: ProcessGroup) -> None:
        """The transport's collectives for `group`, and for what works beside it, now that all members are here."""
        for place in (group, self.subgroup(group.name + BACKGROUND, group.members)):
            place.own = self.transport.connect(place.members, place.number)

    def disconnect(self) -> None:
        """Give back what `_connect` has made; all have come to a good end."""
        for group in self.groups.values():
            if (own := getattr(group, "own", None)) is not None:
                own.free()

    def native_of(self, group: Group) -> Callable[..., Any] | None:
        """See `Engine`."""
        own = getattr(group, "own", None)
        return own and (lambda name, *arguments: self._settled(getattr(own, name), arguments))

    def _settled(self, start: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with self.mutex:
            handle, result = start(*arguments)
        self._poll(lambda: self.ending or handle.done())
        if self.ending:
            raise Unwind
        return result

    # Waiting

    def _sleep(self, task: Task) -> None:
        began = time.perf_counter_ns()
        what = waited_for(task) if task.waits_for and not task.is_background else None
        self._poll(lambda: task.park.acquire(blocking=False))
        if what is not None:
            self.stood.append((began, time.perf_counter_ns(), what))
        if self.ending:
            raise Unwind

    def _poll(self, over: Callable[[], Any]) -> None:
        """Move on what is under way until it is `over`."""
        pause = Pause()
        while True:
            with self.mutex:
                if over():
                    return
                self._progress()
                self._report()
            pause()

    def _progress(self) -> None:
        """Move on what can move. If that fails, the others would wait for ever, so all processes end."""
        try:
            self._move_on()
        except Exception:
            traceback.print_exc()
            self.transport.abort()

    def _move_on(self) -> None:
        for way in list(self.listening):
            while way.coming and (header := way.coming[0].wire.header()) is not None:
                self._arrives(way.coming.popleft(), header)
            if not way.coming:
                del self.listening[way]
        if self.moving:
            self.moving = [message for message in self.moving if not self._passed(message)]
        for note in self.transport.heard():
            what, said = json.loads(note)
            getattr(self, f"_hear_{what}")(said)

    def _tell(self, rank: int, what: str, said: Any) -> None:
        if rank == self.transport.rank:
            getattr(self, f"_hear_{what}")(said)
        else:
            self.transport.tell(rank, json.dumps([what, said]).encode())

    @contextmanager
    def timed(self, task: Task, name: str) -> Iterator[None]:
        """See `Engine`."""
        start = time.perf_counter_ns()
        yield
        self.computed.append((start, time.perf_counter_ns(), name))

    # The end

    def _nobody_can_move(self) -> None:
        self.stuck_since, self.reported = time.monotonic(), False

    def _report(self) -> None:
        """Tell rank 0, once, that nothing can move here without the others; at once if the program is over."""
        stuck = self.blocked == self.running and not self.ending
        if stuck and not self.reported and (not self.running or time.monotonic() - self.stuck_since > STUCK):
            self.reported = True
            program = self.tasks[0]
            place = places_of(self.tasks).get(program.rank, "")
            self._tell(0, "report", deadlock.report(program, place, self.groups))

    def _hear_report(self, said: deadlock.Report) -> None:
        self.reports[said["rank"]] = said
        if len(self.reports) == self.transport.size and not deadlock.some_can_move(self.reports):
            reports = [self.reports[rank] for rank in range(self.transport.size)]
            for rank in reversed(range(self.transport.size)):
                self._tell(rank, "over", reports)

    def _hear_over(self, reports: list[deadlock.Report]) -> None:
        self.last_reports = reports
        self._unwind()

    def _await_the_end(self) -> None:
        super()._await_the_end()
        self.reported = False
        self._poll(lambda: self.last_reports or self.presses)


give_way = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no such call


class Pause:
    """Between polls: nothing at first, then the core is offered to others, then left for longer and longer."""

    def __init__(self) -> None:
        self.polls, self.began = 0, time.monotonic()

    def __call__(self) -> None:
        """Sleep for as long as it should last now."""
        self.polls += 1
        if SPINS < self.polls <= SPINS + YIELDS:
            give_way()
        elif self.polls > SPINS:
            time.sleep(min(max(SHORTEST, (time.monotonic() - self.began) / 10), LONGEST))


class ExpectedArray(values.Template):
    """What is expected in the place of an array, and of which library."""

    __slots__ = ("xp",)

    def __init__(self, x: Any):
        super().__init__(x)
        self.xp = np if type(x) is np.ndarray else arrays.namespace(x)

    def filled(self, x: Any) -> Any:
        """It, when it has come as `x`, of this library or of NumPy."""
        return arrays.to_numpy(x) if self.xp is np else self.xp.asarray(x)


def _kinds(value: Value) -> str:
    """The types of the tuples and lists in `value`, which its form does not show."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    elif not isinstance(value, tuple | list):
        return ""
    return f"{type(value).__name__}({','.join(map(_kinds, value))})"
