"""Attention maps with a known structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def softmaxed(allowed: np.ndarray) -> np.ndarray:
    """Uniform over what is allowed, causally: `[S, S]` of weights that are not negative -> rows of sum 1."""
    weights = np.tril(allowed).astype(float)
    return weights / weights.sum(axis=-1, keepdims=True)


def blocks(lengths: Sequence[int], leak: float = 0.0, causal: bool = True) -> np.ndarray:
    """`[1, S, S]`: each token looks at its own block, uniformly, and with the share `leak` everywhere."""
    number = np.repeat(np.arange(len(lengths)), lengths)
    own = (number[:, None] == number[None, :]) + leak
    return softmaxed(own)[None] if causal else (own / own.sum(axis=-1, keepdims=True))[None]


def random_maps(draw: np.random.Generator, H: int, S: int, causal: bool) -> np.ndarray:
    """`[H, S, S]`: peaked ones."""
    weights = np.exp(3 * draw.normal(size=(H, S, S)))
    weights = np.tril(weights) if causal else weights
    return weights / weights.sum(axis=-1, keepdims=True)
