"""The collectives that can also run in the background. Each function checks the arguments of a call, and returns a
function `(comm, x)` that runs the collective.

The algorithms move flat pieces. These functions cut arrays of any shape into such pieces, and reshape the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parlab.arguments import checked_axis, whole
from parlab.arrays import Array, is_array, namespace
from parlab.world.collectives import chosen, combiner
from parlab.world.collectives.common import cut, cut_at, pieces_of
from parlab.world.collectives.doubling import power_of_two_below
from parlab.world.units import several

Collective = Callable[[Any, Array], Array]

KNOW_NODES = ("hierarchical", "rings", "grid")  # the algorithms that must know which ranks share a node


def all_reduce(comm: Any, x: Array, op: str, algorithm: str | None, ranks_per_node: int | None = None) -> Collective:
    """See `Comm.all_reduce`."""
    run, algorithm = chosen("all_reduce", algorithm)
    combine = combiner(op, x)
    run = told_nodes(run, algorithm, ranks_per_node, comm.size)
    arguments = dict(op=op, algorithm=algorithm, ranks_per_node=ranks_per_node)
    return lambda comm, x: run(comm._enter("all_reduce", x, **arguments), x, combine)


def told_nodes(
    run: Callable[..., Any], algorithm: str | None, ranks_per_node: int | None, size: int
) -> Callable[..., Any]:
    """`run`, which is told how many consecutive ranks share a node if its algorithm asks for that.

    Raises:
        ValueError: `ranks_per_node` is missing, or no divisor of the group's size; or the algorithm does not take it.
    """
    if algorithm not in KNOW_NODES:
        if ranks_per_node is not None:
            raise ValueError(f"ranks_per_node={ranks_per_node!r}: only the algorithms {', '.join(KNOW_NODES)} take it")
        return run
    if ranks_per_node is None or whole("ranks_per_node", ranks_per_node) < 1 or size % ranks_per_node:
        raise ValueError(
            f"ranks_per_node={ranks_per_node!r}: the {algorithm} algorithm needs a divisor of {size}, the group's size"
        )
    return partial(run, ranks_per_node=int(ranks_per_node))


def all_gather(
    comm: Any,
    x: Array,
    axis: int,
    algorithm: str | None,
    counts: list[int] | None,
    out: Array | None,
    ranks_per_node: int | None = None,
) -> Collective:
    """See `Comm.all_gather`."""
    run, algorithm = chosen("all_gather", algorithm)
    run = told_nodes(run, algorithm, ranks_per_node, comm.size)
    axis = checked_axis(axis, "axis", x)
    counts, own, shown = _lengths(counts, comm.size, algorithm), x.shape[axis], x.shape
    if counts is not None:
        if counts[comm.rank] != own:
            raise ValueError(
                f"counts={counts}: rank {comm.rank} has {own} elements along the axis, not {counts[comm.rank]}"
            )
        shown = (*x.shape[:axis], "counts", *x.shape[axis + 1 :])
    lengths = counts or [own] * comm.size
    if out is not None:
        _check_out(out, x, sum(lengths))
    _check_power_of_two(algorithm, comm.size)

    def join(comm: Any, x: Array) -> Array:
        arguments = dict(axis=axis, algorithm=algorithm, counts=counts, ranks_per_node=ranks_per_node)
        inner = comm._enter("all_gather", x, shape=shown, **arguments)
        xp = namespace(x)
        shapes = [(*x.shape[:axis], length, *x.shape[axis + 1 :]) for length in lengths]
        places = pieces_of([math.prod(shape) for shape in shapes])
        # [n], one rank's elements after the other's
        total = xp.empty((places[-1].stop,), dtype=x.dtype, device=x.device) if out is None else out
        total[places[inner.rank]] = xp.reshape(x, (-1,))
        run(inner, total, places)
        if axis == 0:
            return xp.reshape(total, (sum(lengths), *x.shape[1:]))
        parts = [xp.reshape(total[place], shape) for place, shape in zip(places, shapes, strict=True)]
        return xp.concat(parts, axis=axis)

    return join


def reduce_scatter(
    comm: Any,
    x: Array,
    axis: int,
    op: str,
    algorithm: str | None,
    counts: list[int] | None,
    ranks_per_node: int | None = None,
) -> Collective:
    """See `Comm.reduce_scatter`."""
    run, algorithm = chosen("reduce_scatter", algorithm)
    run = told_nodes(run, algorithm, ranks_per_node, comm.size)
    axis = checked_axis(axis, "axis", x)
    combine = combiner(op, x)
    counts = _lengths(counts, comm.size, algorithm)
    if counts is None:
        cut(x, axis, comm.size, "axis", ", or give counts=")
    elif sum(counts) != x.shape[axis]:
        raise ValueError(f"counts={counts}: they add up to {sum(counts)}, but the axis has {x.shape[axis]} elements")
    lengths = counts or [x.shape[axis] // comm.size] * comm.size
    _check_power_of_two(algorithm, comm.size)

    def share_out(comm: Any, x: Array) -> Array:
        arguments = dict(axis=axis, op=op, algorithm=algorithm, counts=counts, ranks_per_node=ranks_per_node)
        inner = comm._enter("reduce_scatter", x, **arguments)
        xp = namespace(x)
        pieces = cut_at(x, axis, lengths)
        places = pieces_of([math.prod(piece.shape) for piece in pieces])
        total = xp.concat([xp.reshape(piece, (-1,)) for piece in pieces])  # [n], one piece after the other
        run(inner, total, places, combine)
        own = xp.asarray(total[places[inner.rank]], copy=True)  # so that the rest of `total` is freed
        return xp.reshape(own, pieces[inner.rank].shape)

    return share_out


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


def _check_power_of_two(algorithm: str | None, size: int) -> None:
    if algorithm in ("recursive_doubling", "recursive_halving") and size != power_of_two_below(size):
        raise ValueError(f"algorithm={algorithm!r}: needs a power of two of ranks, not {size}; use ring")


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
