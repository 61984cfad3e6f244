"""Collectives with a root: binomial trees for broadcast and reduce; for scatter and gather the root talks to each rank.

In the binomial tree a rank has the number v = (rank − root) mod P. The parent of v is v without its lowest set bit. The
children of v are v + 2ᵏ for every 2ᵏ below that bit. So the root has ⌈log₂P⌉ children.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA 2005).
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost


def binomial_broadcast(comm: Any, x: Array, root: int) -> Array:
    """`x` of `root`, on every rank: received from the parent, then sent to the children, the farthest first.

    Invariant: after step s (from 0), 2ˢ⁺¹ ranks have the data.
    """
    parent, children = _family(comm.rank, comm.size, root)
    x = namespace(x).asarray(x, copy=True) if parent is None else comm.recv(parent, like=x)
    for child in reversed(children):
        comm.send(x, child)
    return x


def binomial_broadcast_cost(size: int, nbytes: int, root: int, link: Link) -> Cost:
    """⌈log₂P⌉(α + nβ); the root sends ⌈log₂P⌉ times."""
    children = [len(_family(rank, size, root)[1]) for rank in range(size)]
    return Cost(children, [nbytes * count for count in children], children[root] * link.picoseconds(nbytes))


def binomial_reduce(comm: Any, x: Array, root: int, combine: Combine) -> Array | None:
    """The combination of all `x` on `root`, None elsewhere: from the children, the nearest first, then to the parent.

    Invariant: when a rank sends, its array combines all ranks of its subtree.
    """
    parent, children = _family(comm.rank, comm.size, root)
    total = namespace(x).asarray(x, copy=True)
    for child in children:
        total = combine(total, comm.recv(child, like=x))
    if parent is None:
        return namespace(x).asarray(total)  # NumPy makes scalars of arrays without axes
    comm.send(total, parent)
    return None


def binomial_reduce_cost(size: int, nbytes: int, root: int, link: Link) -> Cost:
    """⌈log₂P⌉(α + nβ); every rank but the root sends once."""
    messages = [int(rank != root) for rank in range(size)]
    time = (size - 1).bit_length() * link.picoseconds(nbytes)
    return Cost(messages, [nbytes * count for count in messages], time)


def _family(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """The parent of `rank` in the tree (None for the root), and its children, the nearest first."""
    v = (rank - root) % size
    children, bit = [], 1
    while v + bit < size and not v & bit:
        children.append((v + bit + root) % size)
        bit *= 2
    parent = None if v == 0 else ((v & (v - 1)) + root) % size
    return parent, children


def linear_scatter(comm: Any, pieces: list[Array], root: int) -> Array:
    """The root sends every rank its piece, one message after the other through its port."""
    if comm.rank != root:
        return comm.recv(root, like=pieces[comm.rank])
    requests = [comm.isend(pieces[rank], rank) for rank in range(comm.size) if rank != root]
    for request in requests:
        request.wait()
    return namespace(pieces[root]).asarray(pieces[root], copy=True)


def linear_scatter_cost(size: int, piece_nbytes: int, root: int, link: Link) -> Cost:
    """(P − 1)(α + nβ/P): the root's port is the bottleneck."""
    messages = [(size - 1) * (rank == root) for rank in range(size)]
    return Cost(messages, [piece_nbytes * count for count in messages], (size - 1) * link.picoseconds(piece_nbytes))


def linear_gather(comm: Any, x: Array, root: int) -> list[Array] | None:
    """Every rank sends its `x` to the root, one message after the other through the root's port."""
    if comm.rank != root:
        comm.send(x, root)
        return None
    requests = [comm.irecv(rank, like=x) for rank in range(comm.size) if rank != root]
    pieces = [request.wait() for request in requests]
    return [*pieces[:root], x, *pieces[root:]]


def linear_gather_cost(size: int, piece_nbytes: int, root: int, link: Link) -> Cost:
    """(P − 1)(α + nβ/P): the root's port is the bottleneck."""
    messages = [int(rank != root) for rank in range(size)]
    return Cost(messages, [piece_nbytes * count for count in messages], (size - 1) * link.picoseconds(piece_nbytes))
