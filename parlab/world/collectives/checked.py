"""The collectives that also run beside a program. Each function checks the arguments of a call and returns what is left
to do: a function of the comm that does it, and of the array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parlab.arguments import checked_axis
from parlab.arrays import Array
from parlab.world.collectives import chosen, combiner, shaped
from parlab.world.collectives.arguments import (
    check_out,
    check_power_of_two,
    checked_counts,
    checked_pieces,
    checked_ranks_per_node,
)

Collective = Callable[[Any, Array], Array]


def all_reduce(comm: Any, x: Array, op: str, algorithm: str | None, ranks_per_node: int | None = None) -> Collective:
    """See `Comm.all_reduce`."""
    run, algorithm = chosen("all_reduce", algorithm)
    combine = combiner(op, x)
    if algorithm == "hierarchical":
        ranks_per_node = checked_ranks_per_node(ranks_per_node, comm.size)
        run = partial(run, ranks_per_node=ranks_per_node)
    elif ranks_per_node is not None:
        raise ValueError(f"ranks_per_node={ranks_per_node!r}: only algorithm='hierarchical' takes it")
    arguments = dict(op=op, algorithm=algorithm, ranks_per_node=ranks_per_node)
    return lambda comm, x: run(comm._enter("all_reduce", x, **arguments), x, combine)


def all_gather(
    comm: Any, x: Array, axis: int, algorithm: str | None, counts: list[int] | None, out: Array | None
) -> Collective:
    """See `Comm.all_gather`."""
    run, algorithm = chosen("all_gather", algorithm)
    axis = checked_axis(axis, "axis", x)
    counts = checked_counts(counts, comm.size, algorithm, x.shape[axis], comm.rank)
    check_out(out, x, comm.size * x.shape[axis] if counts is None else sum(counts))
    check_power_of_two(algorithm, comm.size)
    shape = x.shape if counts is None else (*x.shape[:axis], "counts", *x.shape[axis + 1 :])
    arguments = dict(shape=shape, axis=axis, algorithm=algorithm, counts=counts)
    return lambda comm, x: shaped.gathered(run, comm._enter("all_gather", x, **arguments), x, axis, counts, out)


def reduce_scatter(
    comm: Any, x: Array, axis: int, op: str, algorithm: str | None, counts: list[int] | None
) -> Collective:
    """See `Comm.reduce_scatter`."""
    run, algorithm = chosen("reduce_scatter", algorithm)
    axis = checked_axis(axis, "axis", x)
    combine = combiner(op, x)
    counts = checked_pieces(counts, comm.size, algorithm, x, axis)
    check_power_of_two(algorithm, comm.size)
    arguments = dict(axis=axis, op=op, algorithm=algorithm, counts=counts)
    return lambda comm, x: shaped.scattered(
        run, comm._enter("reduce_scatter", x, **arguments), x, axis, combine, counts
    )
