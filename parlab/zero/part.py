"""The facts that ZeRO needs about a replica that is itself cut: into pipeline stages, or by tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.world import Comm


class Part(NamedTuple):
    """A rank's part of a replica; other ranks have the other parts.

    Several parts may have a copy of one weight. Every block is cut at the same places on each of them, so that copies
    are summed in the same order, and stay equal to the bit.

    Attributes:
        comm: all shards of all parts; the squares of the gradients are summed over it to one norm.
        shares: the weight of this rank's copy of each weight in the norm, by name: 1 / copies.
        parts: how often gradients of each block come. They add up to this rank's mean.
        groups: of each block that other ranks hold than those of the replica's `comm` (experts), these ranks. Their
            summed gradients are still divided by the size of `comm`.
        per_node: how many consecutive ranks of such a group share a node, by block, if it exchanges in two levels.
    """

    comm: Comm
    shares: Mapping[str, float]
    parts: Mapping[Any, int]
    groups: Mapping[Any, Comm] = MappingProxyType({})
    per_node: Mapping[Any, int | None] = MappingProxyType({})


class StatePiece(NamedTuple):
    """Consecutive elements of a flat weight, with their optimizer state: views, which may be written.

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
