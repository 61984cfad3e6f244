"""What the small Llamas of several rooms' tests have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from parlab.arrays import asarray
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.mixtral import Mixtral, MixtralConfig


def random_llama(xp: Any, dtype: str, **sizes: Any) -> Any:
    """Random matrices, and random norm weights: at 1 they hide a missing weight. With experts it is a Mixtral."""
    kind, config = (Mixtral, MixtralConfig) if "num_local_experts" in sizes else (Llama, LlamaConfig)
    made = kind.random(config(**sizes), seed=3, xp=xp, dtype=dtype)
    draw = np.random.default_rng(4)
    for name, weight in made.weights.items():
        if weight.ndim == 1:
            made.weights[name] = asarray(draw.uniform(0.5, 1.5, weight.shape), xp, weight.dtype)
    return made


def random_batches(vocab_size: int, B: int, S: int, steps: int, xp: Any) -> list[tuple[Any, Any]]:
    """Tokens and targets, `[B, S]`, for each step."""
    drawn = np.random.default_rng(5).integers(vocab_size, size=(steps, B, S + 1))
    return [(asarray(text[:, :-1].copy(), xp), asarray(text[:, 1:].copy(), xp)) for text in drawn]
