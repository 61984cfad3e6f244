"""The serial training loop, the reference for every parallel one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parlab.arrays import Array
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW, clip_gradients


def train(
    model: Llama,
    batches: Iterable[tuple[Array, Array]],
    optimizer: AdamW,
    *,
    schedule: Callable[[int], float] | None = None,
    max_norm: float = 1.0,
) -> list[float]:
    """One optimizer step for each batch `(tokens, targets)`, both `[B, S]`. Returns the loss before each step.

    Args:
        schedule: from a step, counted from 0, to its learning rate. None: the optimizer's own.
        max_norm: the largest norm of all gradients together; larger ones are clipped to it.
    """
    losses = []
    for step, (tokens, targets) in enumerate(batches):
        loss, gradients = model.loss_and_gradients(tokens, targets)
        gradients, _ = clip_gradients(gradients, max_norm)
        optimizer.step(model.weights, gradients, lr=schedule(step) if schedule else None)
        losses.append(loss)
    return losses
