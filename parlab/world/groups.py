"""The ranks of a group as a grid: a row for each node, a column for each place in a node.

                 place 0   place 1   place 2
    node 0       rank 0    rank 1    rank 2
    node 1       rank 3    rank 4    rank 5        rank 4: inside its node 3, 4, 5; between the nodes 1, 4

Invariant: with g ranks a node, rank r is at place r mod g of node r // g, and its two groups share no other rank.
"""

from __future__ import annotations

from typing import Any

from parlab.arguments import whole
from parlab.world.comm import Comm
from parlab.world.errors import MismatchError
from parlab.world.units import several


def grid(comm: Comm, ranks_per_node: int, name: str = "ranks_per_node") -> tuple[Comm, Comm]:
    """`(inside, between)`: the ranks of this rank's node, by place; and the ranks at its place of every node, by node.

    A node is so many consecutive ranks, here. It may be any such group: `name` is the argument's name, for errors.
    All ranks of `comm` call this, and no message travels.

    Raises:
        ValueError: the ranks of `comm` do not fill such nodes.
        MismatchError: another rank was told another number.

    >>> from parlab import run
    >>> def places(comm):
    ...     inside, between = grid(comm, ranks_per_node=3)
    ...     return inside.rank, inside.size, between.rank, between.size
    >>> run(places, 6).results[4]
    (1, 3, 1, 2)
    """
    checked_group(name, ranks_per_node, comm.size)
    node, place = divmod(comm.rank, ranks_per_node)
    inside: Any = comm.split(node)
    between: Any = comm.split(place)
    # Told different numbers, some rank sees it: every node has a place 0, so that column counts the nodes of all ranks.
    if (inside.size, between.size) != (ranks_per_node, comm.size // ranks_per_node):
        raise MismatchError(f"rank {comm.rank} was told {name}={ranks_per_node}, and another rank something else")
    return inside, between


def checked_group(name: str, ranks: int, size: int) -> int:
    """`ranks`, the argument called `name`, if groups of so many divide `size` ranks; else a ValueError."""
    if whole(name, ranks) < 1 or size % ranks:
        divisors = [number for number in range(1, size + 1) if size % number == 0]
        raise ValueError(f"{name}={ranks}: must divide the {several(size, 'rank')}: use one of {divisors}")
    return ranks
