"""Overlapped tensor parallelism: a rank multiplies the tokens that are here while the next tokens travel.

Under sequence parallelism an all-gather stands in front of a column layer, and a reduce-scatter behind a row layer.
Each is a ring of t − 1 hops. A product does not need all tokens at once, so its t parts fit between the hops:

| before                              | here                     | each of the t steps                             |
|-------------------------------------|--------------------------|-------------------------------------------------|
| gather(x) W                         | `all_gather_matmul`      | multiply a shard of x, while it goes right      |
| scatter(x W)                        | `matmul_reduce_scatter`  | multiply a shard of x, while its sum comes here |

The bytes are the ring's. The time of a product c and of a hop h falls from (t − 1)h + c to c/t + (t − 1)max(c/t, h).

Source: Wang et al. 2023, "Overlap communication with dependent computation via decomposition" (ASPLOS), section 5;
PyTorch calls it asynchronous tensor parallelism.
"""

from __future__ import annotations

from typing import Any

from parlab.arguments import checked
from parlab.arrays import Array, namespace
from parlab.nn.linear import linear, linear_backward_weight
from parlab.tensor.arguments import RULES
from parlab.tensor.operators import SEQUENCE
from parlab.tensor.slices import check_divides
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring


@checked(RULES)
def all_gather_matmul(comm: Comm, x: Array, weight: Array) -> Array:
    """The tokens of all ranks times this rank's columns: `[B, S/t, in]`, `[in, out/t]` -> `[B, S, out/t]`.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> x, W = np.arange(12.0).reshape(1, 4, 3), np.ones((3, 2))
    >>> y = run(all_gather_matmul, 2, per_rank([x[:, :2], x[:, 2:]]), W).results[1]
    >>> bool((y == x @ W).all())
    True
    """
    shards = [x] * comm.size  # of y, by the rank whose tokens they are
    for source, tokens in around_ring(comm, x):
        shards[source] = _product(comm, tokens, weight)  # [B, S/t, out/t]
    return namespace(x).concat(shards, axis=SEQUENCE)


@checked(RULES)
def all_gather_matmul_backward(comm: Comm, dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """`(dx [B, S/t, in], dW [in, out/t])` from dy `[B, S, out/t]` and from the x and weight of the forward.

    dx is the sum over ranks of dy Wᵀ, this rank's tokens of it. For dW the tokens travel once more.
    """
    dx = matmul_reduce_scatter(comm, dy, namespace(weight).matrix_transpose(weight))
    of_shard = _shards(dy, comm.size)
    dweight = namespace(weight).zeros_like(weight)
    for source, tokens in around_ring(comm, x):
        dweight = dweight + _weight_gradient(comm, tokens, of_shard[source])
    return dx, dweight


@checked(RULES)
def matmul_reduce_scatter(comm: Comm, x: Array, weight: Array) -> Array:
    """The sum over ranks of x W, this rank's tokens of it: `[B, S, in/t]`, `[in/t, out]` -> `[B, S/t, out]`.

    Invariant: after step s (from 0), rank r has the sum over the s + 1 ranks r − s, ..., r for the tokens of rank
    (r − s − 1) mod t. The last step is that of its own tokens.

    Raises:
        ValueError: the sequence does not divide among the ranks.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> x, W = np.arange(8.0).reshape(1, 4, 2), np.ones((2, 3))
    >>> y = run(matmul_reduce_scatter, 2, per_rank([x[..., :1], x[..., 1:]]), per_rank([W[:1], W[1:]])).results[1]
    >>> bool((y == (x @ W)[:, 2:]).all())
    True
    """
    check_divides("sequence length", x.shape[SEQUENCE], comm.size)
    shards = _shards(x, comm.size)
    total = _product(comm, shards[comm.rank - 1], weight)  # [B, S/t, out]
    for step in range(1, comm.size):
        leaving, arriving = comm.isend(total, comm.right), comm.irecv(comm.left, total)
        own = _product(comm, shards[comm.rank - step - 1], weight)
        total = arriving.wait() + own
        leaving.wait()
    return total


@checked(RULES)
def matmul_reduce_scatter_backward(comm: Comm, dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """`(dx [B, S, in/t], dW [in/t, out])` from dy `[B, S/t, out]` and from the x and weight of the forward.

    Both need dy of all tokens: each shard of it is multiplied twice while it goes right.
    """
    xp = namespace(x)
    of_shard, transposed = _shards(x, comm.size), xp.matrix_transpose(weight)
    dx, dweight = list(of_shard), xp.zeros_like(weight)
    for source, dtokens in around_ring(comm, dy):
        dx[source] = _product(comm, dtokens, transposed)  # [B, S/t, in/t]
        dweight = dweight + _weight_gradient(comm, of_shard[source], dtokens)
    return xp.concat(dx, axis=SEQUENCE), dweight


def overlapped_time(product: Any, hop: Any, ranks: int) -> Any:
    """c/t + (t − 1)max(c/t, h): the time of either, for a product of c and hops of h in the same unit, on t ranks."""
    part = product / ranks
    return part + (ranks - 1) * max(part, hop)


def _shards(x: Array, size: int) -> list[Array]:
    """The tokens of each rank: `[B, S, n]` -> t arrays `[B, S/t, n]`."""
    own = x.shape[SEQUENCE] // size
    return [x[:, rank * own : (rank + 1) * own, :] for rank in range(size)]


def _product(comm: Comm, x: Array, weight: Array) -> Array:
    with comm.compute("product", flops=2 * x.size * weight.shape[1]):
        return linear(x, weight)[0]


def _weight_gradient(comm: Comm, x: Array, dy: Array) -> Array:
    with comm.compute("weight gradient", flops=2 * x.size * dy.shape[-1]):
        return linear_backward_weight((x, dy))
