"""Collectives in two levels. Messages stay inside a node where possible; a piece enters each other node once.

A rank of the group is (node, place): rank = node · g + place, with g ranks a node and k nodes. Inside a node the ranks
of all places talk to each other; between nodes each rank talks only to the ranks of its own place.

                     levels                  invariant: after the first level, a rank has
    all-gather       between, then inside    the pieces of its place, from all nodes
    reduce-scatter   inside, then between    its node's sums of the pieces of its place
    all-to-all       inside, then between    all pieces that its node sends to its place

Sources: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
performance" (IPDPS 2000); the all-reduce: Jia et al., "Highly scalable deep learning training system with
mixed-precision" (2018), section 3.2.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, Subset, flat_copy, joined, of_joined, piece_sizes, pieces_of
from parlab.world.collectives.ring import (
    ring_all_gather,
    ring_all_gather_cost,
    ring_all_reduce,
    ring_all_reduce_cost,
    ring_reduce_scatter,
    ring_reduce_scatter_cost,
)
from parlab.world.collectives.shifts import pairwise_all_to_all, pairwise_all_to_all_cost


def inside_and_between(comm: Any, ranks_per_node: int) -> tuple[Subset, Subset]:
    """This rank's node, numbered by place, and the ranks of its place, numbered by node."""
    node, place = divmod(comm.rank, ranks_per_node)
    inside = Subset(comm, range(node * ranks_per_node, (node + 1) * ranks_per_node))
    between = Subset(comm, range(place, comm.size, ranks_per_node))
    return inside, between


def _by_place(pieces: list[slice], ranks_per_node: int) -> tuple[list[slice], list[slice]]:
    """The pieces, place after place and in a place by node; and, of the array joined so, the piece of each place."""
    of_places = [pieces[place::ranks_per_node] for place in range(ranks_per_node)]
    lengths = [sum(piece.stop - piece.start for piece in of_place) for of_place in of_places]
    return [piece for of_place in of_places for piece in of_place], pieces_of(lengths)


def hierarchical_all_gather(comm: Any, flat: Array, pieces: list[slice], ranks_per_node: int) -> None:
    """`flat` [n], in place: rank r's piece r goes to all others.

    A piece crosses to each other node once; inside the node it travels with the pieces of its place.
    """
    inside, between = inside_and_between(comm, ranks_per_node)
    of_own_place = pieces[inside.rank :: ranks_per_node]
    _gather_joined(between, flat, of_own_place, of_joined(of_own_place))
    by_place, of_places = _by_place(pieces, ranks_per_node)
    _gather_joined(inside, flat, by_place, of_places)


def _gather_joined(level: Subset, flat: Array, wanted: list[slice], of_members: list[slice]) -> None:
    """Gather the pieces `wanted` of `flat`, joined. Member r begins with piece `of_members[r]` of the joined array."""
    together = joined(flat, wanted)
    ring_all_gather(level, together, of_members)
    for piece, in_together in zip(wanted, of_joined(wanted), strict=True):
        flat[piece] = together[in_together]


