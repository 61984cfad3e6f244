"""All layouts that are possible, and the best that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parlab.arguments import positive, whole
from parlab.plan.case import MIXED, Case
from parlab.plan.estimate import Estimate, evaluate
from parlab.plan.hardware import Hardware
from parlab.plan.layout import Layout, possible
from parlab.plan.models import Config, sizes
from parlab.plan.work import Machine
from parlab.world import Cluster
from parlab.world.units import format_bytes
from parlab.zero import StateBytes

LARGEST_MICROBATCH = 16  # sequences, as in the papers; larger ones take memory, and leave a pipeline fewer
INNER = ("zero", "schedule", "offload")  # what a layer's work does not depend on: an axis of their own


@dataclass(frozen=True)
class Plans:
    """What a search found. Iterates over the layouts that fit, the fastest first; of equals, the leanest.

    Attributes:
        memory: bytes a device that they must fit in.
        asked: what `estimate` needs besides the layout.
        grid: the estimate of all combinations. number: of those that are possible, where they are in it.
    """

    memory: float
    asked: dict[str, Any]
    grid: Estimate
    number: tuple[np.ndarray, ...]

    @cached_property
    def layouts(self) -> Layout:
        """All that are possible, in columns, whether they fit or not."""
        return self.grid.layout[self.number]

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of a step, of all that are possible."""
        return np.broadcast_to(self.grid.total_seconds, self.grid.layout.shape)[self.number]

    @cached_property
    def bytes(self) -> np.ndarray:
        """Of the fullest rank, of all that are possible."""
        return np.broadcast_to(self.grid.total_bytes, self.grid.layout.shape)[self.number]

    @cached_property
    def order(self) -> np.ndarray:
        """Numbers of those that fit, the fastest first."""
        fits = np.flatnonzero(self.bytes <= self.memory)
        return fits[np.lexsort((self.bytes[fits], self.seconds[fits]))]

    def entry(self, number: Any) -> Estimate:
        """Of one of all that are possible."""
        return self.grid[self.number[0][number], self.number[1][number]]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> Estimate:
        return self.entry(self.order[place])

    def __iter__(self) -> Iterator[Estimate]:
        return map(self.entry, self.order)

    @property
    def best(self) -> Estimate:
        """The fastest that fits.

        Raises:
            ValueError: nothing fits; the text says how much memory the leanest layout needs.
        """
        if not len(self):
            leanest = self.entry(np.argmin(self.bytes))
            raise ValueError(
                f"memory={self.memory:g}: none of {len(self.bytes)} layouts fits in {format_bytes(self.memory)}; the "
                f"leanest needs {format_bytes(leanest.total_bytes)} ({leanest.layout})"
            )
        return self[0]

    def front(self) -> list[Estimate]:
        """Those that fit of which none is both faster and leaner; the fastest first, the leanest last."""
        held = self.bytes[self.order]
        return [self.entry(i) for i in self.order[held < np.minimum.accumulate([np.inf, *held[:-1]])[: len(held)]]]


def search(
    config: Config,
    cluster: Cluster,
    ranks: int,
    *,
    batch: int,
    sequence: int,
    memory: float | None = None,
    offload: bool = False,
    state: StateBytes = MIXED,
    hardware: Hardware | None = None,
    **fixed: Any,
) -> Plans:
    """Every layout of `ranks` that is possible, estimated.

    Args:
        config, cluster, batch, sequence, state, hardware: as for `estimate`.
        ranks: all of which are used.
        memory: bytes a device. None: the device's.
        offload: also layouts whose optimizer is on the host.
        fixed: knobs that have one value, `cp=1`, or a list of values.

    Raises:
        ValueError: a bad number, an unknown knob, or no layout that is possible.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> print(search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).best.layout)
    d 128, p 16, c 1, t 8, v 8, b 1, ZeRO-2, looped_bfs, sequence parallel
    """
    for name, number in (("ranks", ranks), ("batch", batch), ("sequence", sequence)):
        whole(name, number, 1)
    memory = cluster.device_of(0).memory if memory is None else memory
    positive("memory", memory)
    asked = {
        "config": config,
        "cluster": cluster,
        "batch": batch,
        "sequence": sequence,
        "state": state,
        "hardware": hardware,
    }
    grid, chosen = _every_layout(config, ranks, batch, sequence, offload, fixed)
    found = evaluate(Case(config, grid, batch, sequence, state, 2), Machine(cluster, hardware), grid)
    return Plans(memory, asked, found, np.nonzero(chosen))


