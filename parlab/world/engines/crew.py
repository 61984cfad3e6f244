"""The tasks of this process: how they start, wait, are woken, and end.

A task is a rank's program, or a collective in its background. It is performed by a strand: a program by one of its own,
collectives by the rank's helpers, each of which performs one after another and parks between them. (To start a thread
for each collective would cost the rank two switches; to wake a helper costs none.) `strands.py` says how one strand
parks and another wakes it. All state changes under one mutex, which is held for a few microseconds and never while data
are copied. In the life of a task:

    it runs       nothing is missing
    `_block`      `missing` things that it waits for have not happened: it is blocked, and `_sleep` parks its strand
    `_release`    one of them has happened; with the last one it is blocked no longer, and its strand is woken
    `_leave`      it is over

Invariant, whenever the mutex is free: of the `present` tasks, those that have not left, `blocked` are blocked. Whoever
makes something happen releases the tasks that wait for it before the mutex is free again. So when all are blocked, none
can move until something comes from outside this process. Each time that this begins, `_all_blocked` is called: by the
last one to block, or by one that leaves none but blocked ones.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Any

from parlab import arrays
from parlab.world.engines import strands
from parlab.world.engines.process_state import collector_paused
from parlab.world.engines.tasks import Awaited, Helper, Task, current_task
from parlab.world.errors import RequestError, Unwind, WorldError

current_engine: contextvars.ContextVar[Any] = contextvars.ContextVar("current_engine", default=None)  # None: no rank


class Crew(ABC):
    """The tasks of the `ranks` of this process, for one run."""

    def __init__(self, ranks: list[int]):
        self.tasks = [Task(rank) for rank in ranks]
        self.helpers: list[Helper] = []
        self.mutex = threading.Lock()
        self.present = len(ranks)  # tasks that have not left
        self.blocked = 0  # of them; the waking task lowers this count, so it is never too high
        self.ending = False
        self.presses = 0  # of Ctrl-C
        self.new_strand = strands.kind_of_strand()
        self.caller = self.new_strand()  # of `run`; woken at the end, and by Ctrl-C

    # Each engine does these in its own way

    @abstractmethod
    def _all_blocked(self) -> None:
        """All tasks of this process have come to be blocked. Called with the mutex held."""

    def _await_the_end(self) -> None:
        """Return when all ranks have left, or Ctrl-C was pressed."""
        while not self._caller_woken(within=0.5):  # Windows notices Ctrl-C only between the waits
            pass

    def _scheduled(self) -> None:
        """Tell the system how to schedule the thread of a task. Called on that thread."""
        return

    # Waiting

    def check(self, task: Task) -> None:
        """Refuse a call after the end, or from another thread than this task's."""
        if self.ending or current_task.get() is not task:
            self._refuse(task)

    def _refuse(self, task: Task) -> None:
        if not self.ending:  # so this is another thread
            task.error = WorldError(
                f"rank {task.rank}: comm is called from another thread than the rank's own; a rank is one thread, and "
                "what should go on meanwhile is posted: isend, irecv, iall_reduce"
            )
            raise task.error
        if current_engine.get() is not self:  # the `Comm` was carried out of its program
            raise WorldError("the run is over: a Comm works only inside the program that it was given to")
        raise Unwind

    def _block(self, task: Task, waits_for: Awaited, call: str, missing: int = 1) -> None:
        """Let `task` wait in `call`, until `_release` was called `missing` times. It must `_sleep` next."""
        if self.ending:  # a `finally` of a program that is being ended calls comm again; nobody would wake it
            self._refuse(task)
        task.waits_for, task.call, task.missing = waits_for, call, missing
        self.blocked += 1
        if self.blocked == self.present:
            self._all_blocked()

    def _release(self, task: Task) -> None:
        """One of the things that `task` waits for has happened."""
        task.missing -= 1
        if not task.missing:
            self.blocked -= 1
            task.strand.wake()

    def _sleep(self, task: Task) -> None:
        """Return when `task` is blocked no longer. Called without the mutex."""
        task.strand.park()
        if self.ending:
            raise Unwind

    def _unwind(self) -> None:
        """End all blocked tasks. The others end at their next call."""
        self.ending = True
        for task in self._everyone():
            if task.missing:
                task.missing = 0
                task.strand.wake()

    def _leave(self, task: Task) -> None:
        with self.mutex:
            task.interruptible = False
            self.present -= 1
            if self.present and self.blocked == self.present and not self.ending:
                self._all_blocked()
            if not self.present:
                for helper in self.helpers:
                    _wake_for_good(helper.strand)
                _wake_for_good(self.caller)

    def _everyone(self) -> list[Task]:
        return [each for task in self.tasks for each in (task, *task.background)]

    # From the start to the end

    def run(self, body: Callable[[Task], None]) -> None:
        """Run `body(task)` on every rank of this process. Afterwards the tasks hold logs, results and errors.

        The threads start parked and are woken together. So Ctrl-C during the start finds each thread in a state that
        can be ended.
        """
        for task in self.tasks:
            program = partial(self._perform_program, task, self._work(task, body))
            task.strand = self.new_strand(program, f"rank {task.rank}")
        with collector_paused():
            try:
                for task in self.tasks:
                    task.strand.start()
                for task in self.tasks:
                    task.strand.wake()
                self._await_the_end()
            finally:
                if self.present:
                    self._end_early()
                self.ending = True
                while self.presses < 2 and not self._strands_ended(within=1):
                    pass
                for task in self.tasks:
                    task.memory.held.clear()  # memory that dies after the run is not logged

    def _run_beside(self, main: Task, task: Task, body: Callable[[Task], None]) -> None:
        """Run `body(task)` in the background of `main`, which calls this."""
        helper = main.parked_helpers.pop() if main.parked_helpers else self._new_helper(main)
        task.strand = helper.strand
        with self.mutex:
            if self.ending:  # checked again under the mutex: the end of the run must see this task, or refuse it here
                self._refuse(main)
            self.present += 1
            main.background.append(task)
            helper.work = self._work(task, body)
            helper.strand.wake()

    def _new_helper(self, main: Task) -> Helper:
        """Another strand beside `main`, which calls this. It is parked.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        helper = Helper()
        helper.strand = self.new_strand(partial(self._help, main, helper), f"rank {main.rank}")
        with self.mutex:
            main.interruptible = False  # a new thread first has its creator's ident, and would get its exception
        try:
            helper.strand.start()
        finally:
            with self.mutex:
                main.interruptible = True
        self.helpers.append(helper)
        return helper

    def _help(self, main: Task, helper: Helper) -> None:
        """A helper's strand: perform what it is given, until it is woken without work."""
        self._scheduled()
        with suppress(Unwind):  # an interrupt may raise it when the task is over
            helper.strand.park()
            while helper.work is not None:
                helper.work()
                helper.work = None
                main.parked_helpers.append(helper)
                helper.strand.park()

    def _perform_program(self, task: Task, work: Callable[[], None]) -> None:
        """The strand of a rank's program."""
        self._scheduled()
        with suppress(Unwind):
            task.strand.park()  # until all have started
            work()

    def _work(self, task: Task, body: Callable[[Task], None]) -> Callable[[], None]:
        """A call that performs `task`, in a copy of the caller's context: so `np.errstate` reaches it."""
        return partial(contextvars.copy_context().run, self._perform, task, body, arrays.here())

    def _perform(self, task: Task, body: Callable[[Task], None], use_callers_gpu: Callable[[], None]) -> None:
        current_engine.set(self)
        current_task.set(task)
        try:
            task.interruptible = True
            if self.ending:
                raise Unwind
            use_callers_gpu()
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

    # Ctrl-C

    def interrupt(self) -> None:
        """Note a Ctrl-C, so that the caller of `run` ends the run early. A signal handler may call this.

        After a second call it waits no longer for threads that go on.
        """
        self.presses += 1
        _wake_for_good(self.caller)

    def _end_early(self) -> None:
        """End all tasks early. Blocked ones are woken, and others end at their next call.

        A task that makes no call gets an exception at its next line of Python. This is repeated every second, because
        Python drops an exception that is raised in a destructor.
        """
        with self.mutex:
            self._unwind()
            for task in self._everyone():
                _wake_for_good(task.strand)  # it waits at the start; or it runs, and will not park any more
        for pause in chain([0.2], repeat(1)):
            self._caller_woken(within=pause)  # a second Ctrl-C cuts this pause short
            if self.presses > 1 or self._strands_ended(within=0.1):
                return
            with self.mutex:
                for task in self._everyone():
                    if task.interruptible:
                        thread = ctypes.c_ulong(task.strand.ident)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Unwind))

    def _caller_woken(self, within: float) -> bool:
        """Whether the caller is woken within this many seconds: all ranks have left, or Ctrl-C was pressed."""
        return self.caller.park(timeout=within)

    def _strands_ended(self, within: float) -> bool:
        """Whether all strands end within this many seconds."""
        deadline = time.monotonic() + within
        alive = [task.strand for task in self._everyone() if task.strand.is_alive()]
        for strand in alive:
            strand.join(max(0, deadline - time.monotonic()))
        return not any(strand.is_alive() for strand in alive)


def _wake_for_good(strand: strands.Strand) -> None:
    """Wake a strand that will not park again. It may have been woken already."""
    with suppress(RuntimeError):
        strand.wake()
