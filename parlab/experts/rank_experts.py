"""The experts of one rank: which of the N they are, the routing among them, and their work on the clock.

Invariant: each expert is on one rank; rank r of P has the m = N/P experts r·m .. (r + 1)·m − 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.formulas import linear_flops
from parlab.nn.layers import MLPCache, ProjectionsPending
from parlab.nn.moe import Experts
from parlab.nn.routing import Routing
from parlab.nn.stage import Gradients, Weights
from parlab.world import Comm


def check_experts(num_experts: int, size: int) -> None:
    """Refuse experts that do not divide among the ranks."""
    if num_experts % size:
        raise ValueError(f"num_experts={num_experts}: does not divide among {size} ranks; use a multiple of {size}")


def experts_of(rank: int, num_experts: int, size: int) -> range:
    """The global numbers of the experts of a rank: N/P consecutive ones.

    >>> experts_of(1, num_experts=8, size=4)
    range(2, 4)
    """
    own = num_experts // size
    return range(rank * own, (rank + 1) * own)


def local_routing(chosen: Array, gates: Array, own: range) -> Routing:
    """The routing of rows `[rows, k]` among the experts `own` alone, numbered from 0. Others have the number above.

    >>> import numpy as np
    >>> local_routing(np.array([[0, 5], [4, 3]]), None, range(3, 5)).chosen.tolist()  # 3 and 4 are here
    [[2, 2], [1, 0]]
    """
    here = (chosen >= own.start) & (chosen < own.stop)
    return Routing(namespace(chosen).where(here, chosen - own.start, len(own)), gates)


class RankExperts(Experts):
    """`Experts` of this rank: the same work, on the clock."""

    def __init__(self, comm: Comm, weights: Weights, prefix: str, numbers: range) -> None:
        super().__init__(weights, prefix, numbers)
        self.comm = comm

    def forward(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """`(answers, caches)`."""
        self.comm.hold("rows", rows)
        _, M = self.weights[self.weight_names[0]].shape
        with self.comm.compute("experts", flops=product_flops(rows, M)):
            return super().forward(rows, counts)

    def backward_input(self, drows: Array, caches: Sequence[MLPCache]) -> tuple[Array, list[Any]]:
        """`(drows, pendings)`."""
        flops = sum(product_flops(cache.x, cache.gate.shape[1]) for cache in caches)
        with self.comm.compute("experts (B)", flops=flops):
            return super().backward_input(drows, caches)

    def backward_weight(self, pendings: Sequence[ProjectionsPending]) -> Gradients:
        """The gradients of this rank's experts."""
        flops = sum(product_flops(pending.x, pending.dys[0].shape[1]) for pending in pendings)  # weights may be freed
        with self.comm.compute("experts (W)", flops=flops):
            return super().backward_weight(pendings)


def product_flops(x: Array, M: int) -> int:
    """Of an expert's three products of rows x `[R, E]` and M columns; either part of the backward has as many."""
    rows, E = x.shape
    return 3 * linear_flops(rows, E, M).forward
