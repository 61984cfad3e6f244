"""From arrays of any shape to the flat blocks that the all-gathers and reduce-scatters move, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.collectives.common import Combine, blocks_of, cut_at


def gathered(
    run: Callable[..., None], comm: Any, x: Array, axis: int, counts: list[int] | None, out: Array | None
) -> Array:
    """The all-gather `run`, for arrays of any shape, joined along `axis`; those of one axis may go into `out`."""
    xp = namespace(x)
    counts = [x.shape[axis]] * comm.size if counts is None else counts
    shapes = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for count in counts]
    blocks = blocks_of([math.prod(shape) for shape in shapes])
    # [n], one rank's elements after the other's
    total = xp.empty((blocks[-1].stop,), dtype=x.dtype, device=x.device) if out is None else out
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
    blocks = blocks_of([math.prod(piece.shape) for piece in pieces])
    total = xp.concat([xp.reshape(piece, (-1,)) for piece in pieces])  # [n], one piece after the other
    run(comm, total, blocks, combine)
    own = xp.asarray(total[blocks[comm.rank]], copy=True)  # so that the rest of `total` is freed
    return xp.reshape(own, pieces[comm.rank].shape)
