"""The memory that a rank holds. The logs of its tasks say when it is born, and when it dies.

Invariant: while `Memory.held` has a reference to some memory, its birth is in the log of `Held.memory`, and its death
will be logged there too.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from parlab import arrays
from parlab.arrays import Array
from parlab.world import values
from parlab.world.engines.log import HOLD
from parlab.world.values import Value


class Memory:
    """The memory of a rank, as the task with this `log` sees it. All tasks of a rank share `held`.

    `main` is that of the rank's main task; None: it is this one.
    """

    def __init__(self, log: list[Any], main: Memory | None):
        self.log = log
        self.is_background = main is not None
        self.held: dict[int, Held] = {} if main is None else main.held

    def hold(self, array: Array, name: str) -> None:
        """Count the memory under `array` as held, until it dies. Memory that counts already is not counted again."""
        owner = arrays.owning_buffer(array)
        if id(owner) not in self.held:
            nbytes = arrays.nbytes(owner)
            self.log += (HOLD, (name, nbytes))
            self.watch(owner, name, nbytes)

    def counts(self, array: Array) -> bool:
        """Whether the memory under `array` counts as held.

        A background task does not count the program's memory: when the program allocates or frees it, relative to this
        task, is not deterministic.
        """
        held = self.held.get(id(arrays.owning_buffer(array)))
        return held is not None and (held.memory is self or not self.is_background)

    def held_by_message(self, value: Value) -> int:
        """Bytes that a message of `value` holds at its sender: those in memory that does not count as held already."""
        if not self.held:
            return values.nbytes(value)
        leaves = (value,) if type(value) is np.ndarray else values.leaves(value)
        return sum(arrays.nbytes(leaf) for leaf in leaves if not self.counts(leaf))

    def watch(self, owner: Any, name: str, nbytes: int) -> None:
        """Log when `owner` dies; the log has its birth already."""
        self.held[id(owner)] = held = Held(owner, _died)
        held.memory, held.key, held.name, held.nbytes = self, id(owner), name, nbytes


class Held(weakref.ref):
    """A weak reference to memory that a rank holds."""

    __slots__ = ("key", "memory", "name", "nbytes")
    memory: Memory
    key: int
    name: str
    nbytes: int


def _died(held: Held) -> None:
    """Log the death where the birth was logged. The same task drops the last reference: see `Engine.spawn`."""
    if held.memory.held.pop(held.key, None) is not None:
        held.memory.log += (HOLD, (held.name, -held.nbytes))
