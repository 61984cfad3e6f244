"""The ring: every rank talks to its two neighbours only, and every link is busy in every step.

An array [n] is cut into N blocks, and block r belongs to rank r. In the reduce-scatter a block travels once around the
ring; every rank adds its own part, and the sum arrives at the block's owner. In the all-gather the sums travel around.

Invariant: after step s (from 0), the block that a rank received last combines the parts of s + 2 ranks
(reduce-scatter), or a rank has s + 2 finished blocks (all-gather).

Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 2009).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, block_sizes, blocks_of, flat_copy, may_be_native


@may_be_native
def ring_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter, then an all-gather: 2(N − 1) steps, 2(N − 1)/N of the data sent by each rank."""
    total = flat_copy(x)  # [n]
    blocks = blocks_of(block_sizes(total.shape[0], comm.size))
    ring_reduce_scatter(comm, total, blocks, combine)
    ring_all_gather(comm, total, blocks)
    return namespace(x).reshape(total, x.shape)


def ring_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2(N − 1)α + 2(N − 1)/N · nβ where N divides the length; otherwise the longest block sets the pace."""
    nbytes = [itemsize * block for block in block_sizes(length, size)]
    return ring_reduce_scatter_cost(nbytes, link) + ring_all_gather_cost(nbytes, link)


@may_be_native
def ring_reduce_scatter(comm: Any, total: Array, blocks: list[slice], combine: Combine) -> None:
    """`total` [n], in place: rank r's block r becomes the combination of all ranks' blocks r.

    Invariant: after step s (from 0), rank r has in block (r − s − 2) mod N the combination of s + 2 ranks' blocks.
    """
    for step in range(comm.size - 1):
        sent = (comm.rank - step - 1) % comm.size
        received = (comm.rank - step - 2) % comm.size
        own = total[blocks[received]]
        # The received block has no name, so its memory is freed here.
        total[blocks[received]] = combine(own, _shift(comm, total, blocks, "add", sent, received))


def ring_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """(N − 1)(α + n/N · β): rank r sends every block but its own; the longest block travels N − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - own for own in nbytes], time)


@may_be_native
def ring_all_gather(comm: Any, total: Array, blocks: list[slice]) -> None:
    """`total` [n], in place: rank r's block r goes to all others.

    Invariant: after step s (from 0), rank r has the finished blocks r, r − 1, ..., r − s − 1 (mod N).
    """
    for step in range(comm.size - 1):
        sent = (comm.rank - step) % comm.size
        received = (comm.rank - step - 1) % comm.size
        total[blocks[received]] = _shift(comm, total, blocks, "take", sent, received)


def ring_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """(N − 1)(α + n/N · β): rank r sends every block but its right neighbour's; the longest travels N − 1 hops."""
    size, total = len(nbytes), sum(nbytes)
    time = (size - 1) * link.picoseconds(max(nbytes))
    return Cost([size - 1] * size, [total - nbytes[(rank + 1) % size] for rank in range(size)], time)


def _shift(comm: Any, total: Array, blocks: list[slice], how: str, sent: int, received: int) -> Array:
    """Send block `sent` to the right, and return block `received` from the left. Figures read the labels."""
    labels = _labels(how, comm.size)
    like = total[blocks[received]]
    return comm.sendrecv(
        total[blocks[sent]], comm.right, comm.left, like, label=labels[sent], expected=labels[received]
    )


@cache
def _labels(how: str, size: int) -> list[str]:
    return [f"{how} block {block}" for block in range(size)]
