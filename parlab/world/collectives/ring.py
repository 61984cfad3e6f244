"""The ring: every rank talks to its two neighbours only, and every link is busy all the time.

Invariant of the reduce-scatter: after step s, rank r holds in block (r − s − 2) mod N the sum of s + 2 ranks' blocks; a
block travels once around and arrives complete at its owner. Invariant of the all-gather: after step s, rank r holds the
finished blocks r, r − 1, ..., r − s − 1.

Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 2009).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, block_sizes, blocks_of, flat_copy, may_be_native


@may_be_native
def ring_reduce_scatter(comm: Any, total: Array, blocks: list[slice], combine: Combine) -> None:
    """`total` [n]: in place, rank r's block r becomes the combination of all ranks' blocks r."""
    for step in range(comm.size - 1):
        sent, received = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        incoming = blocks[received]
        total[incoming] = combine(total[incoming], _pass_on(comm, total, blocks, "add", sent, received))


@may_be_native
def ring_all_gather(comm: Any, total: Array, blocks: list[slice]) -> None:
    """`total` [n]: in place, rank r's block r goes to all others."""
    for step in range(comm.size - 1):
        sent, received = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        total[blocks[received]] = _pass_on(comm, total, blocks, "take", sent, received)


def _pass_on(comm: Any, total: Array, blocks: list[slice], how: str, sent: int, received: int) -> Array:
    """One block to the right, another from the left. Labels say which, and whether it is added: views read them."""
    out, back = total[blocks[sent]], total[blocks[received]]
    labels = _labels(how, comm.size)
    return comm.sendrecv(out, comm.right, comm.left, back, label=labels[sent], expected=labels[received])


@cache
def _labels(how: str, size: int) -> list[str]:
    return [f"{how} block {block}" for block in range(size)]


@may_be_native
def ring_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter, then an all-gather: 2(N − 1) steps, 2(N − 1)/N of the data sent by each rank."""
    total = flat_copy(x)  # [n]
    blocks = blocks_of(block_sizes(total.shape[0], comm.size))
    ring_reduce_scatter(comm, total, blocks, combine)
    ring_all_gather(comm, total, blocks)
    return namespace(x).reshape(total, x.shape)


def ring_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """Rank r sends every block but its own; the longest block travels N − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - own for own in nbytes], time)


def ring_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """Rank r sends every block but its right neighbour's; the longest block travels N − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - nbytes[(rank + 1) % size] for rank in range(size)], time)


def ring_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2(N − 1)α + 2(N − 1)/N · nβ where N divides the length; otherwise the longest block sets the pace."""
    nbytes = [itemsize * block for block in block_sizes(length, size)]
    return ring_reduce_scatter_cost(nbytes, link) + ring_all_gather_cost(nbytes, link)
