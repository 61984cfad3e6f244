"""State of the whole process that a run changes and restores: the handler of Ctrl-C, BLAS's threads, the cyclic garbage
collector. And what it asks of the system for good: how the thread of a rank is scheduled, and who keeps freed memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # numbers of the options, from glibc's malloc.h


@contextmanager
def interrupts(note: Callable[[], None]) -> Iterator[None]:
    """Within, Ctrl-C calls `note` and raises nothing. The engine then ends the run at a point where this is safe.

    Otherwise a `KeyboardInterrupt` may come between any two steps of a start, and Python drops one in a destructor.
    Nothing changes in a thread other than the main one, or if the program handles SIGINT itself.
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


_limited = threading.Lock()  # held by the run that limits BLAS to one thread


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within, BLAS uses one thread: a rank computes on one core, and the other ranks on the others.

    BLAS has one number of threads for the whole process. Of several runs at once only the first lowers and restores it:
    the second one would find the lowered number, and restore that.
    """
    if not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _blas(len(sys.modules)).limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()


@lru_cache(maxsize=1)
def _blas(modules: int) -> Any:
    """The BLAS libraries of this process. To find them takes as long as a run, so this is done again only when there is
    another number of imported `modules`: SciPy or PyTorch, imported after the first run, bring their own.
    """
    from threadpoolctl import ThreadpoolController  # not at the top: it reads all loaded libraries

    return ThreadpoolController()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within, the cyclic garbage collector is off. So memory dies when its last reference goes, the same in every run.

    Memory in a cycle of references, also on a GPU, is freed after the run. A program that fills the memory with such
    cycles must break them itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def wake_without_preempting() -> None:
    """Ask Linux to let a thread that wakes this one run on until it parks.

    A woken thread that takes its waker's core at once finds that the waker still holds the interpreter. It must give
    the core back, and be woken again: two switches a message instead of one, and twice the time.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Ask glibc to keep the memory of freed arrays in the process, for the next ones.

    Otherwise it gives each large array's memory back and gets it again page by page, which the system fills with zeros.
    Ranks cut arrays into smaller ones and free them more often: a step on a mesh takes a ninth less of the cores.
    All threads share one store, because a store of a thread's own gives memory back whatever the two limits say.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # bytes: the most that glibc takes
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)
        libc.mallopt(M_ARENA_MAX, 1)
