"""Gradients by central differences, against which every backward is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parlab.arrays import asarray, namespace, to_numpy


def draw(xp: Any, *shape: int, seed: int = 0) -> Any:
    """float64 of the library `xp`, normal."""
    return asarray(np.random.default_rng([seed, *shape]).normal(size=shape), xp)


def numerical_gradient(loss: Callable[[Any], float], x: Any, step: float = 1e-5) -> np.ndarray:
    """d loss / d x, entry by entry."""
    xp, start = namespace(x), to_numpy(x)
    gradient = np.empty_like(start)
    for i in np.ndindex(start.shape):
        ends = []
        for sign in (1, -1):
            moved = start.copy()
            moved[i] += sign * step
            ends.append(loss(asarray(moved, xp)))
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def assert_gradient(found: Any, loss: Callable[[Any], float], x: Any, tolerance: float = 1e-8) -> None:
    """`found` is d loss / d x, up to the error of central differences (about step² and rounding over step)."""
    expected = numerical_gradient(loss, x)
    assert tuple(found.shape) == expected.shape
    error = np.max(np.abs(to_numpy(found) - expected)) / max(np.max(np.abs(expected)), 1e-3)
    assert error <= tolerance, f"relative error {error:.1e}"


def weighted(y: Any, dy: Any) -> float:
    """Σ y ∘ dy: the loss whose gradient with respect to y is dy."""
    return float(namespace(y).sum(y * dy))
