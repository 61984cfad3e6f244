"""The base of all engines: how the tasks of this process wait, are woken, and end.

A `Comm` talks to an `Engine`. A task is a strand with a `Task` record: it runs a rank's program, or a collective in the
background. `strands.py` says how one strand parks and another wakes it. All state changes under one mutex, which is
held for a few microseconds and never while data are copied. `engines/threads.py` and `processes/engine.py` say how
messages reach the other ranks.

Invariant, whenever the mutex is free: of the `running` tasks, `blocked` are parked, or about to park, for something
that has not happened. What happens is told to the tasks that wait for it before the mutex is free again. So when all
are blocked, no task of this process can move.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.engines import strands
from parlab.world.engines.log import AWAIT, SIGNAL, WAIT
from parlab.world.engines.process_state import collector_paused
from parlab.world.engines.tasks import Arrival, Awaited, CollectiveCall, Group, Mailbox, Message, Signal, Task, working
from parlab.world.errors import DeadlockError, MismatchError, RequestError, Unwind, WorldError
from parlab.world.values import Value

inside_a_rank: contextvars.ContextVar[Any] = contextvars.ContextVar("inside_a_rank", default=None)  # the rank's engine


class Engine(ABC):
    """Runs one program, once, on the `ranks` of this process: all ranks of the `world`, or one of them."""

    def __init__(self, ranks: list[int], world: Group):
        self.tasks = [Task(rank) for rank in ranks]
        self.world = world
        self.groups: dict[str, Group] = {}
        self.mutex = threading.Lock()
        self.running = len(ranks)  # tasks that are not done
        self.blocked = 0  # parked tasks among them; the waking task lowers this count, so it is never too high
        self.ending = False
        self.deadlock: DeadlockError | None = None
        self.presses = 0  # of Ctrl-C
        self.strand = strands.here()
        self.caller = self.strand()  # of `run`; woken at the end, and by Ctrl-C

    # Each engine does these in its own way

    @abstractmethod
    def post_send(
        self, task: Task, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """Offer `value` in `box`; the receiver will own it. If `call` is not empty, block until the receiver takes it.

        The sender holds `kept` of its `nbytes` until the request ends.
        """

    @abstractmethod
    def post_receive(self, task: Task, box: Mailbox, like: Value, name: str, label: Any, *, call: str = "") -> Message:
        """Ask for the next value in `box`, of the form of `like`. If `call` is not empty, block until it comes."""

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

    @abstractmethod
    def _nobody_can_move(self) -> None:
        """All tasks of this process are parked. Called with the mutex held."""

    def _await_the_end(self) -> None:
        """Return when all ranks have left, or Ctrl-C was pressed."""
        while not self._news(within=0.5):  # Windows notices Ctrl-C only between the waits
            pass

    def timed(self, task: Task, name: str) -> AbstractContextManager[None]:
        """The context that `comm.compute(name)` returns. An engine with a clock measures the time inside."""
        return nullcontext()

    def _scheduled(self) -> None:
        """Tell the system how to schedule the thread of a task. Called on that thread."""
        return

    def native_of(
        self, group: Group, algorithm: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Callable[[], Any] | None:
        """The library's own collective, in place of our `algorithm(comm, *arguments)`; None: there is none."""
        return None

    # Messages

    def _match(self, message: Message) -> None:
        """Both ends are posted: wake the task that waits."""
        message.matched = True
        if message.waiter is not None:
            waiter, message.waiter = message.waiter, None
            self._release(waiter)

    def _park(self, task: Task, message: Message, call: str) -> bool:
        """Let `task` wait for `message` in `call`. Returns False if the message has come: then it need not sleep."""
        task.log += (WAIT, message)
        if message.matched:
            return False
        message.waiter = task
        self._block(task, (message,), call)
        return True

    def _release(self, task: Task) -> None:
        task.missing -= 1
        if not task.missing:
            self.blocked -= 1
            task.strand.wake()

    def wait(self, task: Task, messages: tuple[Message, ...], call: str) -> None:
        """Return when both ends of every message are posted; `call` names the waiting call in a deadlock."""
        self.check(task)
        unmatched = 0
        for message in reversed(messages):  # of a sendrecv the receive comes first: the rank needs its value
            task.log += (WAIT, message)
            unmatched += not message.matched
        if not unmatched:  # a match is never undone, so reading it needs no mutex
            return
        with self.mutex:
            late = [message for message in messages if not message.matched]
            if not late:
                return
            for message in late:
                message.waiter = task
            self._block(task, messages, call, len(late))
        self._sleep(task)

    def take(self, task: Task, message: Message) -> Value:
        """The value of a matched message. Its receiver holds it from now on."""
        if message.error is not None:
            raise MismatchError(message.error)
        value, message.value = message.value, None
        if type(value) is np.ndarray:  # a copy, which owns its memory
            task.watch(value, "received", message.nbytes)
            return value
        for array in values.leaves(value):
            owner = arrays.owning_buffer(array)
            task.watch(owner, "received", arrays.nbytes(owner))
        return value

    # Collectives

    def enter(self, task: Task, group: Group, arrival: Arrival) -> CollectiveCall:
        """Wait until every member of `group` has entered its next collective, and compare the calls.

        On the simulated clock nobody waits here, unless the members tell each other a detail.

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

    def _await_members(self, task: Task, group: Group, collective: CollectiveCall) -> None:
        """Let `task` wait until all members have entered."""
        collective.waiters.append(task)
        name = collective.arrivals[task.rank].name
        self._block(task, collective, name if group is self.world else f"{name} of group {group.name}")

    # Collectives in the background

    def spawn(self, main: Task, work: Callable[[Task], Any], after: Signal | None) -> Signal:
        """Run `work(task)` in a background task of `main`'s rank, after the signal `after`.

        Returns the signal that the task raises at its end; `signal.task.result` is then the result.
        """
        self.check(main)
        task = Task(main.rank, main)
        begin, done = Signal(main), Signal(task)

        def body(task: Task) -> None:
            self.await_signal(task, begin, "start")
            if after is not None:
                self.await_signal(task, after, "queue")
            nonlocal work
            task.result = work(task)
            del work  # its memory must die in the program's task, which this signal wakes
            self.raise_signal(task, done)

        task.strand = self._strand(task, body)
        with self.mutex:
            if self.ending:  # checked again under the mutex: the end of the run must see this task, or refuse it here
                self._refuse(main)
            self.running += 1
            main.background.append(task)
            main.inside = False  # a new thread first has its creator's ident, and would get its exception
        self.raise_signal(main, begin)
        try:
            task.strand.start()
        except RuntimeError:  # the system gives no more threads
            self._leave(task)
            raise
        finally:
            with self.mutex:
                main.inside = True
                if self.ending:
                    self._refuse(main)
        task.strand.wake()
        return done

    def raise_signal(self, task: Task, signal: Signal) -> None:
        """Wake the tasks that wait for `signal`."""
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

    # Parking, and the end

    def check(self, task: Task) -> None:
        """Refuse a call after the end, or from another thread than this task's."""
        if self.ending or working.get() is not task:
            self._refuse(task)

    def _refuse(self, task: Task) -> None:
        if not self.ending:
            task.error = WorldError(
                f"rank {task.rank}: comm is called from another thread than the rank's own; a rank is one thread, and "
                "what should go on meanwhile is posted: isend, irecv, iall_reduce"
            )
            raise task.error
        if inside_a_rank.get() is not self:
            raise WorldError("the run is over: a Comm works only inside the program that it was given to")
        raise Unwind

    def _block(self, task: Task, waits_for: Awaited, call: str, count: int = 1) -> None:
        if self.ending:  # a `finally` of a program that is being ended calls comm again; nobody would wake it
            self._refuse(task)
        task.waits_for, task.call, task.missing = waits_for, call, count
        self.blocked += 1
        if self.blocked == self.running:
            self._nobody_can_move()

    def _sleep(self, task: Task) -> None:
        task.strand.park()
        if self.ending:
            raise Unwind

    def _everyone(self) -> list[Task]:
        return [each for task in self.tasks for each in (task, *task.background)]

    def _unwind(self) -> None:
        """End all parked tasks. The others end at their next call."""
        self.ending = True
        for task in self._everyone():
            if task.missing:
                task.missing = 0
                task.strand.wake()

    def _leave(self, task: Task) -> None:
        with self.mutex:
            task.inside = False
            self.running -= 1
            if self.running and self.blocked == self.running and not self.ending:
                self._nobody_can_move()
            if not self.running:
                self._wake_caller()

    def run(self, body: Callable[[Task], None]) -> None:
        """Run `body(task)` on every rank of this process. Afterwards the tasks hold logs, results and errors.

        The threads start parked and are released together. So Ctrl-C during the start finds each thread in a state that
        can be ended.
        """
        for task in self.tasks:
            task.strand = self._strand(task, body)
        with collector_paused():
            try:
                for task in self.tasks:
                    task.strand.start()
                for task in self.tasks:
                    task.strand.wake()
                self._await_the_end()
            finally:
                if self.running:
                    self._interrupt()
                self.ending = True
                while self.presses < 2 and not self._gone(within=1):
                    pass
                for task in self.tasks:
                    task.held.clear()  # memory that dies after the run is not logged

    def interrupt(self) -> None:
        """End the run early; a signal handler may call this. A second call waits no longer for threads that go on."""
        self.presses += 1
        self._wake_caller()

    def _wake_caller(self) -> None:
        with suppress(RuntimeError):  # it was woken
            self.caller.wake()

    def _news(self, within: float) -> bool:
        """Whether all ranks leave, or Ctrl-C is pressed, within this many seconds."""
        return self.caller.park(timeout=within)

    def _gone(self, within: float) -> bool:
        """Whether all strands end within this many seconds."""
        deadline = time.monotonic() + within
        alive = [task.strand for task in self._everyone() if task.strand.is_alive()]
        for strand in alive:
            strand.join(max(0, deadline - time.monotonic()))
        return not any(strand.is_alive() for strand in alive)

    def _strand(self, task: Task, body: Callable[[Task], None]) -> strands.Strand:
        """A strand for `task`, in a copy of the caller's context, so that `np.errstate` reaches every rank."""
        work = partial(contextvars.copy_context().run, self._strand_main, task, body, arrays.here())
        return self.strand(work, f"rank {task.rank}")

    def _strand_main(self, task: Task, body: Callable[[Task], None], follow: Callable[[], None]) -> None:
        self._scheduled()
        inside_a_rank.set(self)
        working.set(task)
        with suppress(Unwind):  # an interrupt may raise it even below, in `_leave`
            try:
                task.inside = True
                self._sleep(task)
                follow()
                body(task)
                if task.open:
                    raise RequestError(
                        f"rank {task.rank} returned without waiting for {', '.join(sorted(map(str, task.open)))}: "
                        "call wait() on every request"
                    )
            except Unwind:
                pass
            except BaseException as error:
                if not (self.ending or task.error):  # else the end of the run, or that error, caused it
                    task.error = error
            finally:
                self._leave(task)

    def _interrupt(self) -> None:
        """End all tasks early. Parked ones are released, and others end at their next call.

        A task that makes no call gets an exception at its next line of Python. This is repeated every second, because
        Python drops an exception that is raised in a destructor.
        """
        with self.mutex:
            self._unwind()
            for task in self._everyone():
                with suppress(RuntimeError):  # it was woken
                    task.strand.wake()  # it waits at the start; or it runs, and will not park any more
        for pause in chain([0.2], repeat(1)):
            self._news(within=pause)
            if self.presses > 1 or self._gone(within=0.1):
                return
            with self.mutex:
                for task in self._everyone():
                    if task.inside:
                        thread = ctypes.c_ulong(task.strand.ident)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Unwind))
