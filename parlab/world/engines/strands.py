"""How a task starts, parks and is woken: as a thread of the system, or as a stack of its own in a browser.

A browser's Python has one thread. There a strand goes on when another one parks: see `Cooperative`.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from types import FrameType, SimpleNamespace
from typing import Any

from parlab.world.errors import WorldError

IN_BROWSER = sys.platform == "emscripten"  # a page: one thread, no processes


class Thread:
    """A strand that is a thread of the system; without `work`, the strand of the caller.

    `park()` returns after a `wake()`, which may have come before. A strand parks itself, and others wake it. Two wakes
    without a park between them raise a RuntimeError.
    """

    def __init__(self, work: Callable[[], Any] | None = None, name: str = ""):
        lock = threading.Lock()  # locked while the strand runs
        lock.acquire()
        self.park, self.wake = lock.acquire, lock.release  # the lock's own methods: each message calls them
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self.start, self.is_alive, self.join = self._thread.start, self._thread.is_alive, self._thread.join

    @property
    def ident(self) -> int:
        """The identifier of its thread, to which an exception can be sent."""
        return self._thread.ident or 0

    @property
    def frame(self) -> FrameType | None:
        """Where it is now."""
        return sys._current_frames().get(self.ident)


class Cooperative(ABC):
    """A strand that shares one thread with all others: it runs until it parks or ends, and nothing stops it before.

    A subclass says how it pauses, so that others run, and how it resumes: `Stack` in a browser, a greenlet in tests.
    """

    ident = 0  # no thread has it: an exception that is sent there goes nowhere

    def __init__(self, work: Callable[[], Any] | None = None, name: str = ""):
        self.work, self.woken, self.alive = work, False, False
        self._parked_at: FrameType | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin when the strands before it have parked."""

    @abstractmethod
    def pause(self) -> None:
        """Let others run; return after `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Let this strand, which pauses, go on when the strands before it have parked."""

    def run(self) -> None:
        """Do its work."""
        assert self.work is not None, "the caller's strand has no work"
        self.work()
        self.alive = False

    def park(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See `Thread`. No clock wakes a strand here, so the time goes unheeded."""
        if not self.woken:
            self._parked_at = sys._getframe(1)
            self.pause()
            self._parked_at = None
        self.woken = False
        return True

    def wake(self) -> None:
        """See `Thread`."""
        if self.woken:
            raise RuntimeError("the strand was woken already")
        self.woken = True
        if self._parked_at is not None:
            self.resume()

    @property
    def frame(self) -> FrameType:
        """Where it is parked; if it runs, where it asks this."""
        return self._parked_at or sys._getframe(1)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self.alive

    def join(self, timeout: float = -1) -> None:
        """Nothing: a strand that can end has ended before the caller goes on."""
        return


class Stack(Cooperative):
    """A strand in a browser. It waits for a promise, and the browser puts its stack aside meanwhile (JSPI)."""

    _promise: Any = None

    def start(self) -> None:
        """See `Cooperative`."""
        self.alive = True
        _javascript().start(self.run)

    def pause(self) -> None:
        """See `Cooperative`."""
        self._promise = _javascript().promise()
        _javascript().wait(self._promise.promise)

    def resume(self) -> None:
        """See `Cooperative`."""
        self._promise.resolve(None)


@cache
def _javascript() -> SimpleNamespace:
    """The browser's functions: `start(work)`, `promise()` and `wait(promise)`.

    A strand starts from a microtask. A stack that starts on top of another one would lie in memory which that other one
    uses again.
    """
    from pyodide.code import run_js
    from pyodide.ffi import create_proxy, run_sync

    begin = run_js("work => { Promise.resolve().then(() => work.callPromising()).finally(() => work.destroy()) }")
    return SimpleNamespace(
        start=lambda work: begin(create_proxy(work)),
        promise=run_js("() => Promise.withResolvers()"),
        wait=run_sync,
    )


Strand = Thread | Cooperative


def kind_of_strand() -> type[Strand]:
    """The kind of strand that this interpreter has.

    Raises:
        WorldError: it has none.
    """
    if not IN_BROWSER:
        return Thread
    from pyodide.ffi import can_run_sync

    if can_run_sync():
        return Stack
    raise WorldError(
        "this browser cannot put a rank aside while it waits: Chrome and Edge can from 137, Firefox from 153, Safari "
        "from 27"
    )
