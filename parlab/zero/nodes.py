"""The groups of ZeRO where ranks share nodes: the ranks that share the state, and the ranks that repeat it."""

from __future__ import annotations

from typing import cast

from parlab.world import Comm
from parlab.zero.arguments import checked_ranks_per_node


def sharers(comm: Comm, ranks_per_node: int | None, repeat_on_nodes: bool) -> tuple[Comm, Comm | None, int | None]:
    """`(the ranks that share the state, the ranks with the same shard, how many of the first share a node)`.

    Without `repeat_on_nodes` all ranks share the state; in two levels, if `ranks_per_node` is given. With it the ranks
    of a node share the state, and the ranks of one place in their nodes have the same shard.

    Raises:
        ValueError: nodes that `comm` does not have.
    """
    per_node = checked_ranks_per_node(ranks_per_node, repeat_on_nodes, comm.size)
    if not repeat_on_nodes:
        return comm, None, ranks_per_node
    inside = cast(Comm, comm.split(comm.rank // per_node))
    return inside, cast(Comm, comm.split(comm.rank % per_node)) if per_node < comm.size else None, None
