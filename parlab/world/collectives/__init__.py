"""Collectives, each built from point-to-point messages, with its closed form next to it.

`Comm` checks the arguments and calls these; a learner can call them too, on any `comm`. The default algorithm of each is
the first one, and is never chosen by size, so that a program always does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.collectives.bruck import (
    bruck_all_gather,
    bruck_all_gather_cost,
    bruck_all_to_all,
    bruck_all_to_all_cost,
)
from parlab.world.collectives.common import (
    OPERATIONS,
    Combine,
    Cost,
    Subset,
    block_sizes,
    blocks_of,
    combiner,
    cut,
    cut_at,
)
from parlab.world.collectives.doubling import (
    power_of_two_below,
    rabenseifner_all_reduce,
    rabenseifner_all_reduce_cost,
    recursive_doubling_all_gather,
    recursive_doubling_all_gather_cost,
    recursive_doubling_all_reduce,
    recursive_doubling_all_reduce_cost,
    recursive_halving_reduce_scatter,
    recursive_halving_reduce_scatter_cost,
)
from parlab.world.collectives.hierarchical import hierarchical_all_reduce, hierarchical_all_reduce_cost
from parlab.world.collectives.pairwise import pairwise_all_to_all, pairwise_all_to_all_cost
from parlab.world.collectives.ring import (
    ring_all_gather,
    ring_all_gather_cost,
    ring_all_reduce,
    ring_all_reduce_cost,
    ring_reduce_scatter,
    ring_reduce_scatter_cost,
)
from parlab.world.collectives.rooted import (
    binomial_broadcast,
    binomial_broadcast_cost,
    binomial_reduce,
    binomial_reduce_cost,
    dissemination_barrier,
    dissemination_barrier_cost,
    linear_gather,
    linear_gather_cost,
    linear_scatter,
    linear_scatter_cost,
)

ALGORITHMS: dict[str, dict[str, Callable[..., Any]]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "recursive_doubling": recursive_doubling_all_reduce,
        "rabenseifner": rabenseifner_all_reduce,
        "hierarchical": hierarchical_all_reduce,
    },
    "all_gather": {
        "ring": ring_all_gather,
        "bruck": bruck_all_gather,
        "recursive_doubling": recursive_doubling_all_gather,
    },
    "reduce_scatter": {
        "ring": ring_reduce_scatter,
        "recursive_halving": recursive_halving_reduce_scatter,
    },
    "all_to_all": {
        "pairwise": pairwise_all_to_all,
        "bruck": bruck_all_to_all,
    },
}


def chosen(collective: str, algorithm: str | None) -> Callable[..., Any]:
    """The function of `algorithm`; None: the first.

    Raises:
        ValueError: there is no such algorithm for this collective.
    """
    known = ALGORITHMS[collective]
    if algorithm is None:
        return next(iter(known.values()))
    if algorithm not in known:
        raise ValueError(f"algorithm={algorithm!r}: {collective} has {', '.join(known)}")
    return known[algorithm]


def check_power_of_two(algorithm: str | None, size: int) -> None:
    """Refuse recursive halving or doubling, where it takes no other number of ranks.

    Raises:
        ValueError: `size` is not a power of two.
    """
    if algorithm in ("recursive_doubling", "recursive_halving") and size != power_of_two_below(size):
        raise ValueError(f"algorithm={algorithm!r}: needs a power of two of ranks, not {size}; use ring")


def checked_ranks_per_node(value: Any, size: int) -> int:
    """`value` as the number of ranks a node.

    Raises:
        ValueError: it is missing, or does not divide the group.
    """
    if not isinstance(value, int) or value < 1 or size % value:
        raise ValueError(f"ranks_per_node={value!r}: the hierarchical algorithm needs a divisor of {size}, the group's size")
    return value


def checked_counts(counts: Sequence[int] | None, size: int, algorithm: str | None, own: int, rank: int) -> list[int] | None:
    """The lengths of all ranks' arrays, for an all-gather.

    Raises:
        ValueError: not one a rank, or not this rank's length, or an algorithm that needs equal blocks.
    """
    counts = _lengths(counts, size, algorithm)
    if counts is not None and counts[rank] != own:
        raise ValueError(f"counts={counts}: rank {rank} has {own} elements along the axis, not {counts[rank]}")
    return counts


def checked_pieces(
    counts: Sequence[int] | None, size: int, algorithm: str | None, x: Array, axis: int
) -> list[int] | None:
    """The lengths of all ranks' pieces, for a reduce-scatter.

    Raises:
        ValueError: as `checked_counts`, or the lengths do not add up, or without `counts` the axis does not divide.
    """
    counts = _lengths(counts, size, algorithm)
    if counts is None:
        cut(x, axis, size, "axis")
    elif sum(counts) != x.shape[axis]:
        raise ValueError(f"counts={counts}: they add up to {sum(counts)}, but the axis has {x.shape[axis]} elements")
    return counts


def _lengths(counts: Sequence[int] | None, size: int, algorithm: str | None) -> list[int] | None:
    if counts is None:
        return None
    if len(counts) != size or not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError(f"counts={counts!r}: needs one length, at least 0, for each of the {size} ranks")
    if algorithm not in (None, "ring"):
        raise ValueError(f"counts={counts!r}: algorithm={algorithm!r} needs equal pieces; use ring")
    return list(counts)


def gathered(run: Callable[..., None], comm: Any, x: Array, axis: int, counts: list[int] | None) -> Array:
    """The all-gather `run`, for arrays of any shape, joined along `axis`."""
    xp = namespace(x)
    counts = [x.shape[axis]] * comm.size if counts is None else counts
    shapes = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for count in counts]
    blocks = blocks_of([_elements(shape) for shape in shapes])
    total = xp.empty((blocks[-1].stop,), dtype=x.dtype)  # [n], one rank's elements after the other's
    total[blocks[comm.rank]] = xp.reshape(x, (-1,))
    run(comm, total, blocks)
    if axis == 0:
        return xp.reshape(total, (sum(counts), *x.shape[1:]))
    return xp.concat([xp.reshape(total[block], shape) for block, shape in zip(blocks, shapes, strict=True)], axis=axis)


def scattered(
    run: Callable[..., None], comm: Any, x: Array, axis: int, combine: Combine, counts: list[int] | None
) -> Array:
    """The reduce-scatter `run`, for arrays of any shape, cut along `axis`."""
    xp = namespace(x)
    pieces = cut_at(x, axis, counts or [x.shape[axis] // comm.size] * comm.size)
    blocks = blocks_of([_elements(piece.shape) for piece in pieces])
    total = xp.concat([xp.reshape(piece, (-1,)) for piece in pieces])  # [n], one piece after the other
    run(comm, total, blocks, combine)
    own = xp.asarray(total[blocks[comm.rank]], copy=True)  # so that the rest of `total` is freed
    return xp.reshape(own, pieces[comm.rank].shape)


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "Cost",
    "Subset",
    "binomial_broadcast",
    "binomial_broadcast_cost",
    "binomial_reduce",
    "binomial_reduce_cost",
    "block_sizes",
    "bruck_all_gather",
    "bruck_all_gather_cost",
    "bruck_all_to_all",
    "bruck_all_to_all_cost",
    "chosen",
    "combiner",
    "dissemination_barrier",
    "dissemination_barrier_cost",
    "hierarchical_all_reduce",
    "hierarchical_all_reduce_cost",
    "linear_gather",
    "linear_gather_cost",
    "linear_scatter",
    "linear_scatter_cost",
    "pairwise_all_to_all",
    "pairwise_all_to_all_cost",
    "rabenseifner_all_reduce",
    "rabenseifner_all_reduce_cost",
    "recursive_doubling_all_gather",
    "recursive_doubling_all_gather_cost",
    "recursive_doubling_all_reduce",
    "recursive_doubling_all_reduce_cost",
    "recursive_halving_reduce_scatter",
    "recursive_halving_reduce_scatter_cost",
    "ring_all_gather",
    "ring_all_gather_cost",
    "ring_all_reduce",
    "ring_all_reduce_cost",
    "ring_reduce_scatter",
    "ring_reduce_scatter_cost",
]
