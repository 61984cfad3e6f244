"""An all-reduce on g rings at once, as NCCL's channels are: each ring crosses between nodes at another place.

One ring through all ranks leaves a node through one rank's card, and the cards of the others rest. Here a rank is
(node, place), with g places a node. Ring j enters each node at place j, visits the places j, j + 1, ..., j + g − 1
(mod g), and leaves to place j of the next node. So every rank is where one of the rings crosses. Each ring all-reduces
its own 1/g of the data, as `parlab.world.collectives.ring` does, with the ranks numbered along this ring.

In a step a rank sends and receives a piece on every ring: it posts all of them, then waits for all. On g − 1 rings they
stay inside the node, and on one they cross.

Source: NVIDIA, NCCL, src/graph/rings.cc: a channel is a ring that enters and leaves a node at cards of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, flat_copy, piece_sizes, pieces_of


class RingPlace(NamedTuple):
    """A rank's place on one of the rings."""

    position: int  # along the ring, from 0
    before: int  # the rank that it receives from
    after: int  # the rank that it sends to
    pieces: list[slice]  # of the ring's part of the array, one a position

    def piece(self, back: int) -> slice:
        """The piece of the rank that stands `back` positions before this one."""
        return self.pieces[(self.position - back) % len(self.pieces)]


def rings_all_reduce(comm: Any, x: Array, combine: Combine, ranks_per_node: int) -> Array:
    """Each ring: a reduce-scatter, then an all-gather, of its part of the data.

    Invariant, on each ring: after step s of the reduce-scatter, position q has the sum of s + 2 ranks' pieces in piece
    (q − s − 2) mod P; after step s of the all-gather it has the finished pieces q, q − 1, ..., q − s − 1.
    """
    flat = flat_copy(x)  # [n]
    parts = pieces_of(piece_sizes(flat.shape[0], ranks_per_node))
    rings = [ring_place(comm.rank, comm.size, ring, part, ranks_per_node) for ring, part in enumerate(parts)]
    for step in range(comm.size - 1):
        for received, arrived in _shift_on_all(comm, flat, rings, step + 1):
            flat[received] = combine(flat[received], arrived)
    for step in range(comm.size - 1):
        for received, arrived in _shift_on_all(comm, flat, rings, step):
            flat[received] = arrived
    return namespace(x).reshape(flat, x.shape)


def _shift_on_all(comm: Any, flat: Array, rings: list[RingPlace], back: int) -> list[tuple[slice, Array]]:
    """On all rings at once, send `piece(back)`; returns of each `piece(back + 1)`, and the numbers that came."""
    received = [ring.piece(back + 1) for ring in rings]
    incoming = [comm.irecv(ring.before, flat[piece]) for ring, piece in zip(rings, received, strict=True)]
    outgoing = [comm.isend(flat[ring.piece(back)], ring.after) for ring in rings]
    arrived = [request.wait() for request in incoming]
    for request in outgoing:
        request.wait()
    return list(zip(received, arrived, strict=True))


def ring_place(rank: int, size: int, ring: int, part: slice, ranks_per_node: int) -> RingPlace:
    """Where `rank` stands on ring number `ring`, which all-reduces the elements `part`."""
    node, place = divmod(rank, ranks_per_node)
    nodes = size // ranks_per_node
    first, last = ring % ranks_per_node, (ring - 1) % ranks_per_node  # the places where the ring enters and leaves
    from_node = (node - 1) % nodes if place == first else node
    to_node = (node + 1) % nodes if place == last else node
    lengths = piece_sizes(part.stop - part.start, size)
    return RingPlace(
        position=node * ranks_per_node + (place - ring) % ranks_per_node,
        before=from_node * ranks_per_node + (place - 1) % ranks_per_node,
        after=to_node * ranks_per_node + (place + 1) % ranks_per_node,
        pieces=[slice(part.start + piece.start, part.start + piece.stop) for piece in pieces_of(lengths)],
    )


def rings_all_reduce_cost(size: int, length: int, itemsize: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """2(P − 1) max(α' + mβ', (g − 1)(α + mβ)), m = n/gP, where gP divides the length; else the longest piece's time.

    In a node with a port a level, the message that crosses passes beside the g − 1 that stay inside.
    """
    g = ranks_per_node
    parts = pieces_of(piece_sizes(length, g))
    nbytes = [
        sum(_sent(ring_place(rank, size, ring, part, g), itemsize) for ring, part in enumerate(parts))
        for rank in range(size)
    ]
    longest = itemsize * max(piece.stop - piece.start for piece in ring_place(0, size, 0, parts[0], g).pieces)
    inside, crossing = intra.picoseconds(longest), inter.picoseconds(longest)
    time = 2 * (size - 1) * (max(crossing, (g - 1) * inside) if size > g else g * inside)
    return Cost([2 * (size - 1) * g] * size, nbytes, time)


def _sent(place: RingPlace, itemsize: int) -> int:
    """Bytes that a rank sends on one ring: all pieces but its own, then all but its successor's."""
    sizes = [itemsize * (piece.stop - piece.start) for piece in place.pieces]
    return 2 * sum(sizes) - sizes[place.position] - sizes[(place.position + 1) % len(sizes)]
