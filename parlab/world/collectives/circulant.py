"""The circulant graph: as few steps as halving and doubling, as few bytes as the ring, for every number of ranks.

A rank numbers the blocks from itself on: block i of rank r is block (r + i) mod N. It sums a window of blocks
0 .. w − 1, at first all N. In a step it keeps the first half of the window, h = ⌈w/2⌉ blocks, and sends the rest to the
rank h ahead, for which these are blocks 0 .. w − h − 1. After ⌈log₂N⌉ steps the window is the rank's own block.

Invariant: the w ranks whose windows hold block b have summed it over disjoint sets of ranks, which cover all.

The all-gather is the same walk backwards: the window of finished blocks grows again.

Source: Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms" (arXiv 2410.14234), algorithm 1.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, block_sizes, blocks_of, flat_copy


def circulant_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter, then an all-gather: 2⌈log₂N⌉ steps, 2(N − 1)/N of the data sent by each rank."""
    total = flat_copy(x)  # [n]
    blocks = blocks_of(block_sizes(total.shape[0], comm.size))
    circulant_reduce_scatter(comm, total, blocks, combine)
    circulant_all_gather(comm, total, blocks)
    return namespace(x).reshape(total, x.shape)


def circulant_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2⌈log₂N⌉α + 2(N − 1)/N · nβ where N divides the length; else the longest window sets each step's pace."""
    nbytes = [itemsize * block for block in block_sizes(length, size)]
    return circulant_reduce_scatter_cost(nbytes, link) + circulant_all_gather_cost(nbytes, link)


def circulant_reduce_scatter(comm: Any, total: Array, blocks: list[slice], combine: Combine) -> None:
    """`total` [n], in place: rank r's block r becomes the combination of all ranks' blocks r."""
    for window, half in halvings(comm.size):
        ahead, behind = (comm.rank + half) % comm.size, (comm.rank - half) % comm.size
        given, kept = _window(blocks, ahead, window - half), _window(blocks, comm.rank, window - half)
        partial = comm.sendrecv(_joined(total, given), ahead, behind, like=_joined(total, kept))
        for block, sums in _parted(partial, kept):
            total[block] = combine(total[block], sums)


def circulant_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂N⌉α + (N − 1)/N · nβ for equal blocks: a rank sends every block but its own."""
    return _window_cost(nbytes, link, ahead=True)


def circulant_all_gather(comm: Any, total: Array, blocks: list[slice]) -> None:
    """`total` [n], in place: rank r's block r goes to all others."""
    for window, half in reversed(halvings(comm.size)):
        ahead, behind = (comm.rank + half) % comm.size, (comm.rank - half) % comm.size
        mine, theirs = _window(blocks, comm.rank, window - half), _window(blocks, ahead, window - half)
        finished = comm.sendrecv(_joined(total, mine), behind, ahead, like=_joined(total, theirs))
        for block, result in _parted(finished, theirs):
            total[block] = result


def circulant_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂N⌉α + (N − 1)/N · nβ for equal blocks: in each step a rank sends the first blocks of its window."""
    return _window_cost(nbytes, link, ahead=False)


def halvings(size: int) -> list[tuple[int, int]]:
    """The window before each step, and the half of it that a rank keeps.

    >>> halvings(7)
    [(7, 4), (4, 2), (2, 1)]
    """
    steps, window = [], size
    while window > 1:
        half = -(-window // 2)
        steps.append((window, half))
        window = half
    return steps


def _window(blocks: list[slice], first: int, count: int) -> list[slice]:
    """`count` blocks from block `first` on, around the end of the array."""
    return [blocks[(first + number) % len(blocks)] for number in range(count)]


def _joined(total: Array, window: list[slice]) -> Array:
    return namespace(total).concat([total[block] for block in window])


def _parted(message: Array, window: list[slice]) -> list[tuple[slice, Array]]:
    """The blocks of a message, each with its place in the array."""
    places = blocks_of([block.stop - block.start for block in window])
    return [(block, message[place]) for block, place in zip(window, places, strict=True)]


def _window_cost(nbytes: list[int], link: Link, *, ahead: bool) -> Cost:
    size, steps, picoseconds = len(nbytes), halvings(len(nbytes)), 0
    sent = [0] * size
    for window, half in steps:
        first = half if ahead else 0
        windows = [
            sum(nbytes[(rank + first + number) % size] for number in range(window - half)) for rank in range(size)
        ]
        sent = [before + now for before, now in zip(sent, windows, strict=True)]
        picoseconds += link.picoseconds(max(windows))
    return Cost([len(steps)] * size, sent, picoseconds)
