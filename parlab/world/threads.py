"""The threads world: one thread a rank, messages by hand-off, and an end that is always the same.

Who holds what: every rank has a `Seat`. Each direction between two ranks of a group has a `Mailbox`; the end that posts
first leaves a `Message` there, the end that posts second takes it out, and the message is matched. A rank that must wait
parks on its own lock until its last unmatched message is matched by the peer (a lock a rank: waking one rank disturbs no
other). All of this state changes under one mutex, held for a few microseconds and never while copying.

Matching depends only on the order in which each rank posts, never on which thread came first. So the state in which no
rank can move is unique, and whichever thread reaches it last finds the same error to report.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import linecache
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from parlab import arrays
from parlab.world import values
from parlab.world.errors import DeadlockError, MismatchError, RequestError, Unwind, WaitsFor, WorldError
from parlab.world.log import HOLD, MEET, POST_RECEIVE, POST_SEND, WAIT
from parlab.world.values import Value

inside_a_rank = contextvars.ContextVar("inside_a_rank", default=False)


class Message:
    """One value on its way from rank `src` to rank `dst`, posted by one end or by both."""

    __slots__ = ("dst", "error", "expected", "index", "label", "matched", "name", "nbytes", "src", "value", "waiter")

    def __init__(self, src: int, dst: int):
        self.src = src
        self.dst = dst
        self.matched = False
        self.waiter: Seat | None = None
        self.value: Value = None
        self.nbytes = 0
        self.name = ""  # the collective that it belongs to, or "message"
        self.label: Any = None
        self.expected: Any = None  # the receiver's label
        self.error: str | None = None
        self.index = -1  # its row in the trace, when the run is over


class Mailbox:
    """The way from rank `src` to rank `dst` in one group and channel: sends or receives that wait for their other end."""

    __slots__ = ("dst", "receives", "sends", "src")

    def __init__(self, src: int, dst: int):
        self.src = src
        self.dst = dst
        self.sends: deque[Message] = deque()
        self.receives: deque[Message] = deque()


class Meeting:
    """A collective call: the members that have entered, each with its call."""

    __slots__ = ("calls", "details", "error", "index", "name", "size", "waiters")

    def __init__(self, name: str, size: int):
        self.name = name
        self.size = size
        self.calls: dict[int, str] = {}  # the rank in the group: its call
        self.details: dict[int, Any] = {}  # what the members tell each other by entering
        self.waiters: list[Seat] = []
        self.error: str | None = None
        self.index = -1


class Group:
    """Ranks that talk to each other: `members` are their ranks in the whole run, by their rank in the group."""

    def __init__(self, name: str, members: tuple[int, ...]):
        self.name = name
        self.members = members
        self.mailboxes: dict[tuple[str, int, int], Mailbox] = {}
        self.meeting: Meeting | None = None

    def mailbox(self, channel: str, src: int, dst: int) -> Mailbox:
        """The way from group rank `src` to group rank `dst`; both ends ask, the first one builds it."""
        box = Mailbox(self.members[src], self.members[dst])
        return self.mailboxes.setdefault((channel, src, dst), box)


class Seat:
    """What the engine knows of one rank."""

    def __init__(self, rank: int):
        self.rank = rank
        self.park = threading.Lock()  # held while the rank runs; released by whoever wakes it
        self.park.acquire()
        self.missing = 0  # unmatched messages, or one meeting, that the rank is parked for
        self.waits_for: tuple[Message, ...] | Meeting = ()
        self.call = ""  # the call it is parked in
        self.log: list[Any] = []
        self.printed = False
        self.open: dict[Any, str] = {}  # requests that were not waited for yet: what each was
        self.held: dict[int, Held] = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None

    def hold(self, value: Value, name: str, *, logged: bool) -> None:
        """Count the arrays in `value` as held until their memory dies; `logged`: their birth is in the log already."""
        for leaf in values.leaves(value):
            owner = arrays.owning_buffer(leaf)
            if id(owner) not in self.held:
                held = Held(owner, _died)
                held.seat, held.key, held.name, held.nbytes = self, id(owner), name, arrays.nbytes(owner)
                self.held[id(owner)] = held
                if not logged:
                    self.log += (HOLD, (name, held.nbytes))


class Held(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to memory that a rank holds."""

    __slots__ = ("key", "name", "nbytes", "seat")
    seat: Seat
    key: int
    name: str
    nbytes: int


def _died(held: Held) -> None:
    if held.seat.held.pop(held.key, None) is not None:
        held.seat.log += (HOLD, (held.name, -held.nbytes))


