"""The result of a search: the layouts that fit, the fastest first, and those that are worth having.

Invariant: nothing is estimated again. Each list is numbers of one grid, which has the layouts that do not fit, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.plan.estimate import Estimate
from parlab.plan.machine import hardware_of
from parlab.world.units import format_bytes


@dataclass(repr=False)
class Plans(Sequence[Estimate]):
    """The result of a search: the layouts that fit in `memory` bytes a device, the fastest first.

    Of two equally fast ones the one with fewer bytes comes first.

    Attributes:
        asked: the arguments of `estimate` besides the layout.
        grid: the estimate of all possible layouts, in columns, whether they fit or not.
        layouts, seconds, bytes: of the grid: its layouts, their seconds a step, and the bytes of their fullest ranks.
        order: the numbers, in the grid, of the layouts that fit.
    """

    memory: float
    asked: dict[str, Any]
    grid: Estimate

    def __post_init__(self) -> None:
        self.layouts, self.seconds, self.bytes = self.grid.layout, self.grid.total_seconds, self.grid.total_bytes
        fits = np.flatnonzero(self.bytes <= self.memory)
        self.order = fits[np.lexsort((self.bytes[fits], self.seconds[fits]))]

    def __repr__(self) -> str:
        best = f"; the best: {self[0].layout}" if len(self) else ""
        later = " and ".join(format_bytes(e.total_bytes) for e in self.flips()[1:])
        flips = f"; another one from {later} of usable memory on" if later else ""
        return f"Plans: of {len(self.bytes)} layouts {len(self)} fit in {format_bytes(self.memory)}{best}{flips}"

    @property
    def band(self) -> tuple[float, float]:
        """The least and the most bytes that are usable of the device; `memory` twice if it is not between them."""
        usable = hardware_of(self.asked["cluster"]).usable
        low, high = (end * 2**30 for end in usable or (math.inf, 0))  # not known: no memory is in the band
        return (low, high) if low <= self.memory <= high else (self.memory, self.memory)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.grid[self.order[place]]

    @property
    def best(self) -> Estimate:
        """The fastest layout that fits.

        Raises:
            ValueError: no layout fits; the text says how much memory the smallest one needs.
        """
        if len(self):
            return self[0]
        leanest, limit = self.grid[np.argmin(self.bytes)], format_bytes(self.memory)
        needed = f"the leanest needs {format_bytes(leanest.total_bytes)} ({leanest.layout})"
        raise ValueError(f"memory={self.memory:g}: none of {len(self.bytes)} layouts fits in {limit}; {needed}")

    def flips(self) -> list[Estimate]:
        """The best layout of the least usable memory, then each that takes over as it grows, at its own bytes.

        The memory grows from end to end of `band`. The list begins later where nothing fits in its lower end.

        >>> from parlab.plan import LLAMA_405B, search
        >>> from parlab.world import DGX_H100
        >>> found = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).flips()
        >>> [f"{e.total_bytes / 2**30:.1f} GiB, pp {e.layout.pp}: {e.total_seconds:.2f} s" for e in found]
        ['64.1 GiB, pp 8: 6.24 s', '75.9 GiB, pp 4: 6.07 s']
        """
        low, high = self.band
        # As memory grows, layouts come to fit one after the other; of those that fit from the start the fastest first
        numbers = np.lexsort((self.seconds, np.maximum(self.bytes, low)))
        numbers = numbers[self.bytes[numbers] <= high]
        return [self.grid[number] for number in numbers[_lower_than_before(self.seconds[numbers])]]

    def front(self) -> list[Estimate]:
        """The layouts that fit and that no other one beats in both time and memory, the fastest first."""
        return [self.grid[number] for number in self.order[_lower_than_before(self.bytes[self.order])]]


def _lower_than_before(values: np.ndarray) -> np.ndarray:
    """Whether a value is lower than each before it.

    >>> _lower_than_before(np.array([90, 40, 50, 40, 10])).tolist()
    [True, True, False, False, True]
    """
    return values < np.minimum.accumulate([np.inf, *values])[:-1]
