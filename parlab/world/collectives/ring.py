"""The ring: every rank talks to its two neighbours only, and every link is busy in every step.

An array [n] is cut into P pieces, and piece r belongs to rank r. In the reduce-scatter a piece travels once around the
ring; every rank adds its own part, and the sum arrives at the piece's owner. In the all-gather the sums travel around.

Invariant: after step s (from 0), the piece that a rank received last combines the parts of s + 2 ranks
(reduce-scatter), or a rank has s + 2 finished pieces (all-gather).

Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 2009).
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, flat_copy, labels_of, piece_sizes, pieces_of


def ring_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter, then an all-gather: 2(P − 1) steps, 2(P − 1)/P of the data sent by each rank."""
    flat = flat_copy(x)  # [n]
    pieces = pieces_of(piece_sizes(flat.shape[0], comm.size))
    ring_reduce_scatter(comm, flat, pieces, combine)
    ring_all_gather(comm, flat, pieces)
    return namespace(x).reshape(flat, x.shape)


def ring_reduce_scatter(comm: Any, flat: Array, pieces: list[slice], combine: Combine) -> None:
    """`flat` [n], in place: rank r's piece r becomes the combination of all ranks' pieces r.

    Invariant: after step s (from 0), rank r has in piece (r − s − 2) mod P the combination of s + 2 ranks' pieces.
    """
    for step in range(comm.size - 1):
        sent = (comm.rank - step - 1) % comm.size
        received = (comm.rank - step - 2) % comm.size
        own = flat[pieces[received]]
        # The received piece has no name, so its memory is freed here.
        flat[pieces[received]] = combine(own, _shift(comm, flat, pieces, "add", sent, received))


def ring_all_gather(comm: Any, flat: Array, pieces: list[slice]) -> None:
    """`flat` [n], in place: rank r's piece r goes to all others.

    Invariant: after step s (from 0), rank r has the finished pieces r, r − 1, ..., r − s − 1 (mod P).
    """
    for step in range(comm.size - 1):
        sent = (comm.rank - step) % comm.size
        received = (comm.rank - step - 1) % comm.size
        flat[pieces[received]] = _shift(comm, flat, pieces, "take", sent, received)


def _shift(comm: Any, flat: Array, pieces: list[slice], how: str, sent: int, received: int) -> Array:
    """Send piece `sent` to the right, and return piece `received` from the left. Figures read the labels."""
    labels = labels_of(how, parts=comm.size, count=1, sent=sent, received=received)
    return comm.sendrecv(flat[pieces[sent]], comm.right, comm.left, flat[pieces[received]], **labels)


def ring_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2(P − 1)α + 2(P − 1)/P · nβ where P divides the length; otherwise the longest piece sets the pace."""
    nbytes = [itemsize * piece for piece in piece_sizes(length, size)]
    return ring_reduce_scatter_cost(nbytes, link) + ring_all_gather_cost(nbytes, link)


def ring_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """(P − 1)(α + n/P · β): rank r sends every piece but its own; the longest piece travels P − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - own for own in nbytes], time)


def ring_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """(P − 1)(α + n/P · β): rank r sends every piece but its right neighbour's; the longest travels P − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - nbytes[(rank + 1) % size] for rank in range(size)], time)
