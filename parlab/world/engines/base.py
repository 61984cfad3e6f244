"""The base of all engines: what a `Comm` calls to send, to receive, to enter a collective, and to wait.

A task waits for one of three things, and each happens once:

    messages        until each has passed
    a collective    until it begins: all members have entered
    a signal        until it is raised, by another task of the rank

`crew.py` says how a task is blocked meanwhile, and how it is woken. `engines/threads.py` and `processes/engine.py` say
how messages reach the other ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.engines.crew import Crew
from parlab.world.engines.log import AWAIT, SIGNAL, WAIT
from parlab.world.engines.tasks import Arrival, CollectiveCall, Group, Mailbox, Message, Signal, Task
from parlab.world.errors import MismatchError
from parlab.world.values import Value


class Engine(Crew):
    """Runs one program, once, on the `ranks` of this process: all ranks of the `world`, or one of them."""

    def __init__(self, ranks: list[int], world: Group):
        super().__init__(ranks)
        self.world = world
        self.groups: dict[str, Group] = {}  # by name: those of splits, and those for collectives in the background

    # Each engine does these in its own way

    @abstractmethod
    def post_send(
        self, task: Task, box: Mailbox, value: Value, holds: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """Offer `value` in `box`; the receiver will own it. If `call` is not empty, wait until it has passed.

        The message `holds` so many bytes at its sender until it has passed.
        """

    @abstractmethod
    def post_receive(self, task: Task, box: Mailbox, like: Value, name: str, label: Any, *, call: str = "") -> Message:
        """Ask for the next value in `box`, of the form of `like`. If `call` is not empty, wait until it has passed."""

    @abstractmethod
    def _enter(self, task: Task, group: Group, arrival: Arrival) -> tuple[CollectiveCall, bool]:
        """Log the arrival, and add it to the next collective of `group`. Called with the mutex held.

        Returns:
            The collective, and whether `task` must wait until it begins.
        """

    @abstractmethod
    def subgroup(self, name: str, members: tuple[int, ...], split: CollectiveCall) -> Group:
        """The group of this name, which `split` makes. All its members call this."""

    @abstractmethod
    def background_of(self, group: Group) -> Group:
        """The group of the same ranks for collectives in the background."""

    def timed(self, task: Task, name: str) -> AbstractContextManager[None]:
        """The context that `comm.compute(name)` returns. An engine with a clock measures the time inside."""
        return nullcontext()

    def run_algorithm(self, comm: Any, group: Group, algorithm: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run `algorithm(comm, *arguments)` of a collective of `group`, or the library's own in its place."""
        return algorithm(comm, *arguments)

    # Messages

    def _mark_passed(self, message: Message) -> None:
        """The message has passed: release the task that waits for it."""
        message.passed = True
        if message.waiter is not None:
            waiter, message.waiter = message.waiter, None
            self._release(waiter)

    def _block_until_passed(self, task: Task, messages: tuple[Message, ...], call: str) -> bool:
        """Let `task` wait for `messages` in `call`. Returns False if all have passed: then the task need not sleep."""
        for message in reversed(messages):  # of a sendrecv the receive comes first: the rank needs its value
            task.log += (WAIT, message)
        late = [message for message in messages if not message.passed]
        if not late:
            return False
        for message in late:
            message.waiter = task
        self._block(task, messages, call, len(late))
        return True

    def wait(self, task: Task, messages: tuple[Message, ...], call: str) -> None:
        """Return when every message has passed; `call` names the waiting call in a deadlock."""
        self.check(task)
        with self.mutex:
            must_wait = self._block_until_passed(task, messages, call)
        if must_wait:
            self._sleep(task)

    def take(self, task: Task, message: Message) -> Value:
        """The value of a message that has passed. Its receiver holds it from now on."""
        if message.error is not None:
            raise MismatchError(message.error)
        value, message.value = message.value, None
        if type(value) is np.ndarray:  # a copy, which owns its memory
            task.memory.watch(value, "received", message.nbytes)
            return value
        for array in values.leaves(value):
            owner = arrays.owning_buffer(array)
            task.memory.watch(owner, "received", arrays.nbytes(owner))
        return value

    # Collectives

    def enter(self, task: Task, group: Group, arrival: Arrival) -> CollectiveCall:
        """Wait until every member of `group` has entered its next collective, and compare the calls.

        On the simulated clock nobody waits here, unless the collective is a split.

        Returns:
            The collective, with the arrival of every member.

        Raises:
            MismatchError: on every member, if two calls differ.
        """
        self.check(task)
        with self.mutex:
            collective, must_wait = self._enter(task, group, arrival)
        if must_wait:
            self._sleep(task)
        if collective.error is not None:
            raise MismatchError(collective.error)
        return collective

    def _block_until_begun(self, task: Task, group: Group, collective: CollectiveCall) -> None:
        """Let `task` wait until all members have entered."""
        collective.waiters.append(task)
        name = collective.arrivals[task.rank].name
        self._block(task, collective, name if group is self.world else f"{name} of group {group.name}")

    # Collectives in the background, and their signals

    def spawn(self, main: Task, work: Callable[[Task], Any], after: Signal | None) -> Signal:
        """Run `work(task)` in a background task of `main`'s rank, after the signal `after`.

        Returns the signal that the task raises at its end; `signal.task.result` is then the result.
        """
        self.check(main)
        task = Task(main.rank, main)
        begin, done = Signal(main), Signal(task)

        def body(task: Task) -> None:
            self.await_signal(task, begin, "start")  # on the simulated clock, it starts when `main` makes this call
            if after is not None:
                self.await_signal(task, after, "queue")
            nonlocal work
            task.result = work(task)
            del work  # its memory must die in the program's task, which this signal wakes
            self.raise_signal(task, done)

        self.raise_signal(main, begin)
        self._run_beside(main, task, body)
        return done

    def raise_signal(self, task: Task, signal: Signal) -> None:
        """Release the tasks that wait for `signal`."""
        task.log += (SIGNAL, signal)
        with self.mutex:
            signal.raised = True
            for waiter in signal.waiters:
                self._release(waiter)

    def await_signal(self, task: Task, signal: Signal, call: str) -> None:
        """Return when `signal` is raised."""
        self.check(task)
        task.log += (AWAIT, signal)
        with self.mutex:
            if signal.raised:
                return
            signal.waiters.append(task)
            self._block(task, signal, call)
        self._sleep(task)
