"""The memory of an `isend`: until its `wait()` returns it belongs to the message, as in MPI and NCCL.

A copy travels, so a program that changes the memory too early still has the same result in every run. On MPI and NCCL
it would not: they may send the old numbers, the new ones, or some of each. So `wait()` compares, and raises an error.
"""

from __future__ import annotations

import linecache
import math
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parlab import arrays
from parlab.arrays import Array
from parlab.world import values
from parlab.world.errors import RequestError
from parlab.world.threads.diagnosis import program_line
from parlab.world.threads.tasks import Task
from parlab.world.values import Value

SMALL = 2048  # bytes, which are compared themselves; of more there are sums


class SendBuffer:
    """What one `isend` of `task` sends, and a fingerprint of it.

    Memory that counts as held lives at least until the `wait()`. Other memory may die before: what is dead cannot have
    changed.
    """

    def __init__(self, task: Task, value: Value, dst: int):
        self._rank, self._dst, self._line = task.rank, dst, program_line()
        leaves = [value] if type(value) is np.ndarray else list(values.leaves(value))
        self._memory = [(_reference(x, task.counts(x)), fingerprint(x)) for x in leaves]
        self._flags: list[Array] = []  # on a device: whether each array changed

    def compare(self) -> bool:
        """Compare the arrays with what they were; a RequestError, if one has changed.

        Returns whether something is left for `finish`: on a device the numbers are compared, and not looked at yet.
        """
        for reference, before in self._memory:
            if (x := reference()) is not None:
                self._compare_one(before, fingerprint(x))
        self._memory = []
        return bool(self._flags)

    def _compare_one(self, before: Any, after: Any) -> None:
        if isinstance(before, bytes):
            if before != after:
                raise self._error()
        else:
            self._flags += [_differ(a, b) for a, b in zip(before, after, strict=True)]

    def _error(self) -> RequestError:
        file, number, function = self._line
        text = linecache.getline(file, number).strip()
        where = f"line {number} of {function}" + (f" in {Path(file).name}" if Path(file).is_file() else "")
        return RequestError(
            f"rank {self._rank} changed x between isend(to {self._dst}) and its wait(), at {where}"
            + (f": {text}" if text else "")
            + "\nuntil wait() returns, x belongs to the message: MPI or NCCL might send what it was, or what it has "
            "become; wait first, or send a copy"
        )


def finish(compared: list[SendBuffer]) -> None:
    """When a program is over, look once at what `compare` left on a device; a RequestError, if an array has changed."""
    flags = [(flag, sent) for sent in compared for flag in sent._flags]
    if not flags:
        return
    stacked = arrays.namespace(flags[0][0]).stack([flag for flag, _ in flags])
    for changed, (_, sent) in zip(arrays.to_host(stacked), flags, strict=True):
        if changed:
            raise sent._error()


def _reference(x: Array, counts: bool) -> Callable[[], Array | None]:
    """A strong reference, or a weak one."""
    return partial(_itself, x) if counts else weakref.ref(x)


def _itself(x: Array) -> Array:
    return x


def fingerprint(x: Array) -> Any:
    """What tells other contents of an array from these: its bytes, if they are few, else sums.

    In host memory the sums are those of the rows and columns of its 64-bit words, written as a square: unlike one sum
    of all, they see that two numbers have changed places. On a device they are those along the first and last axis.
    """
    if not isinstance(x, np.ndarray):
        return _sums_on_device(x)
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    if flat.size <= SMALL:
        return flat.tobytes()
    side = math.isqrt(flat.size // 8)
    square = flat[: 8 * side * side].view(np.uint64).reshape(side, side)
    rest = flat[8 * side * side :]
    return square.sum(axis=0).tobytes() + square.sum(axis=1).tobytes() + rest.tobytes()


def _sums_on_device(x: Array) -> list[Array]:
    xp = arrays.namespace(x)
    x = xp.reshape(x, x.shape or (1,))
    numbers = xp.astype(x, xp.int8) if xp.isdtype(x.dtype, "bool") else x
    return [xp.sum(numbers, axis=0), xp.sum(numbers, axis=-1)]


def _differ(a: Array, b: Array) -> Array:
    """Whether two arrays differ anywhere; a NaN is as good as another."""
    xp = arrays.namespace(a, b)
    return xp.any((a != b) & ((a == a) | (b == b)))
