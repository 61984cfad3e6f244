"""The threads world: one thread a rank, messages by hand-off, and an end that is always the same.

Who holds what: every rank has a `Task`. Each direction between two ranks of a group has a `Mailbox`; the end that posts
first leaves a `Message` there, the end that posts second takes it out, and the message is matched.

Matching depends only on the order in which each rank posts, never on which thread came first. So the state in which no
rank can move is unique, and whichever thread reaches it last finds the same error to report.
"""

from __future__ import annotations

from typing import Any

from parlab.world import values
from parlab.world.clock.log import ENTER, POST_RECEIVE, POST_SEND
from parlab.world.errors import MismatchError
from parlab.world.threads.base import Engine
from parlab.world.threads.diagnosis import deadlock_of, difference, misfit
from parlab.world.threads.process_state import wake_without_preempting
from parlab.world.threads.tasks import CollectiveCall, Group, Mailbox, Message, Task
from parlab.world.values import Value


class ThreadsEngine(Engine):
    """Runs one program on `size` threads of this process."""

    def __init__(self, size: int):
        super().__init__(list(range(size)), Group("world", tuple(range(size))))

    def post_send(
        self, task: Task, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """See `Engine`.

        A rank that will wait anyway parks without letting go of the mutex in between: the sooner it is parked, the less
        the rank that it woke last has to contend with it for the interpreter.
        """
        self.check(task)
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
            task.log += (POST_SEND, message)
            if like is not None:
                message.error = misfit(message, like)
                self._match(message)
            parked = call and self._parks(task, message, call)
        if parked:
            self._sleep(task)
        return message

    def post_receive(self, task: Task, box: Mailbox, like: Value, name: str, label: Any, *, call: str = "") -> Message:
        """See `Engine`."""
        self.check(task)
        with self.mutex:
            sent = bool(box.sends)
            if sent:
                message = box.sends.popleft()
            else:
                message = Message(box.src, box.dst, values.template(like), name)
                box.receives.append(message)
            message.expected = label
            task.log += (POST_RECEIVE, message)
            if sent:
                message.error = misfit(message, like)
                self._match(message)
            parked = call and self._parks(task, message, call)
        if parked:
            self._sleep(task)
        return message

    def enter(self, task: Task, group: Group, rank: int, name: str, call: str, detail: Any = None) -> dict[int, Any]:
        """See `Engine`."""
        self.check(task)
        with self.mutex:
            collective = group.collective
            if collective is None:
                collective = group.collective = CollectiveCall(group.members)
            collective.names[task.rank], collective.calls[rank], collective.details[rank] = name, call, detail
            task.log += (ENTER, collective)
            last = len(collective.calls) == len(group.members)
            if last:
                group.collective = None
                collective.error = difference(collective, group)
                for waiter in collective.waiters:
                    self._release(waiter)
            else:
                collective.waiters.append(task)
                self._block(task, collective, f"{name} of group {group.name}" if group is not self.world else name)
        if not last:
            self._sleep(task)
        if collective.error is not None:
            raise MismatchError(collective.error)
        return collective.details

    def subgroup(self, name: str, members: tuple[int, ...]) -> Group:
        """See `Engine`; the first member that asks builds it."""
        with self.mutex:
            return self.groups.setdefault(name, Group(name, members))

    def _nobody_can_move(self) -> None:
        if not any(task.error for task in self._everyone()):
            try:
                self.deadlock = deadlock_of(self.tasks)
            except Exception as error:  # a label that cannot be shown, say: the run must end all the same
                self.tasks[0].error = error
        self._unwind()

    def _scheduled(self) -> None:
        wake_without_preempting()
