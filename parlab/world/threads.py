"""The threads world: one thread a rank, messages by hand-off, and an end that is always the same.

Who holds what: every rank has a `Seat`. Each direction between two ranks of a group has a `Mailbox`; the end that posts
first leaves a `Message` there, the end that posts second takes it out, and the message is matched.

Matching depends only on the order in which each rank posts, never on which thread came first. So the state in which no
rank can move is unique, and whichever thread reaches it last finds the same error to report.
"""

from __future__ import annotations

from typing import Any

from parlab.world import values
from parlab.world.diagnosis import deadlock_of, difference, misfit
from parlab.world.engine import Engine
from parlab.world.errors import MismatchError
from parlab.world.log import MEET, POST_RECEIVE, POST_SEND
from parlab.world.seats import Group, Mailbox, Meeting, Message, Seat
from parlab.world.surroundings import wake_without_preempting
from parlab.world.values import Value


class ThreadsEngine(Engine):
    """Runs one program on `size` threads of this process."""

    def __init__(self, size: int):
        super().__init__(list(range(size)), Group("world", tuple(range(size))))

    def post_send(
        self, seat: Seat, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """See `Engine`.

        A rank that will wait anyway parks without letting go of the mutex in between: the sooner it is parked, the less
        the rank that it woke last has to contend with it for the interpreter.
        """
        self.check(seat)
        with self.mutex:
            if box.receives:
                message = box.receives.popleft()
                like, message.value, message.name = message.value, value, name
            else:
                message, like = Message(box.src, box.dst, value, name), None
                box.sends.append(message)
            del value  # before the receiver has it: its last reference, not ours, must be the one that frees
            message.nbytes = nbytes
            message.kept = kept
            message.label = label
            seat.log += (POST_SEND, message)
            if like is not None:
                message.error = misfit(message, like)
                self._match(message)
            parked = call and self._parks(seat, message, call)
        if parked:
            self._sleep(seat)
        return message

    def post_receive(self, seat: Seat, box: Mailbox, like: Value, name: str, label: Any, *, call: str = "") -> Message:
        """See `Engine`."""
        self.check(seat)
        with self.mutex:
            sent = bool(box.sends)
            if sent:
                message = box.sends.popleft()
            else:
                message = Message(box.src, box.dst, values.template(like), name)
                box.receives.append(message)
            message.expected = label
            seat.log += (POST_RECEIVE, message)
            if sent:
                message.error = misfit(message, like)
                self._match(message)
            parked = call and self._parks(seat, message, call)
        if parked:
            self._sleep(seat)
        return message

    def meet(self, seat: Seat, group: Group, rank: int, name: str, call: str, detail: Any = None) -> dict[int, Any]:
        """See `Engine`."""
        self.check(seat)
        with self.mutex:
            meeting = group.meeting
            if meeting is None:
                meeting = group.meeting = Meeting(group.members)
            meeting.names[seat.rank], meeting.calls[rank], meeting.details[rank] = name, call, detail
            seat.log += (MEET, meeting)
            last = len(meeting.calls) == len(group.members)
            if last:
                group.meeting = None
                meeting.error = difference(meeting, group)
                for waiter in meeting.waiters:
                    self._release(waiter)
            else:
                meeting.waiters.append(seat)
                self._block(seat, meeting, f"{name} of group {group.name}" if group is not self.world else name)
        if not last:
            self._sleep(seat)
        if meeting.error is not None:
            raise MismatchError(meeting.error)
        return meeting.details

    def subgroup(self, name: str, members: tuple[int, ...]) -> Group:
        """See `Engine`; the first member that asks builds it."""
        with self.mutex:
            return self.groups.setdefault(name, Group(name, members))

    def _nobody_can_move(self) -> None:
        if not any(seat.error for seat in self._everyone()):
            try:
                self.deadlock = deadlock_of(self.seats)
            except Exception as error:  # a label that cannot be shown, say: the run must end all the same
                self.seats[0].error = error
        self._unwind()

    def _scheduled(self) -> None:
        wake_without_preempting()
