"""The time of an all-reduce of any size on any cluster, from the steps of each algorithm. No rank runs.

Every algorithm is a sequence of exchanges, in which a rank sends one message and receives one. A message starts when
both its ranks are ready, and a rank continues when both its messages have passed. So one clock for each rank is enough.
On equal links the times are the closed forms: ring 2(N − 1)(α + nβ/N), recursive doubling log₂N (α + nβ), Rabenseifner
2 log₂N α + 2(N − 1)nβ/N, circulant 2⌈log₂N⌉α + 2(N − 1)nβ/N.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parlab.world import Cluster
from parlab.world.cluster import PICOSECONDS
from parlab.world.collectives.circulant import halvings


class RankClocks:
    """A clock for each rank, for many message sizes at once."""

    def __init__(self, size: int, nbytes: np.ndarray, cluster: Cluster):
        self.size = size
        self.nbytes = nbytes[:, None]  # [sizes, 1]
        self.cluster = cluster
        self.now = np.zeros((len(nbytes), size))  # [sizes, N]

    def exchange(self, dst: np.ndarray, share: float, members: np.ndarray | None = None, times: int = 1) -> None:
        """Each of `members` sends `share` of the data to its `dst` and receives as much, `times` times."""
        members = np.arange(self.size) if members is None else members
        links = [self.cluster.link(int(a), int(b)) for a, b in zip(members, dst, strict=True)]
        latency = np.array([link.latency for link in links])
        pace = np.array([1 / link.bandwidth for link in links])
        lasts = (latency + share * self.nbytes * pace) * PICOSECONDS  # [sizes, members]
        for _ in range(times):
            end = np.maximum(self.now[:, members], self.now[:, dst]) + lasts
            self.now[:, members] = end
            self.now[:, dst] = np.maximum(self.now[:, dst], end)


def _ring(clock: RankClocks) -> None:
    dst = (np.arange(clock.size) + 1) % clock.size
    clock.exchange(dst, 1 / clock.size, times=2 * (clock.size - 1))


def _doubling(clock: RankClocks, halving: bool) -> None:
    """Exchanges of all data over distances 1, 2, 4, ...; `halving`: first of ever smaller pieces, then of larger.

    The ranks beyond a power of two send their data to their right neighbours, and receive the result at the end.
    """
    power = 1 << (clock.size.bit_length() - 1)
    extra, widths = clock.size - power, [1 << step for step in range(clock.size.bit_length() - 1)]
    away, core = np.arange(0, 2 * extra, 2), np.array([*range(1, 2 * extra, 2), *range(2 * extra, clock.size)])
    clock.exchange(away + 1, 1, away)
    for width in [*reversed(widths), *widths] if halving else widths:
        clock.exchange(core[np.arange(power) ^ width], width / power if halving else 1, core)
    clock.exchange(away, 1, away + 1)


def _circulant(clock: RankClocks) -> None:
    rank, steps = np.arange(clock.size), halvings(clock.size)
    for direction, walk in ((1, steps), (-1, steps[::-1])):
        for window, half in walk:
            clock.exchange((rank + direction * half) % clock.size, (window - half) / clock.size)


def _hierarchical(clock: RankClocks) -> None:
    inside = clock.cluster.ranks_per_node
    nodes, rank = clock.size // inside, np.arange(clock.size)
    right_inside = rank - rank % inside + (rank + 1) % inside
    clock.exchange(right_inside, 1 / inside, times=inside - 1)
    clock.exchange((rank + inside) % clock.size, 1 / clock.size, times=2 * (nodes - 1))
    clock.exchange(right_inside, 1 / inside, times=inside - 1)


STEPS: dict[str, Callable[[RankClocks], None]] = {
    "ring": _ring,
    "recursive_doubling": lambda clock: _doubling(clock, halving=False),
    "circulant": _circulant,
    "rabenseifner": lambda clock: _doubling(clock, halving=True),
    "hierarchical": _hierarchical,
}


def all_reduce_time(algorithm: str, size: int, nbytes: np.ndarray, cluster: Cluster) -> np.ndarray:
    """Picoseconds of an all-reduce of `nbytes` [sizes] among `size` ranks, all of which enter at time 0.

    It is exact where the pieces are equal and bytes over bandwidth is a whole number of picoseconds. The hierarchical
    algorithm uses the cluster's nodes.
    """
    clock = RankClocks(size, np.asarray(nbytes, dtype=float), cluster)
    STEPS[algorithm](clock)
    return clock.now.max(axis=1)


def crossing(one: str, other: str, size: int, low: float, high: float, cluster: Cluster) -> float:
    """The message size between `low` and `high` at which `one` and `other` take the same time.

    The difference of the two times is piecewise linear, and becomes linear in a small enough interval.
    """
    for _ in range(3):
        sizes = np.linspace(low, high, 33)
        lead = all_reduce_time(one, size, sizes, cluster) - all_reduce_time(other, size, sizes, cluster)
        after = max(1, int(np.argmax(lead * lead[0] <= 0)))
        low, high = float(sizes[after - 1]), float(sizes[after])
    return low + (high - low) * float(lead[after - 1] / (lead[after - 1] - lead[after]))
