"""The facts that ZeRO needs about a replica that is itself cut: into pipeline stages, or by tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.world import Comm


class Part(NamedTuple):
    """A rank's part of a replica, beside which other ranks have theirs.

    Every block is then cut by itself: a weight that several such parts have a copy of, alone in its block or beside
    weights of the same sizes, is summed in the same order everywhere, and its copies stay equal to the bit.

    Attributes:
        comm: over which the squares of the gradients are summed to one norm: all shards of all parts.
        shares: what this rank's copy of a weight counts in the norm, by name: 1 / copies.
        parts: how often gradients of each block come. They add up to this rank's mean.
    """

    comm: Comm
    shares: Mapping[str, float]
    parts: Mapping[Any, int]


class StatePiece(NamedTuple):
    """Some consecutive elements of a weight, flat, with the optimizer's state of them: views, which may be written.

    Attributes:
        name: of the weight.
        start: of the first element in the flat weight, as this replica (or part of one) has it.
        master, mean, square: `[n]`.
    """

    name: str
    start: int
    master: Array
    mean: Array
    square: Array
