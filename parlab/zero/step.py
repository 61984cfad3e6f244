"""One step of stage 1 on one flat array: an all-reduce with the optimizer in the middle. `Zero` does it block by block.

The Ψ elements are cut into P shards; rank r owns shard r, of n_r elements.

Invariant, before and after each step: all ranks have the same weights, to the bit, and rank r alone has the moments of
shard r.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.arguments import instance
from parlab.arrays import Array, is_array, namespace
from parlab.zero.shards import shard_range

Update = Callable[[Array, Array, Array, Array], Any]  # weights, gradient, mean, square: in place


def zero_1(comm: Any, weights: Array, gradient: Array, state: dict[str, Array], update: Update) -> Array:
    """All new weights `[Ψ]`, from weights `[Ψ]`, the same on all ranks, and the gradient `[Ψ]` of this rank's samples.

    `state` keeps the two moments of this rank's shard; it is empty before the first step. `update(weights, gradient,
    mean, square)` is the optimizer, in place, on four arrays of the shard's length: this rank's shard of `weights`
    changes, too.

    Raises:
        ValueError: an array that is not flat, or no dictionary or function where one is needed.
    """
    for name, x in (("weights", weights), ("gradient", gradient)):
        if not is_array(x) or x.ndim != 1:
            raise ValueError(f"{name}={x!r:.60}: one flat array is needed")
    instance("state", state, dict)
    if not callable(update):
        raise ValueError(f"update={update!r:.60}: a function is needed")

    counts = [len(shard_range(weights.size, rank, comm.size)) for rank in range(comm.size)]
    own = shard_range(weights.size, comm.rank, comm.size)
    shard_gradient = comm.reduce_scatter(gradient, counts=counts) / comm.size  # [n_r], the mean over ranks
    shard = weights[own.start : own.stop]  # [n_r], a view
    if not state:
        xp = namespace(weights)
        state["mean"], state["square"] = xp.zeros_like(shard), xp.zeros_like(shard)
    update(shard, shard_gradient, state["mean"], state["square"])
    return comm.all_gather(shard, counts=counts)  # [Ψ]
