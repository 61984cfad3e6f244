"""The engine of ranks as threads: one thread a rank; a message hands the array over.

The end that posts first leaves a `Message` in the `Mailbox` from one rank to the other. The end that posts second takes
it out. Now both ends are posted, and the message passes.

Matching depends only on the order in which each rank posts, never on which thread came first. So the state in which no
rank can move is unique, and the thread that reaches it last always finds the same error.
"""

from __future__ import annotations

from typing import Any

from parlab.world import values
from parlab.world.engines.base import Engine
from parlab.world.engines.diagnosis import collective_mismatch, deadlock_of, message_mismatch
from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND
from parlab.world.engines.process_state import wake_without_preempting
from parlab.world.engines.tasks import BACKGROUND, Arrival, CollectiveCall, Group, Mailbox, Message, Task
from parlab.world.errors import DeadlockError
from parlab.world.values import Value


class ThreadsEngine(Engine):
    """Runs one program on `size` threads of this process."""

    def __init__(self, size: int):
        super().__init__(list(range(size)), Group("world", tuple(range(size))))
        self.deadlock: DeadlockError | None = None

    def post_send(
        self, task: Task, box: Mailbox, value: Value, holds: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """See `Engine`.

        With a `call` the rank is blocked before it lets the mutex go. The sooner it parks, the less it competes for the
        interpreter with the rank that it has just woken.
        """
        self.check(task)
        with self.mutex:
            if box.receives:
                message = box.receives.popleft()
                like, message.like = message.like, None
                message.value, message.name = value, name
            else:
                message, like = Message(box.src, box.dst, name, value=value), None
                box.sends.append(message)
            message.nbytes = values.nbytes(value)
            del value  # the receiver's last reference, not this one, must free the memory
            message.holds = holds
            message.label = label
            task.log += (POST_SEND, message)
            if like is not None:
                message.error = message_mismatch(message, like)
                self._mark_passed(message)
            must_wait = call != "" and self._block_until_passed(task, (message,), call)
        if must_wait:
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
                message = Message(box.src, box.dst, name, like=values.template(like))
                box.receives.append(message)
            message.expected_label = label
            task.log += (POST_RECEIVE, message)
            if sent:
                message.error = message_mismatch(message, like)
                self._mark_passed(message)
            must_wait = call != "" and self._block_until_passed(task, (message,), call)
        if must_wait:
            self._sleep(task)
        return message

    def _enter(self, task: Task, group: Group, arrival: Arrival) -> tuple[CollectiveCall, bool]:
        """See `Engine`. The last member lets the others go on."""
        collective = group.collective
        if collective is None:
            collective = group.collective = CollectiveCall(group.members)
        collective.arrivals[task.rank] = arrival
        task.log += (ENTER, collective)
        if not collective.all_entered:
            self._block_until_begun(task, group, collective)
            return collective, True
        group.collective = None
        collective.error = collective_mismatch(collective, group.name)
        for waiter in collective.waiters:
            self._release(waiter)
        return collective, False

    def subgroup(self, name: str, members: tuple[int, ...], split: CollectiveCall) -> Group:
        """See `Engine`. The first member that asks makes the group."""
        with self.mutex:
            return self.groups.setdefault(name, Group(name, members))

    def background_of(self, group: Group) -> Group:
        """See `Engine`."""
        name = group.name + BACKGROUND
        with self.mutex:
            return self.groups.setdefault(name, Group(name, group.members))

    def _all_blocked(self) -> None:
        """See `Crew`. All ranks are here, so nothing can come from outside: no rank can move."""
        if not any(task.error for task in self._everyone()):
            try:
                self.deadlock = deadlock_of(self.tasks)
            except Exception as error:  # for instance, a label without a text: the run must still end
                self.tasks[0].error = error
        self._unwind()

    def _scheduled(self) -> None:
        wake_without_preempting()
