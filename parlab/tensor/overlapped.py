"""Overlapped tensor parallelism: a rank multiplies the tokens that are here while the next tokens travel.

Under sequence parallelism an all-gather stands in front of a column layer: a ring of t − 1 hops. The product does not
need all tokens at once, so its t parts fit between the hops. (Behind a row layer the reduce-scatter hides likewise: a
shard of x is multiplied while the sum of another one comes.)

The bytes are the ring's. The time of a product c and of a hop h falls from (t − 1)h + c to c/t + (t − 1)max(c/t, h).

Source: Wang et al. 2023, "Overlap communication with dependent computation via decomposition" (ASPLOS), section 5;
PyTorch calls it asynchronous tensor parallelism.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.linear import linear
from parlab.tensor.arguments import array, matrix
from parlab.tensor.operators import SEQUENCE
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring


def all_gather_matmul(comm: Comm, x: Array, weight: Array) -> Array:
    """The tokens of all ranks times this rank's columns: `[B, S/t, in]`, `[in, out/t]` -> `[B, S, out/t]`.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> x, W = np.arange(12.0).reshape(1, 4, 3), np.ones((3, 2))
    >>> y = run(all_gather_matmul, 2, per_rank([x[:, :2], x[:, 2:]]), W).results[1]
    >>> bool((y == x @ W).all())
    True
    """
    array("x", x)
    matrix("weight", weight)
    shards = [x] * comm.size  # of y, by the rank whose tokens they are
    for source, tokens in around_ring(comm, x):
        with comm.compute("product", flops=2 * tokens.size * weight.shape[1]):
            shards[source] = linear(tokens, weight)[0]  # [B, S/t, out/t]
    return namespace(x).concat(shards, axis=SEQUENCE)


def overlapped_time(product: Any, hop: Any, ranks: int) -> Any:
    """c/t + (t − 1)max(c/t, h), for a product of c and hops of h in the same unit, on t ranks."""
    part = product / ranks
    return part + (ranks - 1) * max(part, hop)
