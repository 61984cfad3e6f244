"""The memory of an `isend`: until its `wait()` returns it belongs to the message, as in MPI and NCCL.

A copy travels, so a program that changes the memory too early still has the same result in every run. On MPI and NCCL
it would not: they may send the old numbers, the new ones, or some of each. So `wait()` compares, and raises an error.
"""

from __future__ import annotations

import linecache
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parlab import arrays
from parlab.arrays import Array
from parlab.world import values
from parlab.world.engines.diagnosis import program_line
from parlab.world.engines.tasks import Task
from parlab.world.errors import RequestError
from parlab.world.values import Value

SMALL = 2048  # bytes; a larger array is compared by sums


class SendBuffer:
    """The arrays of one `isend` of `task`, and a fingerprint of each.

    Arrays in memory that counts as held are kept alive until `wait()`. Other arrays may die earlier: a dead array
    cannot have changed.
    """

    def __init__(self, task: Task, value: Value, dst: int):
        self._rank, self._dst, self._line = task.rank, dst, program_line()
        leaves = [value] if type(value) is np.ndarray else list(values.leaves(value))
        self._memory = [(_reference(x, task.memory.counts(x)), fingerprint(x)) for x in leaves]

    def compare(self) -> list[Flag]:
        """Compare the arrays with their fingerprints. A RequestError, if one has changed.

        On a device the comparison is launched here, and its result, a `Flag` that is returned, is read later.
        """
        flags: list[Flag] = []
        for reference, before in self._memory:
            if (x := reference()) is None:
                continue
            after = fingerprint(x)
            if not isinstance(before, bytes):
                flags += [(_differ(a, b), self) for a, b in zip(before, after, strict=True)]
            elif before != after:
                raise self.error()
        self._memory = []
        return flags

    def error(self) -> RequestError:
        """The error of a rank that has changed one of the arrays."""
        file, number, function = self._line
        text = linecache.getline(file, number).strip()
        where = f"line {number} of {function}" + (f" in {Path(file).name}" if Path(file).is_file() else "")
        return RequestError(
            f"rank {self._rank} changed x between isend(to {self._dst}) and its wait(), at {where}"
            + (f": {text}" if text else "")
            + "\nuntil wait() returns, x belongs to the message: MPI or NCCL might send what it was, or what it has "
            "become; wait first, or send a copy"
        )


Flag = tuple[Array, SendBuffer]  # on a device: whether an array has changed


def read_flags(flags: list[Flag]) -> None:
    """After a program, read all that `compare` left on a device. A RequestError, if an array has changed."""
    if flags:
        stacked = arrays.namespace(flags[0][0]).stack([flag for flag, _ in flags])
        for changed, (_, sent) in zip(arrays.to_host(stacked), flags, strict=True):
            if changed:
                raise sent.error()


def _reference(x: Array, counts: bool) -> Callable[[], Array | None]:
    """A strong reference, or a weak one."""
    return (lambda: x) if counts else weakref.ref(x)


def fingerprint(x: Array) -> Any:
    """A value that differs, almost surely, for other contents: the bytes of a small array, the sums of a large one.

    In host memory its 64-bit words form a square, whose rows and columns are summed. Unlike one sum of all words, this
    sees two numbers that have changed places. On a device the sums are those along the first and the last axis.
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
    """Whether two arrays differ anywhere; two NaNs are equal."""
    xp = arrays.namespace(a, b)
    return xp.any((a != b) & ((a == a) | (b == b)))
