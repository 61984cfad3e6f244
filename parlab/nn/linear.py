"""A linear layer, y = x W: the product in which a transformer spends nearly all of its time.

The backward has two parts. The *input* part computes dx, which the layer before needs at once. The *weight* part
computes dW, which is needed only at the end of the step, so a pipeline schedule may delay it. The arrays that it still
needs are called `pending`.

A cache holds activations and never weights. The backward gets the weights as arguments again, so that ZeRO-3 can free
them in between.

Source: the split is Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

from parlab.arrays import Array, namespace

Cache = Array  # x
Pending = tuple[Array, Array]  # x, dy


def linear(x: Array, weight: Array) -> tuple[Array, Cache]:
    """y = x W: `[..., in]`, `[in, out]` -> `[..., out]`.

    >>> import numpy as np
    >>> y, cache = linear(np.ones((2, 3)), np.ones((3, 4)))
    >>> dx, pending = linear_backward_input(np.ones((2, 4)), cache, np.ones((3, 4)))
    >>> y.shape, dx.shape, linear_backward_weight(pending).shape
    ((2, 4), (2, 3), (3, 4))
    """
    y = as_rows(x) @ weight  # [rows, out]
    return namespace(x).reshape(y, (*x.shape[:-1], weight.shape[1])), x


def linear_backward_input(dy: Array, cache: Cache, weight: Array) -> tuple[Array, Pending]:
    """dx = dy Wᵀ, `[..., in]`; and pending, `(x, dy)`."""
    xp = namespace(dy)
    dx = as_rows(dy) @ xp.matrix_transpose(weight)  # [rows, in]
    return xp.reshape(dx, (*dy.shape[:-1], weight.shape[0])), (cache, dy)


def linear_backward_weight(pending: Pending) -> Array:
    """dW = xᵀ dy, the sum over all rows: `[in, out]`."""
    x, dy = pending
    return namespace(x).matrix_transpose(as_rows(x)) @ as_rows(dy)


def as_rows(x: Array) -> Array:
    """`[..., n]` -> `[rows, n]`, because one large product is faster than a batch of small ones."""
    return namespace(x).reshape(x, (-1, x.shape[-1]))