def hierarchical_all_gather_cost(size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """(k − 1)(α' + bβ') + (g − 1)(α + kbβ), b bytes a piece: (k − 1)b to other nodes, (g − 1)kb inside its own."""
    nodes = size // ranks_per_node
    between = ring_all_gather_cost([piece_nbytes] * nodes, inter)
    inside = ring_all_gather_cost([nodes * piece_nbytes] * ranks_per_node, intra)
    return _both_levels(size, inside, between)


def hierarchical_reduce_scatter(
    comm: Any, flat: Array, pieces: list[slice], combine: Combine, ranks_per_node: int
) -> None:
    """`flat` [n], in place: rank r's piece r becomes the combination of all ranks' pieces r.

    The ranks of a node add up first. So each node sends one sum of a piece, and not one part from each rank.
    """
    inside, between = inside_and_between(comm, ranks_per_node)
    by_place, of_places = _by_place(pieces, ranks_per_node)
    together = joined(flat, by_place)  # [n]
    ring_reduce_scatter(inside, together, of_places, combine)
    sums = together[of_places[inside.rank]]  # the node's sums of the pieces of this place
    of_nodes = of_joined(pieces[inside.rank :: ranks_per_node])
    ring_reduce_scatter(between, sums, of_nodes, combine)
    flat[pieces[comm.rank]] = sums[of_nodes[between.rank]]


def hierarchical_reduce_scatter_cost(
    size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link
) -> Cost:
    """(g − 1)(α + kbβ) + (k − 1)(α' + bβ'): the all-gather, backwards."""
    nodes = size // ranks_per_node
    inside = ring_reduce_scatter_cost([nodes * piece_nbytes] * ranks_per_node, intra)
    between = ring_reduce_scatter_cost([piece_nbytes] * nodes, inter)
    return _both_levels(size, inside, between)


def hierarchical_all_to_all(comm: Any, pieces: list[Array], ranks_per_node: int) -> list[Array]:
    """The i-th piece goes to rank i; returns the pieces that came, by source.

    First each rank gives its pieces for one place, in all nodes, to the rank of that place in its own node. Then that
    rank sends the pieces of its whole node to its place in each other node, one message a node.
    """
    xp = namespace(pieces[0])
    inside, between = inside_and_between(comm, ranks_per_node)
    nodes, places = range(between.size), range(inside.size)
    for_place = [xp.stack([pieces[node * ranks_per_node + place] for node in nodes]) for place in places]
    from_place = pairwise_all_to_all(inside, for_place)  # of each place here [k, piece], for our place in each node
    for_node = [xp.stack([from_place[place][node, ...] for place in places]) for node in nodes]
    from_node = pairwise_all_to_all(between, for_node)  # of each node [g, piece], for us
    return [from_node[node][place, ...] for node in nodes for place in places]


def hierarchical_all_to_all_cost(size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """(g − 1)(α + kbβ) + (k − 1)(α' + gbβ'), b bytes a piece."""
    nodes = size // ranks_per_node
    inside = pairwise_all_to_all_cost(ranks_per_node, nodes * piece_nbytes, intra)
    between = pairwise_all_to_all_cost(nodes, ranks_per_node * piece_nbytes, inter)
    return _both_levels(size, inside, between)


def hierarchical_all_reduce(comm: Any, x: Array, combine: Combine, ranks_per_node: int) -> Array:
    """Reduce inside each node first, so that only 1/g of the data crosses between nodes.

    After the reduce-scatter inside, a rank has its node's sum of the piece of its place. After the ring between the
    ranks of its place it has the whole sum of that piece. The all-gather inside spreads it.
    """
    inside, between = inside_and_between(comm, ranks_per_node)
    flat = flat_copy(x)  # [n]
    pieces = pieces_of(piece_sizes(flat.shape[0], ranks_per_node))
    ring_reduce_scatter(inside, flat, pieces, combine)
    own = pieces[inside.rank]
    flat[own] = ring_all_reduce(between, flat[own], combine)
    ring_all_gather(inside, flat, pieces)
    return namespace(x).reshape(flat, x.shape)


def hierarchical_all_reduce_cost(
    size: int, length: int, itemsize: int, ranks_per_node: int, intra: Link, inter: Link
) -> Cost:
    """2(g − 1)(α + nβ/g) inside, and 2(k − 1)(α' + nβ'/gk) between."""
    inside = ring_all_reduce_cost(ranks_per_node, length, itemsize, intra)
    pieces = piece_sizes(length, ranks_per_node)
    across = [ring_all_reduce_cost(size // ranks_per_node, piece, itemsize, inter) for piece in pieces]
    places = [divmod(rank, ranks_per_node) for rank in range(size)]
    return Cost(
        [inside.messages[place] + across[place].messages[node] for node, place in places],
        [inside.nbytes[place] + across[place].nbytes[node] for node, place in places],
        inside.picoseconds + across[0].picoseconds,
    )


def _both_levels(size: int, inside: Cost, between: Cost) -> Cost:
    """The cost of two levels with equal pieces: every rank does both, and all ranks send the same."""
    return Cost(
        [inside.messages[0] + between.messages[0]] * size,
        [inside.nbytes[0] + between.nbytes[0]] * size,
        inside.picoseconds + between.picoseconds,
    )
