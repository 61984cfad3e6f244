"""Recursive doubling and halving: partners at distance 1, 2, 4, ..., so log₂P steps instead of P − 1.

These algorithms need a power of two of ranks. For another number P = 2ᵏ + e, an all-reduce folds e ranks away first:
each of the ranks 0, 2, ..., 2e − 2 sends its data to its right neighbour, takes no part, and receives the result.

Invariant: after step s (from 0), a rank's result contains the parts of 2ˢ⁺¹ ranks. Each function says which ranks.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA 2005).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import (
    Combine,
    Cost,
    Subset,
    cost_of_steps,
    cost_of_uneven_steps,
    flat_copy,
    label_of,
    labels_of,
    piece_sizes,
    pieces_of,
    power_of_two_below,
)


def recursive_doubling_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """In each step two partners exchange all they have: log₂P steps, and the whole array travels in each.

    Invariant: after step s (from 0), every rank has the sum over its aligned group of 2ˢ⁺¹ ranks.
    """

    def exchange_everything(core: Subset, total: Array) -> Array:
        distance, label = 1, label_of("add", first=0, count=core.size, parts=core.size)
        while distance < core.size:
            partner = core.rank ^ distance
            total = combine(total, core.sendrecv(total, partner, partner, label=label))
            distance *= 2
        return total

    return _folded(comm, x, combine, exchange_everything)


def recursive_doubling_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """log₂P (α + nβ). Folding adds two steps, and each rank of a folded pair sends one message for it."""
    nbytes, core = length * itemsize, power_of_two_below(size)
    return _folded_cost(size, nbytes, cost_of_steps(core, [nbytes] * (core.bit_length() - 1), link), link)


def rabenseifner_all_reduce(comm: Any, x: Array, combine: Combine) -> Array:
    """A reduce-scatter by halving, then an all-gather by doubling: 2 log₂P steps, 2(P − 1)/P of the data."""

    def halve_and_double(core: Subset, total: Array) -> Array:
        flat = flat_copy(total)  # [n]
        pieces = pieces_of(piece_sizes(flat.shape[0], core.size))
        recursive_halving_reduce_scatter(core, flat, pieces, combine)
        recursive_doubling_all_gather(core, flat, pieces)
        return namespace(total).reshape(flat, total.shape)

    return _folded(comm, x, combine, halve_and_double)


def rabenseifner_all_reduce_cost(size: int, length: int, itemsize: int, link: Link) -> Cost:
    """2 log₂P α + 2(P − 1)/P · nβ where P is a power of two that divides the length."""
    sizes = [itemsize * piece for piece in piece_sizes(length, power_of_two_below(size))]
    core = recursive_halving_reduce_scatter_cost(sizes, link) + recursive_doubling_all_gather_cost(sizes, link)
    return _folded_cost(size, sum(sizes), core, link)


def recursive_halving_reduce_scatter(comm: Any, flat: Array, pieces: list[slice], combine: Combine) -> None:
    """`flat` [n], in place: rank r's piece r becomes the combination of all ranks' pieces r.

    Invariant: before the step with distance d, rank r has, in the aligned window of 2d pieces around piece r, the
    combination of all ranks that equal r modulo 2d. The step halves the window: a rank keeps the half with its own
    piece, and sends the other half to its partner.
    """
    distance = comm.size // 2
    while distance:
        partner = comm.rank ^ distance
        kept, given = _aligned_window(pieces, comm.rank, distance), _aligned_window(pieces, partner, distance)
        labels = _window_labels("add", comm, distance, sent=partner, received=comm.rank)
        arrived = comm.sendrecv(flat[given], partner, partner, like=flat[kept], **labels)
        flat[kept] = combine(flat[kept], arrived)
        distance //= 2


def recursive_halving_reduce_scatter_cost(nbytes: list[int], link: Link) -> Cost:
    """log₂P α + (P − 1)/P · nβ for equal pieces: in each step a rank sends its partner's half of the window."""
    size = len(nbytes)
    widths = [1 << step for step in range(size.bit_length() - 1)]
    steps = [[_window_nbytes(nbytes, rank ^ width, width) for rank in range(size)] for width in widths]
    return cost_of_uneven_steps(size, steps, link)


def recursive_doubling_all_gather(comm: Any, flat: Array, pieces: list[slice]) -> None:
    """`flat` [n], in place: rank r's piece r goes to all others.

    Invariant: before the step with distance d, rank r has the finished pieces of its aligned window of d.
    """
    distance = 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        mine, theirs = _aligned_window(pieces, comm.rank, distance), _aligned_window(pieces, partner, distance)
        labels = _window_labels("take", comm, distance, sent=comm.rank, received=partner)
        flat[theirs] = comm.sendrecv(flat[mine], partner, partner, like=flat[theirs], **labels)
        distance *= 2


def recursive_doubling_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """log₂P α + (P − 1)/P · nβ for equal pieces: the halving backwards; in each step a rank sends its own half."""
    size = len(nbytes)
    widths = [1 << step for step in range(size.bit_length() - 1)]
    steps = [[_window_nbytes(nbytes, rank, width) for rank in range(size)] for width in widths]
    return cost_of_uneven_steps(size, steps, link)


def _aligned_window(pieces: list[slice], rank: int, width: int) -> slice:
    """The elements of the aligned window of `width` pieces around piece `rank`."""
    first = rank - rank % width
    return slice(pieces[first].start, pieces[first + width - 1].stop)


def _window_nbytes(nbytes: list[int], rank: int, width: int) -> int:
    """The bytes of the pieces in the aligned window of `width` pieces around piece `rank`."""
    first = rank - rank % width
    return sum(nbytes[first : first + width])


def _window_labels(how: str, comm: Any, width: int, *, sent: int, received: int) -> dict[str, str]:
    """The labels of the two messages of an exchange: each has the aligned window of pieces around a rank's own."""
    return labels_of(how, parts=comm.size, count=width, sent=sent - sent % width, received=received - received % width)


def _folded(comm: Any, x: Array, combine: Combine, core_all_reduce: Callable[[Subset, Array], Array]) -> Array:
    """An all-reduce of any number of ranks, by `core_all_reduce`, which needs a power of two."""
    extra = comm.size - power_of_two_below(comm.size)
    is_folded = comm.rank < 2 * extra  # with its neighbour into one rank of the core, the odd one of the two
    if is_folded and comm.rank % 2 == 0:
        comm.send(x, comm.right)
        return comm.recv(comm.right, like=x)
    total = namespace(x).asarray(x, copy=True)
    if is_folded:
        total = combine(comm.recv(comm.left, like=x), total)
    core = Subset(comm, [*range(1, 2 * extra, 2), *range(2 * extra, comm.size)])
    total = namespace(x).asarray(core_all_reduce(core, total))  # NumPy makes scalars of arrays without axes
    if is_folded:
        comm.send(total, comm.left)
    return total


def _folded_cost(size: int, nbytes: int, core: Cost, link: Link) -> Cost:
    """The cost of the all-reduce `core` of a power of two of ranks, and of folding the other ranks around it."""
    extra = size - len(core.messages)
    messages, sent = [], []
    for rank in range(size):
        if rank < 2 * extra and rank % 2 == 0:
            messages.append(1)
            sent.append(nbytes)
        else:
            paired = rank < 2 * extra
            place = rank // 2 if paired else rank - extra
            messages.append(core.messages[place] + paired)
            sent.append(core.nbytes[place] + nbytes * paired)
    return Cost(messages, sent, core.picoseconds + (2 * link.picoseconds(nbytes) if extra else 0))
