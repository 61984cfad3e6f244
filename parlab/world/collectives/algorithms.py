"""The collectives that have several algorithms: of each a table of them by name, and the check of a call.

A call is checked where the program makes it. The result is a `Collective`: a function of the `Comm` that shall send its
messages. `Comm.all_reduce` calls it at once, with itself. `Comm.iall_reduce` lets a task in the background call it,
with a `Comm` of that task.

The first algorithm of a table is the default. It is never chosen by size, so that a program always does the same.

Most algorithms move flat pieces. The calls cut arrays of any shape into such pieces, and reshape the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parlab.arguments import checked_axis, whole
from parlab.arrays import Array, is_array, namespace
from parlab.world.collectives.circulant import circulant_all_gather, circulant_all_reduce, circulant_reduce_scatter
from parlab.world.collectives.common import combiner, cut, equal_lengths, pieces_of, power_of_two_below
from parlab.world.collectives.doubling import (
    rabenseifner_all_reduce,
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
)
from parlab.world.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from parlab.world.collectives.rings import rings_all_reduce
from parlab.world.collectives.shifts import bruck_all_gather, bruck_all_to_all, grid_all_to_all, pairwise_all_to_all
from parlab.world.collectives.two_levels import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_all_to_all,
    hierarchical_reduce_scatter,
)
from parlab.world.units import several

Algorithms = dict[str, Callable[..., Any]]
Collective = Callable[[Any], Array]  # of a comm; it has this rank's array

ALL_REDUCE: Algorithms = {
    "ring": ring_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "rabenseifner": rabenseifner_all_reduce,
    "circulant": circulant_all_reduce,
    "hierarchical": hierarchical_all_reduce,
    "rings": rings_all_reduce,
}


def all_reduce(
    size: int, x: Array, op: str = "sum", algorithm: str | None = None, ranks_per_node: int | None = None
) -> Collective:
    """See `Comm.all_reduce`."""
    chosen, algorithm = _chosen("all_reduce", ALL_REDUCE, algorithm, ranks_per_node, size)
    combine = combiner(op, x)
    arguments = dict(op=op, algorithm=algorithm, ranks_per_node=ranks_per_node)
    return lambda comm: comm._enter("all_reduce", x, **arguments)._run(chosen, x, combine)


ALL_GATHER: Algorithms = {
    "ring": ring_all_gather,
    "bruck": bruck_all_gather,
    "recursive_doubling": recursive_doubling_all_gather,
    "circulant": circulant_all_gather,
    "hierarchical": hierarchical_all_gather,
}


def all_gather(
    rank: int,
    size: int,
    x: Array,
    axis: int,
    algorithm: str | None = None,
    counts: list[int] | None = None,
    out: Array | None = None,
    ranks_per_node: int | None = None,
) -> Collective:
    """See `Comm.all_gather`."""
    chosen, algorithm = _chosen("all_gather", ALL_GATHER, algorithm, ranks_per_node, size)
    axis = checked_axis(axis, "axis", x)
    counts, length, shown = _lengths(counts, size, algorithm), x.shape[axis], x.shape
    if counts is not None:
        if counts[rank] != length:
            raise ValueError(f"counts={counts}: rank {rank} has {length} elements along the axis, not {counts[rank]}")
        shown = (*x.shape[:axis], "counts", *x.shape[axis + 1 :])
    lengths = counts or [length] * size
    if out is not None:
        _check_out(out, x, sum(lengths))
    xp = namespace(x)
    shapes = [(*x.shape[:axis], each, *x.shape[axis + 1 :]) for each in lengths]
    pieces = pieces_of([math.prod(shape) for shape in shapes])
    arguments = dict(axis=axis, algorithm=algorithm, counts=counts, ranks_per_node=ranks_per_node)

    def gather(comm: Any) -> Array:
        inner = comm._enter("all_gather", x, shape=shown, **arguments)
        # [n], one rank's elements after the other's
        flat = xp.empty((pieces[-1].stop,), dtype=x.dtype, device=x.device) if out is None else out
        flat[pieces[rank]] = xp.reshape(x, (-1,))
        inner._run(chosen, flat, pieces)
        if axis == 0:
            return xp.reshape(flat, (sum(lengths), *x.shape[1:]))
        shards = [xp.reshape(flat[piece], shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return xp.concat(shards, axis=axis)

    return gather


REDUCE_SCATTER: Algorithms = {
    "ring": ring_reduce_scatter,
    "recursive_halving": recursive_halving_reduce_scatter,
    "circulant": circulant_reduce_scatter,
    "hierarchical": hierarchical_reduce_scatter,
}


def reduce_scatter(
    size: int,
    x: Array,
    axis: int,
    op: str = "sum",
    algorithm: str | None = None,
    counts: list[int] | None = None,
    ranks_per_node: int | None = None,
) -> Collective:
    """See `Comm.reduce_scatter`."""
    chosen, algorithm = _chosen("reduce_scatter", REDUCE_SCATTER, algorithm, ranks_per_node, size)
    axis = checked_axis(axis, "axis", x)
    combine = combiner(op, x)
    counts = _lengths(counts, size, algorithm)
    if counts is not None and sum(counts) != x.shape[axis]:
        raise ValueError(f"counts={counts}: they add up to {sum(counts)}, but the axis has {x.shape[axis]} elements")
    lengths = counts or equal_lengths(x, axis, size, "axis", ", or give counts=")
    xp = namespace(x)
    arguments = dict(axis=axis, op=op, algorithm=algorithm, counts=counts, ranks_per_node=ranks_per_node)

    def reduce_and_scatter(comm: Any) -> Array:
        inner = comm._enter("reduce_scatter", x, **arguments)
        shards = cut(x, axis, lengths)
        pieces = pieces_of([math.prod(shard.shape) for shard in shards])
        flat = xp.concat([xp.reshape(shard, (-1,)) for shard in shards])  # [n], one rank's elements after the other's
        inner._run(chosen, flat, pieces, combine)
        own = xp.asarray(flat[pieces[inner.rank]], copy=True)  # so that the rest of `flat` is freed
        return xp.reshape(own, shards[inner.rank].shape)

    return reduce_and_scatter


ALL_TO_ALL: Algorithms = {
    "pairwise": pairwise_all_to_all,
    "bruck": bruck_all_to_all,
    "grid": grid_all_to_all,
    "hierarchical": hierarchical_all_to_all,
}


def all_to_all(
    size: int, x: Array, split_axis: int, concat_axis: int, algorithm: str | None, ranks_per_node: int | None
) -> Collective:
    """See `Comm.all_to_all`."""
    chosen, algorithm = _chosen("all_to_all", ALL_TO_ALL, algorithm, ranks_per_node, size)
    split_axis = checked_axis(split_axis, "split_axis", x)
    concat_axis = checked_axis(concat_axis, "concat_axis", x)
    lengths = equal_lengths(x, split_axis, size, "split_axis")
    arguments = dict(split_axis=split_axis, concat_axis=concat_axis, algorithm=algorithm, ranks_per_node=ranks_per_node)

    def exchange(comm: Any) -> Array:
        inner = comm._enter("all_to_all", x, **arguments)
        pieces = inner._run(chosen, cut(x, split_axis, lengths))
        return namespace(x).concat(pieces, axis=concat_axis)

    return exchange


KNOW_NODES = ("hierarchical", "rings", "grid")  # the algorithms that must know which ranks share a node
POWERS_OF_TWO = (recursive_doubling_all_gather, recursive_halving_reduce_scatter)  # need such a number of ranks


def _chosen(
    collective: str, algorithms: Algorithms, algorithm: str | None, ranks_per_node: int | None, size: int
) -> tuple[Callable[..., Any], str | None]:
    """The function of `algorithm`, and how calls that ask for it are compared: by name, or by None for the default one,
    which may be asked for in both ways. If the algorithm must know the nodes, the function is told.

    Raises:
        ValueError: the collective has no such algorithm, or not for this number of ranks; `ranks_per_node` is missing,
            or no divisor of the group's size; or the algorithm does not take it.
    """
    default = next(iter(algorithms))
    if algorithm is None or algorithm == default:
        run, algorithm = algorithms[default], None
    elif algorithm in list(algorithms):  # a list, because what cannot be a key is a wrong name too
        run = algorithms[algorithm]
    else:
        raise ValueError(f"algorithm={algorithm!r}: {collective} has {', '.join(algorithms)}")
    if run in POWERS_OF_TWO and size != power_of_two_below(size):
        raise ValueError(f"algorithm={algorithm!r}: needs a power of two of ranks, not {size}; use ring")
    if algorithm not in KNOW_NODES:
        if ranks_per_node is not None:
            raise ValueError(f"ranks_per_node={ranks_per_node!r}: only the algorithms {', '.join(KNOW_NODES)} take it")
        return run, algorithm
    if ranks_per_node is None or whole("ranks_per_node", ranks_per_node) < 1 or size % ranks_per_node:
        raise ValueError(
            f"ranks_per_node={ranks_per_node!r}: the {algorithm} algorithm needs a divisor of {size}, the group's size"
        )
    return partial(run, ranks_per_node=int(ranks_per_node)), algorithm


def _lengths(counts: Sequence[int] | None, size: int, algorithm: str | None) -> list[int] | None:
    if counts is None:
        return None
    try:
        lengths = [whole("counts", count, 0) for count in counts]
    except (TypeError, ValueError):
        lengths = []
    if len(lengths) != size:
        raise ValueError(f"counts={counts!r}: needs one length, at least 0, for each of {several(size, 'rank')}")
    if algorithm not in (None, "hierarchical"):
        raise ValueError(f"counts={counts!r}: algorithm={algorithm!r} needs equal pieces; use ring or hierarchical")
    return lengths


def _check_out(out: Any, x: Array, length: int) -> None:
    """Refuse what cannot take `length` numbers gathered from arrays like `x`."""
    if x.ndim != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}: with out=, arrays of one axis are gathered")
    if not is_array(out) or tuple(out.shape) != (length,) or out.dtype != x.dtype:
        found = f"{tuple(out.shape)} {out.dtype}" if is_array(out) else type(out).__name__
        raise ValueError(f"out is {found}: an array {(length,)} of {x.dtype} is needed")
    flags = getattr(getattr(out, "_array", out), "flags", None)  # array-api-strict wraps a NumPy array
    if not getattr(flags, "writeable", True):
        raise ValueError("out is read-only: the result is written there; pass an array of your own, or a copy")
