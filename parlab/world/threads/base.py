"""What carries out a rank program's calls: the lines of work of this process, how they wait, and how all ends.

An `Engine` is what a `Comm` talks to. What all worlds share stands here: a line of work (a rank's program, or a
collective beside it) is a thread with a `Task`; it parks on its own lock until what it waits for is there (a lock a
line: waking one disturbs no other). All state changes under one mutex, held for a few microseconds and never while
copying. How messages reach the other ranks is each world's own: `threads.py`, `processes.py`.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain, repeat
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.clock.log import AWAIT, SIGNAL, WAIT
from parlab.world.errors import DeadlockError, MismatchError, RequestError, Unwind, WorldError
from parlab.world.threads.process_state import collector_paused
from parlab.world.threads.tasks import CollectiveCall, Group, Mailbox, Message, Signal, Task, working
from parlab.world.values import Value

WaitsFor = tuple[Message, ...] | CollectiveCall | Signal  # of a parked task

inside_a_rank: contextvars.ContextVar[Any] = contextvars.ContextVar("inside_a_rank", default=None)  # of which engine


class Engine(ABC):
    """Runs one program, once, on the `ranks` that live in this process, all of the `world` or one."""

    def __init__(self, ranks: list[int], world: Group):
        self.tasks = [Task(rank) for rank in ranks]
        self.world = world
        self.groups: dict[str, Group] = {}
        self.mutex = threading.Lock()
        self.running = len(ranks)  # lines of work that are not done
        self.blocked = 0  # of these, the parked ones; whoever wakes a rank counts it out, so the count is never late
        self.ending = False
        self.deadlock: DeadlockError | None = None
        self.presses = 0  # of Ctrl-C
        self.news: SimpleQueue[str] = SimpleQueue()  # what the caller of `run` waits for: the end, or an interrupt

    # What each world does in its own way

    @abstractmethod
    def post_send(
        self, task: Task, box: Mailbox, value: Value, nbytes: int, kept: int, name: str, label: Any, *, call: str = ""
    ) -> Message:
        """Offer `value`, which becomes the receiver's, in `box`; with a `call`, wait at once until it is taken.

        Of its `nbytes`, `kept` count as held by the sender until the request ends.
        """

    @abstractmethod
    def post_receive(self, task: Task, box: Mailbox, like: Value, name: str, label: Any, *, call: str = "") -> Message:
        """Ask for the next value in `box`, which must have the form of `like`; with a `call`, wait for it at once."""

    @abstractmethod
    def enter(self, task: Task, group: Group, rank: int, name: str, call: str, detail: Any = None) -> dict[int, Any]:
        """Wait until every member of `group` has entered its next collective, and compare the calls.

        On the simulated clock this is no wait, unless the members tell each other a `detail`.

        Returns:
            The `detail` of every member, by its rank in the group.

        Raises:
            MismatchError: on every member, if two calls differ.
        """

    @abstractmethod
    def subgroup(self, name: str, members: tuple[int, ...]) -> Group:
        """The group of this name; all its members ask."""

    @abstractmethod
    def _nobody_can_move(self) -> None:
        """Every line of work here is parked; called with the mutex held."""

    def _await_the_end(self) -> None:
        """Return when all ranks have left, or Ctrl-C was pressed."""
        while not self._news(within=0.5):  # Windows notices Ctrl-C only between the waits
            pass

    def timed(self, task: Task, name: str) -> AbstractContextManager[None]:
        """What `comm.compute(name)` returns; a world with a clock measures what is inside."""
        return nullcontext()

    def _scheduled(self) -> None:
        """Say how the system should treat the thread of a line of work; called on it."""
        return

    def native_of(self, group: Group) -> Callable[..., Any] | None:
        """What carries out a collective of `group` in place of ours: a function of our algorithm's name and of its
        arguments after the comm; None if there is nothing.
        """
        return None

    # Messages

    def _match(self, message: Message) -> None:
        """Both ends are posted: let the one that waits go on."""
        message.matched = True
        if message.waiter is not None:
            waiter, message.waiter = message.waiter, None
            self._release(waiter)

    def _parks(self, task: Task, message: Message, call: str) -> bool:
        """Whether `task`, which waits for `message` in `call`, has to park."""
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
            task.park.release()

    def wait(self, task: Task, messages: tuple[Message, ...], call: str) -> None:
        """Return when both ends of every message are posted; `call` names the waiting call in a deadlock."""
        self.check(task)
        unmatched = 0
        for message in reversed(messages):  # of a sendrecv, first for what comes: that is what the rank needs
            task.log += (WAIT, message)
            unmatched += not message.matched
        if not unmatched:  # no match is ever undone, so it needs no mutex to be seen
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
        """The value of a matched message, for its receiver, who from now on holds it."""
        if message.error is not None:
            raise MismatchError(message.error)
        value, message.value = message.value, None
        if type(value) is np.ndarray:  # a copy, so it owns its memory
            task.watch(value, "received", message.nbytes)
            return value
        for array in values.leaves(value):
            owner = arrays.owning_buffer(array)
            task.watch(owner, "received", arrays.nbytes(owner))
        return value

    # Work beside a program

    def spawn(self, program: Task, work: Callable[[Task], Any], after: Signal | None) -> Signal:
        """Run `work(task)` beside a rank's program, on a thread of its own, once `after` is raised; returns the signal
        that it raises when it is done, whose task then holds the result.
        """
        self.check(program)
        task = Task(program.rank, program)
        begin, done = Signal(program), Signal(task)

        def body(task: Task) -> None:
            self.await_signal(task, begin, "start")
            if after is not None:
                self.await_signal(task, after, "queue")
            nonlocal work
            task.result = work(task)
            del work  # what it holds must die in the program's line of work, which the signal sets free
            self.raise_signal(task, done)

        task.thread = self._thread(task, body)
        with self.mutex:
            if self.ending:  # once more: whoever ends the run takes the mutex, and must see this task or refuse it
                self._refuse(program)
            self.running += 1
            program.background.append(task)
            program.inside = False  # a new thread has its maker's number at first, and would take the exception
        self.raise_signal(program, begin)
        try:
            task.thread.start()
        except RuntimeError:  # the system gives no more threads
            self._leave(task)
            raise
        finally:
            with self.mutex:
                program.inside = True
                if self.ending:
                    self._refuse(program)
        task.park.release()
        return done

    def raise_signal(self, task: Task, signal: Signal) -> None:
        """Let those who wait for `signal` go on."""
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
        """Refuse a call after the end, or from a thread that is not the one of this line of work."""
        if self.ending or working.task is not task:
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

    def _block(
        self, task: Task, waits_for: tuple[Message, ...] | CollectiveCall | Signal, call: str, count: int = 1
    ) -> None:
        if self.ending:  # a rank that is being unwound waits once more, in a `finally`, and nobody would wake it
            self._refuse(task)
        task.waits_for, task.call, task.missing = waits_for, call, count
        self.blocked += 1
        if self.blocked == self.running:
            self._nobody_can_move()

    def _sleep(self, task: Task) -> None:
        task.park.acquire()
        if self.ending:
            raise Unwind

    def _everyone(self) -> list[Task]:
        return [line for task in self.tasks for line in (task, *task.background)]

    def _unwind(self) -> None:
        """Send every parked rank home; the others follow at their next call."""
        self.ending = True
        for task in self._everyone():
            if task.missing:
                task.missing = 0
                task.park.release()

    def _leave(self, task: Task) -> None:
        with self.mutex:
            task.inside = False
            self.running -= 1
            if self.running and self.blocked == self.running and not self.ending:
                self._nobody_can_move()
            if not self.running:
                self.news.put("all ranks have left")

    def run(self, body: Callable[[Task], None]) -> None:
        """Run `body(task)` on every rank here; afterwards the tasks hold logs, results and errors.

        The threads start parked and are let go together, so that an interrupt during the start finds them in a state
        that can be unwound.
        """
        for task in self.tasks:
            task.thread = self._thread(task, body)
        with collector_paused():
            try:
                for task in self.tasks:
                    task.thread.start()
                for task in self.tasks:
                    task.park.release()
                self._await_the_end()
            finally:
                if self.running:
                    self._interrupt()
                self.ending = True
                while self.presses < 2 and not self._gone(within=1):
                    pass
                for task in self.tasks:
                    task.held.clear()  # what dies from now on is no longer the run's affair

    def interrupt(self) -> None:
        """End the run early; may be called from a signal's handler. A second call leaves behind who does not end."""
        self.presses += 1
        self.news.put("an interrupt")

    def _news(self, within: float) -> bool:
        """Whether within so many seconds all ranks leave, or Ctrl-C is pressed."""
        with suppress(Empty):
            self.news.get(timeout=within)
            return True
        return False

    def _gone(self, within: float) -> bool:
        """Whether within so many seconds all threads end."""
        deadline = time.monotonic() + within
        lines = [line for line in self._everyone() if line.thread.is_alive()]
        for line in lines:
            line.thread.join(max(0, deadline - time.monotonic()))
        return not any(line.thread.is_alive() for line in lines)

    def _thread(self, task: Task, body: Callable[[Task], None]) -> threading.Thread:
        """A thread for `task`, in a copy of the caller's context: `np.errstate` and the like reach every rank."""
        run, arguments = contextvars.copy_context().run, (self._occupy, task, body, arrays.here())
        return threading.Thread(target=run, args=arguments, name=f"rank {task.rank}", daemon=True)

    def _occupy(self, task: Task, body: Callable[[Task], None], follow: Callable[[], None]) -> None:
        self._scheduled()
        inside_a_rank.set(self)
        working.task = task
        with suppress(Unwind):  # which an interrupt may also raise below, in `_leave`
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
                if not (self.ending or task.error):  # else it comes from the unwinding, or from that error
                    task.error = error
            finally:
                self._leave(task)

    def _interrupt(self) -> None:
        """End all ranks early: parked ones are released, and others end at their next call.

        Those that make no call get an exception at their next line of Python; once a second, because Python drops one
        that falls into a destructor.
        """
        with self.mutex:
            self._unwind()
            for task in self._everyone():
                if task.park.locked():  # it stands at the start, or runs and will find its lock open
                    task.park.release()
        for pause in chain([0.2], repeat(1)):
            self._news(within=pause)
            if self.presses > 1 or self._gone(within=0.1):
                return
            with self.mutex:
                for task in self._everyone():
                    if task.inside:
                        thread = ctypes.c_ulong(task.thread.ident or 0)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Unwind))
