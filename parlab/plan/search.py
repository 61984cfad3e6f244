"""All layouts that are possible, the best that fits, and why the others lose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import positive, whole
from parlab.plan.estimate import MIXED, Estimate, estimate
from parlab.plan.hardware import Hardware
from parlab.plan.layout import Layout, check_possible, possible
from parlab.plan.models import Config, sizes
from parlab.world import Cluster
from parlab.world.units import format_bytes
from parlab.zero import StateBytes


@dataclass(frozen=True)
class Plans:
    """What a search found: iterates over the layouts that fit, the fastest first.

    Attributes:
        every: the estimate of all possible layouts, in columns, whether they fit or not.
        memory: bytes a device that they must fit in.
        order: numbers of those that fit, the fastest first; of equals, the leanest.
        asked: what `estimate` needs besides the layout.
    """

    every: Estimate
    memory: float
    order: np.ndarray
    asked: dict[str, Any]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> Estimate:
        return self.every[int(self.order[place])]

    def __iter__(self) -> Iterator[Estimate]:
        return (self.every[int(i)] for i in self.order)

    @property
    def best(self) -> Estimate:
        """The fastest that fits.

        Raises:
            ValueError: nothing fits; the text says how much memory the leanest layout needs.
        """
        if not len(self):
            needed = self.every.total_bytes
            leanest = int(np.argmin(needed))
            raise ValueError(
                f"memory={self.memory:g}: none of {len(needed)} layouts fits in {format_bytes(self.memory)}; the leanest "
                f"needs {format_bytes(needed[leanest])} ({self.every.layout[leanest]})"
            )
        return self[0]

    def front(self) -> list[Estimate]:
        """Those that fit of which none is both faster and leaner, the leanest last."""
        needed = self.every.total_bytes[self.order]
        before = np.minimum.accumulate(np.concatenate(([np.inf], needed[:-1])))
        return [self.every[int(i)] for i in self.order[needed < before]]


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
        fixed: knobs that have one value, `cp=1`.

    Raises:
        ValueError: a bad number, an unknown knob, or no layout that is possible.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> plans = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1)
    >>> print(plans.best.layout)
    """
    for name, number in (("ranks", ranks), ("batch", batch), ("sequence", sequence)):
        whole(name, number, 1)
    memory = cluster.device_of(0).memory if memory is None else memory
    positive("memory", memory)
    layouts = every_layout(config, ranks, batch, sequence, offload=offload, **fixed)
    asked = {"config": config, "cluster": cluster, "batch": batch, "sequence": sequence, "state": state, "hardware": hardware}
    every = estimate(layout=layouts, **asked)
    needed = every.total_bytes
    fits = np.flatnonzero(needed <= memory)
    return Plans(every, memory, fits[np.lexsort((needed[fits], every.total_seconds[fits]))], asked)


def every_layout(config: Config, ranks: int, batch: int, sequence: int, *, offload: bool = False, **fixed: Any) -> Layout:
    """All that are possible, in columns; of those that come to the same (ZeRO or sequence parallelism among one rank,
    GPipe and breadth-first with one chunk, selective recomputation where attention is fused), one.

    Raises:
        ValueError: an unknown knob, or nothing is possible.
    """
    of_model = sizes(config)
    L = of_model.L
    knobs = {
        "tp": _divisors(np.gcd(ranks, of_model.H)),
        "cp": [c for c in _divisors(ranks) if sequence % (2 * c) == 0 or c == 1],
        "pp": [p for p in _divisors(ranks) if p <= min(L + 2, batch)],
        "dp": _divisors(np.gcd(ranks, batch)),
        "chunks": sorted({v for n in (L, L + 1, L + 2) for v in _divisors(n)}),
        "microbatch": _divisors(batch),
        "zero": [0, 1, 2, 3],
        "schedule": ["1f1b", "looped_bfs"],
        "sequence_parallel": [False, True],
        "recompute": ["none", "full"] if of_model.fused else ["none", "selective", "full"],
        "offload": [False, True] if offload else [False],
    }
    if unknown := set(fixed) - set(knobs):
        raise ValueError(f"{min(unknown)}={fixed[min(unknown)]!r}: the knobs are {', '.join(knobs)}")
    knobs |= {name: [value] for name, value in fixed.items()}
    # Knobs that rules join are crossed first, so that the product of all is never made
    ways = _cross({}, {name: knobs[name] for name in ("tp", "cp", "pp", "dp")})
    ways = _keep(ways, ways["tp"] * ways["cp"] * ways["pp"] * ways["dp"] == ranks)
    ways = _cross(ways, {"chunks": knobs["chunks"]})
    ways = _keep(ways, (-L % (ways["pp"] * ways["chunks"]) <= 2) & ((ways["pp"] > 1) | (ways["chunks"] == 1)))
    ways = _cross(ways, {"microbatch": knobs["microbatch"]})
    ways = _keep(ways, batch % (ways["dp"] * ways["microbatch"]) == 0)
    ways = _keep(ways, batch // (ways["dp"] * ways["microbatch"]) >= ways["pp"])
    ways = _cross(ways, {name: knobs[name] for name in ("zero", "schedule", "sequence_parallel", "recompute", "offload")})
    alone = (ways["dp"] * ways["cp"] == 1) & (ways["zero"] > 0) & ("zero" not in fixed)
    ways = _keep(ways, ~alone & ~(ways["sequence_parallel"] & (ways["tp"] == 1) & ("sequence_parallel" not in fixed)))
    layouts = Layout(**ways)
    layouts = layouts[possible(of_model, layouts, batch, sequence)]
    if not len(layouts):
        raise ValueError(f"ranks={ranks}, batch={batch}, sequence={sequence}: no layout is possible for these")
    return layouts


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, int(number) + 1) if number % n == 0]


def _cross(ways: dict[str, np.ndarray], more: dict[str, list]) -> dict[str, np.ndarray]:
    """Each way with each choice of more."""
    for name, values in more.items():
        length = len(next(iter(ways.values()))) if ways else 1
        ways = {known: np.repeat(column, len(values)) for known, column in ways.items()}
        ways[name] = np.tile(np.array(values), length)
    return ways


def _keep(ways: dict[str, np.ndarray], good: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[good] for name, column in ways.items()}
