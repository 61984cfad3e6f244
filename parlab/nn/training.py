"""The serial training loop, the reference for every parallel one."""

from __future__ import annotations

from collections.abc import Iterable

from parlab.arrays import Array
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW, clip_gradients


def train(
    model: Llama, batches: Iterable[tuple[Array, Array]], optimizer: AdamW, *, max_norm: float = 1.0
) -> list[float]:
    """One optimizer step for each batch `(tokens, targets)`, both `[B, S]`. Returns the loss before each step.

    `max_norm` is the largest norm of all gradients together; larger ones are clipped to it.
    """
    losses = []
    for tokens, targets in batches:
        loss, gradients = model.loss_and_gradients(tokens, targets)
        gradients, _ = clip_gradients(gradients, max_norm)
        optimizer.step(model.weights, gradients)
        losses.append(loss)
    return losses
