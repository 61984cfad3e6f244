"""Exchanges in two levels, for ranks in nodes: a K/V head enters each other node once, whoever reads it there.

A rank of the group is (node, place): rank = node · g + place, with g ranks a node and k nodes. Between nodes a rank
sends only to the ranks of its own place, inside a node to the ranks of all places. Of each exchange, the order of the
two levels, and the invariant:

    K/V -> all ranks       between, then inside    after level 1 a rank has the K/V of its place, of all nodes
    dK/dV -> home          inside, then between    after level 1 a rank has its node's sums for its place, of all nodes
    tokens -> heads        between, then inside    after level 1 a rank has its node's heads of the tokens of its place
    heads -> tokens        inside, then between    after level 1 a rank has the same, summed over its node

Sources: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
performance" (IPDPS 2000); Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1; Llama 3 (2024), section 3.3.2.
"""

from __future__ import annotations

from parlab.arrays import Array
from parlab.sequence.attend import ALL, KV, add_to
from parlab.sequence.exchange import swap_with_all
from parlab.sequence.heads import HeadLevel, HeadShare, Runs, head_shares, token_runs
from parlab.world import Comm
from parlab.world.groups import checked_group, grid


class TwoLevelGather:
    """K/V to all ranks, and their gradients home: as `GatherExchange`, but a rank's K/V enter each other node once."""

    def __init__(self, comm: Comm, label: str, ranks_per_node: int) -> None:
        self.comm, self.label = comm, label
        self.inside, self.between = grid(comm, ranks_per_node)

    def gather(self, few: KV) -> dict[int, KV]:
        """Give `few` to every rank, and take as many from each: by source, in the order of `GatherExchange`."""
        nodes, ranks = self.between.size, self.inside.size
        own_place = dict(swap_with_all(self.between, [few] * nodes, [few] * nodes, self.label))  # by node
        column = [own_place[node] for node in range(nodes)]
        by_place = dict(swap_with_all(self.inside, [column] * ranks, [column] * ranks, self.label))
        order = [(self.comm.rank - step) % self.comm.size for step in range(self.comm.size)]
        return {source: by_place[source % ranks][source // ranks] for source in order}

    def scatter_sum(self, shares: dict[int, KV], mine: KV) -> None:
        """Send each source the sum of this node's shares of its gradients, and add to `mine` those that come."""
        nodes, ranks = self.between.size, self.inside.size
        by_place = [[shares[node * ranks + place] for node in range(nodes)] for place in range(ranks)]
        sums = by_place[self.inside.rank]  # of the sources of our place, at first our own shares
        for place, column in swap_with_all(self.inside, by_place, [sums] * ranks, self.label):
            if place != self.inside.rank:  # our own are the sums
                add_to_each(sums, column)
            del column  # no longer held when the next one comes
        for _, share in swap_with_all(self.between, sums, [mine] * nodes, self.label):
            add_to(mine, share)
            del share


def head_levels(
    comm: Comm, q: Array, k: Array, layout: str = "contiguous", *, ranks_per_node: int | None
) -> list[HeadLevel]:
    """The all-to-alls that turn shards like q and k into heads, in their order; back they are made the other way round.

    One among all ranks; or told the ranks of a node (`ranks_inside`) one between the nodes, in which each node gets the
    heads of all its ranks, and one inside it. Back, the values of a K/V head are summed inside each node first.
    """
    length = q.shape[2]
    shares, runs = head_shares(q.shape[1], k.shape[1], comm.size), token_runs(comm.size, length, layout)
    if ranks_per_node is None:
        return [HeadLevel(comm, shares, runs)]
    inside, between = grid(comm, ranks_per_node)
    of_nodes = node_shares(shares, ranks_per_node)
    joined = token_runs(between.size, length, "contiguous")  # the shards of a place, one after the other, by node
    own_heads = shares_inside(shares, of_nodes[between.rank], between.rank, ranks_per_node)
    return [
        HeadLevel(between, of_nodes, joined),
        HeadLevel(inside, own_heads, runs_by_place(runs, length, ranks_per_node)),
    ]


def ranks_inside(group: int, ranks_per_node: int | None, size: int) -> int | None:
    """How many ranks of a `group` of consecutive ranks share a node. None, for one level: nobody asked, all of them do,
    or no two of them do.

    Raises:
        ValueError: the groups neither fill nodes nor divide one.
    """
    if ranks_per_node is None:
        return None
    checked_group("ranks_per_node", ranks_per_node, size)
    if ranks_per_node % group and group % ranks_per_node:
        right = f"must divide the group of {group} ranks, or be a multiple of it"
        raise ValueError(f"ranks_per_node={ranks_per_node}: {right}")
    return None if ranks_per_node == 1 or ranks_per_node % group == 0 else ranks_per_node


def node_shares(shares: list[HeadShare], ranks_per_node: int) -> list[HeadShare]:
    """The heads of each node: those of its ranks, a K/V head that several of them read once."""
    of_nodes = []
    for start in range(0, len(shares), ranks_per_node):
        first, last = shares[start], shares[start + ranks_per_node - 1]
        query_heads = slice(first.query_heads.start, last.query_heads.stop)
        kv_heads = slice(first.kv_heads.start, last.kv_heads.stop)
        of_nodes.append(HeadShare(query_heads, kv_heads, ALL))
    return of_nodes


def shares_inside(shares: list[HeadShare], of_node: HeadShare, node: int, ranks_per_node: int) -> list[HeadShare]:
    """The heads of each rank of a node, counted from the first heads `of_node`."""
    ranks = shares[node * ranks_per_node : (node + 1) * ranks_per_node]
    first_query_head, first_kv_head = of_node.query_heads.start, of_node.kv_heads.start
    return [
        HeadShare(shifted(share.query_heads, -first_query_head), shifted(share.kv_heads, -first_kv_head), share.reads)
        for share in ranks
    ]


def runs_by_place(runs: list[Runs], length: int, ranks_per_node: int) -> list[Runs]:
    """Where the tokens of each place stand: in its shards of all nodes, joined by node, and in the whole sequence."""
    nodes = len(runs) // ranks_per_node
    found: list[Runs] = []
    for place in range(ranks_per_node):
        joined: Runs = []
        for node in range(nodes):
            of_rank = runs[node * ranks_per_node + place]
            joined += [(shifted(here, node * length), there) for here, there in of_rank]
        found.append(joined)
    return found


def add_to_each(totals: list[KV], parts: list[KV]) -> None:
    """Add each pair to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        add_to(total, part)


def shifted(part: slice, by: int) -> slice:
    """The same elements, where `by` more stand before them."""
    return slice(part.start + by, part.stop + by)
