"""A small Llama, what serial training makes of it, and what a mesh does."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np

from parlab.arrays import asarray
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW, clip_gradients, gradient_norm

LIBRARIES = {"numpy": np, "strict": array_api_strict}
SIZES = {
    "vocab_size": 17,  # does not divide: the first tensor-parallel ranks own one token more
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,  # large enough for gradients to be felt everywhere
}


def model(xp: Any = np, dtype: str = "float64", **changes: Any) -> Llama:
    """Random matrices, and norm weights that are random too: at 1 they hide a missing weight."""
    made = Llama.random(LlamaConfig(**{**SIZES, **changes}), seed=3, xp=xp, dtype=dtype)
    draw = np.random.default_rng(4)
    for name, weight in made.weights.items():
        if weight.ndim == 1:
            made.weights[name] = asarray(draw.uniform(0.5, 1.5, weight.shape), xp, weight.dtype)
    return made


def batches(B: int, S: int, steps: int = 1, xp: Any = np) -> list[tuple[Any, Any]]:
    """Tokens and targets, `[B, S]`, for each step."""
    drawn = np.random.default_rng(5).integers(SIZES["vocab_size"], size=(steps, B, S + 1))
    return [(asarray(text[:, :-1].copy(), xp), asarray(text[:, 1:].copy(), xp)) for text in drawn]


def serial_steps(start: Llama, text: list[tuple[Any, Any]], max_norm: float | None = None) -> list[tuple[Any, ...]]:
    """Loss, norm, gradients before clipping and the weights after each step."""
    trained = Llama(start.config, {name: x.copy() for name, x in start.weights.items()})
    optimizer, found = AdamW(lr=1e-2), []
    for tokens, targets in text:
        loss, gradients = trained.loss_and_gradients(tokens, targets)
        clipped = gradients if max_norm is None else clip_gradients(gradients, max_norm)[0]
        optimizer.step(trained.weights, clipped)
        found.append((loss, gradient_norm(gradients), gradients, {n: x.copy() for n, x in trained.weights.items()}))
    return found
