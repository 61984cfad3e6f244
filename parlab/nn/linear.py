"""A linear layer, y = x W (+ b): the product that nearly all of a transformer's time goes into.

Like every piece here it is a pair of pure functions, and its backward comes in two parts: the *input* part gives dx,
which the layer before waits for; the *weight* part gives dW, which nobody waits for before the end of the step, so that
a pipeline schedule may put it off. What the first hands to the second is called `pending`.

A cache keeps activations, never weights: those are passed again, so that a strategy may free them in between (ZeRO-3),
and the bytes of a cache are the bytes that an activation costs.

Source: the split is Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

from parlab.arrays import Array, namespace

Cache = Array  # x
Pending = tuple[Array, Array]  # x, dy


def linear(x: Array, weight: Array) -> tuple[Array, Cache]:
    """`x [..., in] @ weight [in, out]`.

    >>> import numpy as np
    >>> y, cache = linear(np.ones((2, 3)), np.ones((3, 4)))
    >>> dx, pending = linear_backward_input(np.ones((2, 4)), cache, np.ones((3, 4)))
    >>> y.shape, dx.shape, linear_backward_weight(pending).shape
    ((2, 4), (2, 3), (3, 4))
    """
    y = as_rows(x) @ weight  # [rows, out]
    return namespace(x).reshape(y, (*x.shape[:-1], weight.shape[1])), x


def linear_backward_input(dy: Array, cache: Cache, weight: Array) -> tuple[Array, Pending]:
    """dx = dy Wᵀ, and what the weight part needs."""
    xp = namespace(dy)
    dx = as_rows(dy) @ xp.matrix_transpose(weight)  # [rows, in]
    return xp.reshape(dx, (*dy.shape[:-1], weight.shape[0])), (cache, dy)


def linear_backward_weight(pending: Pending) -> Array:
    """dW = xᵀ dy, summed over all rows: `[in, out]`."""
    x, dy = pending
    return namespace(x).matrix_transpose(as_rows(x)) @ as_rows(dy)


def as_rows(x: Array) -> Array:
    """`[..., n]` as a matrix `[rows, n]`: one large product is faster than a batch of small ones."""
    return namespace(x).reshape(x, (-1, x.shape[-1]))