def _every_layout(
    config: Config, ranks: int, batch: int, sequence: int, offload: bool, fixed: dict[str, Any]
) -> tuple[Layout, np.ndarray]:
    """A grid of layouts, and which of them are possible; of those that come to the same (ZeRO or sequence parallelism
    among one rank, selective recomputation where attention is fused), one; of ZeRO from stage 1 on, never slower nor
    fuller than 0. Rules that join knobs are applied as soon as these are crossed."""
    of_model = sizes(config)
    L = of_model.L
    knobs: dict[str, list] = {
        "tp": _divisors(math.gcd(ranks, of_model.H)),
        "cp": [c for c in _divisors(ranks) if c == 1 or sequence % (2 * c) == 0],
        "pp": [p for p in _divisors(ranks) if p <= min(L + 2, batch)],
        "dp": _divisors(math.gcd(ranks, batch)),
        "chunks": sorted({v for layers in (L, L + 1, L + 2) for v in _divisors(layers)}),
        "microbatch": [b for b in _divisors(batch) if b <= LARGEST_MICROBATCH],
        "sequence_parallel": [False, True],
        "recompute": ["none", "full"] if of_model.fused else ["none", "selective", "full"],
        "zero": [1, 2, 3],
        "schedule": ["1f1b", "looped_bfs"],
        "offload": [False, True] if offload else [False],
    }
    if unknown := set(fixed) - set(knobs):
        raise ValueError(f"{min(unknown)}={fixed[min(unknown)]!r}: the knobs are {', '.join(knobs)}")
    knobs |= {name: value if isinstance(value, list) else [value] for name, value in fixed.items()}
    ways = _cross({}, knobs, "tp", "cp", "pp", "dp")
    ways = _keep(ways, ways["tp"] * ways["cp"] * ways["pp"] * ways["dp"] == ranks)
    ways = _cross(ways, knobs, "chunks")
    ways = _keep(ways, (-L % (ways["pp"] * ways["chunks"]) <= 2) & ((ways["pp"] > 1) | (ways["chunks"] == 1)))
    ways = _cross(ways, knobs, "microbatch")
    ways = _keep(ways, batch // (ways["dp"] * ways["microbatch"]) >= ways["pp"])
    ways = _cross(ways, knobs, "sequence_parallel", "recompute")
    ways = _keep(ways, ~ways["sequence_parallel"] | (ways["tp"] > 1) | ("sequence_parallel" in fixed))
    inner = _cross({}, knobs, *INNER)
    grid = Layout(**{name: x[:, None] for name, x in ways.items()}, **{name: x[None] for name, x in inner.items()})
    same = (grid.dp * grid.cp == 1) & (grid.zero > 1) & ("zero" not in fixed)
    chosen = possible(of_model, grid, batch, sequence) & ~same
    if not chosen.any():
        raise ValueError(f"ranks={ranks}, batch={batch}, sequence={sequence}: no layout is possible for these")
    return grid, chosen


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _cross(ways: dict[str, np.ndarray], knobs: dict[str, list], *names: str) -> dict[str, np.ndarray]:
    """Each way with each value of the named knobs."""
    for name in names:
        length = len(next(iter(ways.values()))) if ways else 1
        ways = {known: np.repeat(column, len(knobs[name])) for known, column in ways.items()}
        ways[name] = np.tile(np.array(knobs[name]), length)
    return ways


def _keep(ways: dict[str, np.ndarray], good: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[good] for name, column in ways.items()}
