"""RMSNorm, as in Llama: it normalises the last axis.

The statistics are computed and kept in float32 or wider, because the square of a float16 above 255 is infinite.

Source: Zhang and Sennrich 2019.
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.linear import as_rows
from parlab.nn.sums import row_dot

RMSPending = tuple[Array, Array, Array]  # x, inverse, dy


class RMSCache(NamedTuple):
    """The arrays that RMSNorm keeps for its backward."""

    x: Array  # [..., E]
    inverse: Array  # [...]: 1 / rms(x)


def rms_norm(x: Array, weight: Array, eps: float = 1e-6) -> tuple[Array, RMSCache]:
    """y = weight ∘ x / rms(x), with rms(x) = √(mean(x²) + eps) over the last axis: `[..., E]` -> the same.

    >>> import numpy as np
    >>> y, cache = rms_norm(np.array([[3.0, 4.0]]), np.ones(2), eps=0.0)  # rms = √(25/2)
    >>> [round(float(value), 4) for value in y[0, :]]
    [0.8485, 1.1314]
    """
    xp = namespace(x, weight)
    inverse = 1 / xp.sqrt(row_dot(x, x) / x.shape[-1] + eps)  # [...]
    y = x * _column(inverse, x) * weight  # [..., E]
    return y, RMSCache(x, inverse)


def rms_norm_backward_input(dy: Array, cache: RMSCache, weight: Array) -> tuple[Array, RMSPending]:
    """dx = (g − x̂ mean(g ∘ x̂)) / rms, where g = weight ∘ dy and x̂ = x / rms.

    The second term removes the part of g along x̂, because a longer x gives the same output.
    """
    x, inverse = cache
    g = dy * weight  # [..., E]
    along = row_dot(g, x) / x.shape[-1] * inverse**3  # [...]
    dx = g * _column(inverse, x) - x * _column(along, x)
    return dx, (x, inverse, dy)


def rms_norm_backward_weight(pending: RMSPending) -> Array:
    """dweight = Σ over rows of dy ∘ x̂: `[E]`."""
    x, inverse, dy = pending
    return _weighted_sum(inverse, dy * x)


def _weighted_sum(weights: Array, x: Array) -> Array:
    """Σ over rows of weight · row: `[...]`, `[..., E]` -> `[E]` in x's dtype."""
    xp = namespace(x)
    total = xp.reshape(weights, (-1,)) @ as_rows(x)  # the sum is float32 or wider, as the weights are
    return xp.astype(total, x.dtype, copy=False)


def _column(values: Array, like: Array) -> Array:
    """One value a row, as a column in the dtype of `like`: `[...]` -> `[..., 1]`."""
    return namespace(values).astype(values, like.dtype, copy=False)[..., None]
