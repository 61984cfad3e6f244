"""The all-to-alls of Ulysses, for ranks in nodes: a K/V head enters each other node once, whoever reads it there.

A rank of the group is (node, place): rank = node · g + place, with g ranks a node and k nodes. Between nodes a rank
sends only to the ranks of its own place, inside a node to the ranks of all places.

Invariant: between the two levels a rank has all heads of its node, of the tokens of its place, of all nodes. On the way
to the heads the level between nodes comes first, on the way back the one inside them, which sums over the node.

H = 4 heads, P = 4 ranks with a token each, nodes 0, 1 and 2, 3; `to_heads` on rank 0, in `[heads, tokens]`:

                         sends                         has
        before                                         [0 to 3, 0]
        between nodes    [2 and 3, 0] to rank 2        [0 and 1, 0 and 2]
        inside           [1, 0 and 2] to rank 1        [0, 0 to 3]

Sources: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
performance" (IPDPS 2000); Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from parlab.sequence.heads import HeadLevel, RankHeads, chunks_of_ranks, heads_of_ranks
from parlab.world import Comm
from parlab.world.groups import checked_group, grid


def head_levels(
    comm: Comm, H: int, G: int, layout: str = "contiguous", *, ranks_per_node: int | None
) -> list[HeadLevel]:
    """The all-to-alls that bring tokens to their heads, in their order; back they are made the other way round.

    One among all ranks; or told the ranks of a node (`ranks_inside`) one between the nodes, in which each node gets the
    heads of all its ranks, and one inside it. Back, the values of a K/V head are summed inside each node first.
    """
    heads, chunks = heads_of_ranks(H, G, comm.size), chunks_of_ranks(comm.size, layout)  # by rank
    if ranks_per_node is None:
        return [HeadLevel(comm, heads, chunks)]
    inside, between = grid(comm, ranks_per_node)
    of_nodes = heads_of_nodes(heads, ranks_per_node)
    of_neighbours = heads[between.rank * ranks_per_node : (between.rank + 1) * ranks_per_node]  # on our node
    inside_node = [counted_from(of_nodes[between.rank], own) for own in of_neighbours]
    one_a_node = [[node] for node in range(between.size)]  # the shards of our place, one after another
    return [
        HeadLevel(between, of_nodes, one_a_node),
        HeadLevel(inside, inside_node, chunks_of_places(chunks, ranks_per_node)),
    ]


def heads_of_nodes(heads: list[RankHeads], ranks_per_node: int) -> list[RankHeads]:
    """The heads of each node: those of its ranks, a K/V head that several of them read once."""
    of_nodes = []
    for start in range(0, len(heads), ranks_per_node):
        first, last = heads[start], heads[start + ranks_per_node - 1]
        query_heads = slice(first.query_heads.start, last.query_heads.stop)
        of_nodes.append(RankHeads(query_heads, slice(first.kv_heads.start, last.kv_heads.stop)))
    return of_nodes


def counted_from(first: RankHeads, own: RankHeads) -> RankHeads:
    """The same heads, counted from the first ones of their node."""
    return RankHeads(*(slice(x.start - base.start, x.stop - base.start) for x, base in zip(own, first, strict=True)))


def chunks_of_places(chunks: list[list[int]], ranks_per_node: int) -> list[list[int]]:
    """The chunks of each place of a node, whose shards of all nodes stand one after another, by node.

    >>> chunks_of_places([[0], [1], [2], [3]], ranks_per_node=2)  # place 0 has those of ranks 0 and 2
    [[0, 2], [1, 3]]
    """
    return [[chunk for own in chunks[place::ranks_per_node] for chunk in own] for place in range(ranks_per_node)]


def ranks_inside(group: int, ranks_per_node: int | None, size: int) -> int | None:
    """How many ranks of a `group` of consecutive ranks share a node. None, for one level: nobody asked, all of them do,
    or no two of them do.

    Raises:
        ValueError: the groups neither fill nodes nor divide one.

    >>> [ranks_inside(4, ranks_per_node, size=8) for ranks_per_node in (1, 2, 4, 8)]
    [None, 2, None, None]
    """
    if ranks_per_node is None:
        return None
    checked_group("ranks_per_node", ranks_per_node, size)
    if ranks_per_node % group and group % ranks_per_node:
        right = f"must divide the group of {group} ranks, or be a multiple of it"
        raise ValueError(f"ranks_per_node={ranks_per_node}: {right}")
    return None if ranks_per_node == 1 or ranks_per_node % group == 0 else ranks_per_node
