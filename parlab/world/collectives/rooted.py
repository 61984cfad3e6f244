"""Collectives with one special rank: binomial trees for broadcast and reduce, straight lines for scatter and gather.

In the binomial tree the ranks count from the root: the parent of v is v without its lowest set bit, its children are
v + 2ᵏ for every 2ᵏ below that bit. The root has ⌈log₂ N⌉ children; after step s of a broadcast 2ˢ⁺¹ ranks hold the
data.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, may_be_native


@may_be_native
def binomial_broadcast(comm: Any, x: Array, root: int) -> Array:
    """`x` of `root`, on every rank: received from the parent, passed on to the children, the farthest first."""
    parent, children = _family(comm.rank, comm.size, root)
    x = namespace(x).asarray(x, copy=True) if parent is None else comm.recv(parent, like=x)
    for child in reversed(children):
        comm.send(x, child)
    return x


@may_be_native
def binomial_reduce(comm: Any, x: Array, root: int, combine: Combine) -> Array | None:
    """The same tree upwards: combine what the children send, the nearest first, then pass it to the parent."""
    parent, children = _family(comm.rank, comm.size, root)
    total = namespace(x).asarray(x, copy=True)
    for child in children:
        total = combine(total, comm.recv(child, like=x))
    if parent is None:
        return namespace(x).asarray(total)  # NumPy makes scalars of arrays without axes
    comm.send(total, parent)
    return None


def _family(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Parent (None for the root) and children, nearest first, of `rank` in the tree."""
    v = (rank - root) % size
    children, bit = [], 1
    while v + bit < size and not v & bit:
        children.append((v + bit + root) % size)
        bit *= 2
    parent = None if v == 0 else ((v & (v - 1)) + root) % size
    return parent, children


@may_be_native
def linear_scatter(comm: Any, pieces: list[Array], root: int) -> Array:
    """The root sends every rank its piece: a fan-out, one message after the other through the root's port."""
    if comm.rank != root:
        return comm.recv(root, like=pieces[comm.rank])
    requests = [comm.isend(pieces[rank], rank) for rank in range(comm.size) if rank != root]
    for request in requests:
        request.wait()
    return namespace(pieces[root]).asarray(pieces[root], copy=True)


@may_be_native
def linear_gather(comm: Any, x: Array, root: int) -> list[Array] | None:
    """Every rank sends to the root: an incast, one message after the other through the root's port."""
    if comm.rank != root:
        comm.send(x, root)
        return None
    requests = [comm.irecv(rank, like=x) for rank in range(comm.size) if rank != root]
    pieces = [request.wait() for request in requests]
    return [*pieces[:root], x, *pieces[root:]]


def binomial_broadcast_cost(size: int, nbytes: int, root: int, link: Link) -> Cost:
    """⌈log₂N⌉(α + nβ); the root sends ⌈log₂N⌉ times."""
    children = [len(_family(rank, size, root)[1]) for rank in range(size)]
    return Cost(children, [nbytes * count for count in children], children[root] * link.picoseconds(nbytes))


def binomial_reduce_cost(size: int, nbytes: int, root: int, link: Link) -> Cost:
    """⌈log₂N⌉(α + nβ); every rank but the root sends once."""
    messages = [int(rank != root) for rank in range(size)]
    time = (size - 1).bit_length() * link.picoseconds(nbytes)
    return Cost(messages, [nbytes * count for count in messages], time)


def linear_scatter_cost(size: int, piece_nbytes: int, root: int, link: Link) -> Cost:
    """(N − 1)(α + nβ/N): the root's port is the bottleneck."""
    messages = [(size - 1) * (rank == root) for rank in range(size)]
    return Cost(messages, [piece_nbytes * count for count in messages], (size - 1) * link.picoseconds(piece_nbytes))


def linear_gather_cost(size: int, piece_nbytes: int, root: int, link: Link) -> Cost:
    """(N − 1)(α + nβ/N): the root's port is the bottleneck."""
    messages = [int(rank != root) for rank in range(size)]
    return Cost(messages, [piece_nbytes * count for count in messages], (size - 1) * link.picoseconds(piece_nbytes))