class ThreadsEngine:
    """Runs one program on `size` threads. An engine runs once."""

    def __init__(self, size: int):
        self.seats = [Seat(rank) for rank in range(size)]
        self.world = Group("world", tuple(range(size)))
        self.groups: dict[Any, Group] = {}
        self.mutex = threading.Lock()
        self.running = size  # ranks that have not left the program
        self.blocked = 0  # of these, the parked ones; whoever wakes a rank counts it out, so the count is never late
        self.ending = False
        self.deadlock: DeadlockError | None = None
        self.done = threading.Lock()  # released when the last rank has left
        self.done.acquire()

    # Messages

    def post_send(self, seat: Seat, box: Mailbox, value: Value, nbytes: int, name: str, label: Any) -> Message:
        """Offer `value`, which becomes the receiver's, in `box`."""
        self._check_running()
        with self.mutex:
            if box.receives:
                message = box.receives.popleft()
                message.label = label
                message.name = name
                self._deliver(message, value)
                del value  # before the receiver wakes: its last reference, not ours, must be the one that frees
                self._match(message)
            else:
                message = Message(box.src, box.dst)
                message.value = value
                message.nbytes = nbytes
                message.name = name
                message.label = label
                box.sends.append(message)
            seat.log += (POST_SEND, message)
        return message

    def post_receive(self, seat: Seat, box: Mailbox, like: Value, nbytes: int, name: str, label: Any) -> Message:
        """Ask for the next value in `box`; it must have the form of `like`."""
        self._check_running()
        with self.mutex:
            if box.sends:
                message = box.sends.popleft()
                value, message.value = message.value, like
                message.expected = label
                self._deliver(message, value)
                self._match(message)
            else:
                message = Message(box.src, box.dst)
                message.value = like
                message.nbytes = nbytes
                message.name = name
                message.expected = label
                box.receives.append(message)
            seat.log += (POST_RECEIVE, message)
        return message

    def _deliver(self, message: Message, value: Value) -> None:
        """Compare what was sent with what `message.value` says is expected, and put the value in its place."""
        like = message.value
        if not values.same_form(value, like):
            message.error = (
                f"a message from rank {message.src} to rank {message.dst}{_shown(message.label)} holds "
                f"{values.form(value)}, but rank {message.dst} expects {values.form(like)}; messages between two ranks "
                "match in the order in which they are posted"
            )
        elif message.label != message.expected and message.label is not None and message.expected is not None:
            message.error = (
                f"rank {message.dst} expected {message.expected} from rank {message.src}, got {message.label}; messages "
                "between two ranks match in the order in which they are posted"
            )
        message.value = value

    def _match(self, message: Message) -> None:
        message.matched = True
        if message.waiter is not None:
            self._release(message.waiter)
            message.waiter = None

    def _release(self, seat: Seat) -> None:
        seat.missing -= 1
        if not seat.missing:
            self.blocked -= 1
            seat.park.release()

    def wait(self, seat: Seat, messages: tuple[Message, ...], call: str) -> None:
        """Return when both ends of every message are posted; `call` names the waiting call in a deadlock."""
        for message in messages:
            seat.log += (WAIT, message)
        with self.mutex:
            for message in messages:
                if not message.matched:
                    message.waiter = seat
                    seat.missing += 1
            if not seat.missing:
                return
            self._block(seat, messages, call)
        self._sleep(seat)

    def take(self, seat: Seat, message: Message) -> Value:
        """The value of a matched message, for its receiver, who from now on holds it."""
        if message.error is not None:
            raise MismatchError(message.error)
        value, message.value = message.value, None
        seat.hold(value, "received", logged=True)
        return value

    # Collectives

    def meet(self, seat: Seat, group: Group, rank: int, name: str, call: str, detail: Any = None) -> dict[int, Any]:
        """Wait until every member of `group` has entered its next collective, and compare the calls.

        Returns:
            The `detail` of every member, by its rank in the group.

        Raises:
            MismatchError: on every member, if two calls differ.
        """
        self._check_running()
        with self.mutex:
            meeting = group.meeting
            if meeting is None:
                meeting = group.meeting = Meeting(name, len(group.members))
            meeting.calls[rank] = call
            meeting.details[rank] = detail
            seat.log += (MEET, meeting)
            last = len(meeting.calls) == meeting.size
            if last:
                group.meeting = None
                meeting.error = _differ(meeting, group)
                for waiter in meeting.waiters:
                    self._release(waiter)
            else:
                meeting.waiters.append(seat)
                seat.missing = 1
                self._block(seat, meeting, f"{name} of group {group.name}" if group is not self.world else name)
        if not last:
            self._sleep(seat)
        if meeting.error is not None:
            raise MismatchError(meeting.error)
        return meeting.details

    def subgroup(self, key: Any, name: str, members: tuple[int, ...]) -> Group:
        """The group that all its members name by the same `key`."""
        with self.mutex:
            return self.groups.setdefault(key, Group(name, members))

    # Parking, and the end

    def _check_running(self) -> None:
        if self.ending:
            if not inside_a_rank.get():
                raise WorldError("the run is over: a Comm works only inside the program that it was given to")
            raise Unwind

    def _block(self, seat: Seat, waits_for: tuple[Message, ...] | Meeting, call: str) -> None:
        seat.waits_for = waits_for
        seat.call = call
        self.blocked += 1
        if self.blocked == self.running:
            self._nobody_can_move()

    def _sleep(self, seat: Seat) -> None:
        seat.park.acquire()
        if self.ending:
            raise Unwind

    def _nobody_can_move(self) -> None:
        stuck = [seat for seat in self.seats if seat.missing]
        frames = sys._current_frames()
        waiting = {
            seat.rank: WaitsFor(seat.rank, seat.call, self._peers(seat), _where(frames.get(seat.thread.ident)))  # type: ignore
            for seat in stuck
        }
        self.deadlock = DeadlockError(waiting, frozenset(seat.rank for seat in self.seats) - waiting.keys())
        self._unwind()

    def _peers(self, seat: Seat) -> tuple[int, ...]:
        """The ranks without which `seat` cannot move on."""
        if isinstance(seat.waits_for, Meeting):
            meeting = seat.waits_for
            group = next(g for g in (self.world, *self.groups.values()) if g.meeting is meeting)
            return tuple(member for rank, member in enumerate(group.members) if rank not in meeting.calls)
        unmatched = [message for message in seat.waits_for if not message.matched]
        return tuple(sorted({message.dst if message.src == seat.rank else message.src for message in unmatched}))

    def _unwind(self) -> None:
        """Send every parked rank home; the others follow at their next call."""
        self.ending = True
        for seat in self.seats:
            if seat.missing:
                seat.missing = 0
                seat.park.release()

    def _leave(self, seat: Seat) -> None:
        with self.mutex:
            self.running -= 1
            if self.running and self.blocked == self.running and not self.ending:
                self._nobody_can_move()
            if not self.running:
                self.done.release()

    def run(self, body: Callable[[int], Any]) -> None:
        """Run `body(rank)` on every rank; afterwards the seats hold logs, results and errors.

        The threads start parked and are let go together, so that an interrupt during the start finds them in a state
        that can be unwound.
        """
        for seat in self.seats:
            context = contextvars.copy_context()
            seat.thread = threading.Thread(
                target=context.run, args=(self._occupy, seat, body), name=f"rank {seat.rank}", daemon=True
            )
        with _collector_paused():
            try:
                for seat in self.seats:
                    seat.thread.start()  # type: ignore[union-attr]
                for seat in self.seats:
                    seat.park.release()
                while not self.done.acquire(timeout=0.5):  # Windows notices Ctrl-C only between the waits
                    pass
            except BaseException:
                self._interrupt()
                raise
            finally:
                self.ending = True
                for seat in self.seats:
                    if seat.thread.is_alive():  # type: ignore[union-attr]
                        seat.thread.join()  # type: ignore[union-attr]
                    seat.held.clear()  # what dies from now on is no longer the run's affair

    def _occupy(self, seat: Seat, body: Callable[[int], Any]) -> None:
        inside_a_rank.set(True)
        try:
            self._sleep(seat)
            seat.result = body(seat.rank)
            if seat.open:
                raise RequestError(
                    f"rank {seat.rank} returned without waiting for {', '.join(seat.open.values())}: call wait() on "
                    "every request"
                )
        except Unwind:
            pass
        except BaseException as error:
            seat.error = error
        finally:
            self._leave(seat)

    def _interrupt(self) -> None:
        """End all ranks early: parked ones are released, running ones get an exception at their next line of Python."""
        with self.mutex:
            self.ending = True
            self._unwind()
        for seat in self.seats:
            if seat.park.locked():  # it stands at the start, or runs and will find its lock open
                seat.park.release()
            if seat.thread is not None and seat.thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(seat.thread.ident), ctypes.py_object(Unwind))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic collector, memory dies exactly where the last reference goes, the same in every run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _differ(meeting: Meeting, group: Group) -> str | None:
    """How the members' calls contradict each other, as text."""
    first = meeting.calls[0]
    for rank in range(1, meeting.size):
        call = meeting.calls[rank]
        if call != first:
            return (
                f"the ranks of group {group.name} entered different collectives: rank {group.members[0]} calls {first}, "
                f"rank {group.members[rank]} calls {call}"
            )
    return None


def _shown(label: Any) -> str:
    return "" if label is None else f" ({label})"


WORLD = str(Path(__file__).parent)


def _where(frame: FrameType | None) -> str:
    """The line of the program in which a rank stands: the innermost one outside this package."""
    while frame is not None and frame.f_code.co_filename.startswith(WORLD):
        frame = frame.f_back
    if frame is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f", at line {frame.f_lineno} of {frame.f_code.co_name}" + (f": {line}" if line else "")
