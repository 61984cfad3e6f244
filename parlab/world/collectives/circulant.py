"""The circulant graph: as few steps as halving and doubling, as few bytes as the ring, for every number of ranks.

A rank numbers the pieces from itself on: piece i of rank r is piece (r + i) mod P. It sums a window of pieces
0 .. w − 1, at first all P. In a step it keeps the first half of the window, h = ⌈w/2⌉ pieces, and sends the rest to the
rank h ahead, for which these are pieces 0 .. w − h − 1. After ⌈log₂P⌉ steps the window is the rank's own piece.

Invariant: the w ranks whose windows hold piece b have summed it over disjoint sets of ranks, which cover all.

The all-gather is the same walk backwards: the window of finished pieces grows again.

Source: Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms" (arXiv 2410.14234), algorithm 1.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import (
    Combine,
    Cost,
    cost_of_uneven_steps,
    flat_copy,
    joined,
    labels_of,
    of_joined,
    piece_sizes,
    pieces_of,
)


def circulant_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter, then an all-gather: 2⌈log₂P⌉ steps, 2(P − 1)/P of the data sent by each rank."""
    flat = flat_copy(x)  # [n]
    pieces = pieces_of(piece_sizes(flat.shape[0], comm.size))
    circulant_reduce_scatter(comm, flat, pieces, combine)
    circulant_all_gather(comm, flat, pieces)
    return namespace(x).reshape(flat, x.shape)


def circulant_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2⌈log₂P⌉α + 2(P − 1)/P · nβ where P divides the length; else the longest window sets each step's pace."""
    nbytes = [itemsize * piece for piece in piece_sizes(length, size)]
    return circulant_reduce_scatter_cost(nbytes, link) + circulant_all_gather_cost(nbytes, link)


def circulant_reduce_scatter(comm: Any, flat: Array, pieces: list[slice], combine: Combine) -> None:
    """`flat` [n], in place: rank r's piece r becomes the combination of all ranks' pieces r."""
    for window, half in halvings(comm.size):
        ahead, behind = (comm.rank + half) % comm.size, (comm.rank - half) % comm.size
        given, kept = _window(pieces, ahead, window - half), _window(pieces, comm.rank, window - half)
        labels = labels_of("add", parts=comm.size, count=window - half, sent=ahead, received=comm.rank)
        partial = comm.sendrecv(joined(flat, given), ahead, behind, like=joined(flat, kept), **labels)
        for piece, sums in _parted(partial, kept):
            flat[piece] = combine(flat[piece], sums)


def circulant_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂P⌉α + (P − 1)/P · nβ for equal pieces: in each step a rank sends those behind the half that it keeps."""
    size = len(nbytes)
    steps = [
        [sum(_window(nbytes, rank + half, window - half)) for rank in range(size)] for window, half in halvings(size)
    ]
    return cost_of_uneven_steps(size, steps, link)


def circulant_all_gather(comm: Any, flat: Array, pieces: list[slice]) -> None:
    """`flat` [n], in place: rank r's piece r goes to all others."""
    for window, half in reversed(halvings(comm.size)):
        ahead, behind = (comm.rank + half) % comm.size, (comm.rank - half) % comm.size
        mine, theirs = _window(pieces, comm.rank, window - half), _window(pieces, ahead, window - half)
        labels = labels_of("take", parts=comm.size, count=window - half, sent=comm.rank, received=ahead)
        finished = comm.sendrecv(joined(flat, mine), behind, ahead, like=joined(flat, theirs), **labels)
        for piece, result in _parted(finished, theirs):
            flat[piece] = result


def circulant_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂P⌉α + (P − 1)/P · nβ for equal pieces: in each step a rank sends the first pieces of its window."""
    size = len(nbytes)
    steps = [[sum(_window(nbytes, rank, window - half)) for rank in range(size)] for window, half in halvings(size)]
    return cost_of_uneven_steps(size, steps, link)


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


def _window(pieces: list[Any], first: int, count: int) -> list[Any]:
    """`count` of the pieces, or of their sizes, from piece `first` on, around the end of the array."""
    return [pieces[(first + number) % len(pieces)] for number in range(count)]


def _parted(message: Array, window: list[slice]) -> list[tuple[slice, Array]]:
    """The pieces of `window`, each with its numbers in the message that brings them joined."""
    return [(piece, message[part]) for piece, part in zip(window, of_joined(window), strict=True)]
