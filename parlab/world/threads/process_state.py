"""What a run changes in the process around it and puts back: Ctrl-C, BLAS's threads, the cyclic collector; and how the
system schedules the thread of a rank.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any


@contextmanager
def interrupts(note: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `note`, and raises nothing: whoever notes it ends the run where that can be done cleanly.

    Otherwise a `KeyboardInterrupt` may come between any two steps of a start, and Python drops one that falls into a
    destructor. In a thread other than the main one, or where somebody else handles SIGINT, all stays as it is.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: note())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_limited = threading.Lock()  # held by the run that keeps BLAS at one thread


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A rank computes on one core, as long as there are ranks to use the others.

    BLAS has one number of threads for the whole process. Of several runs at once one lowers it and puts it back: a
    second one would find the lowered number, and put back that.
    """
    if not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # not at the top: it reads all loaded libraries

    return ThreadpoolController()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the cyclic collector, memory dies exactly where the last reference goes, the same in every run.

    What hangs in a cycle of references, on a GPU too, is freed only after the run: a program that fills the memory
    with such cycles must break them itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def wake_without_preempting() -> None:
    """Ask Linux to let whoever wakes this thread run on until it parks.

    A woken thread that takes the waker's core at once only finds that the waker still holds the interpreter: it must
    give the core back and be woken again. Two switches a message instead of one, and twice the time.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
