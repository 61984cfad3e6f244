"""Sums over arrays are kept in float32, or in the arrays' own dtype where that is wider."""

from __future__ import annotations

from parlab.arrays import Array, namespace


def accumulator_dtype(x: Array) -> object:
    """The dtype of sums over x: float32, or x's own where that is wider."""
    xp = namespace(x)
    return xp.result_type(x.dtype, xp.float32)


def widened(x: Array) -> Array:
    """x in the dtype of its sums."""
    return namespace(x).astype(x, accumulator_dtype(x), copy=False)


def wide_zeros(x: Array) -> Array:
    """Zeros of the shape of x, to sum in."""
    return namespace(x).zeros(x.shape, dtype=accumulator_dtype(x), device=x.device)


def row_dot(a: Array, b: Array) -> Array:
    """Σ over the last axis of a ∘ b, in float32 or wider: `[..., D]`, `[..., D]` -> `[...]`."""
    return namespace(a, b).vecdot(widened(a), widened(b))
