"""The serial training loop: what every parallel one is compared with."""

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
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """One optimizer step a batch `(tokens, targets)`, each `[B, S]`; returns the loss before each step.

    Args:
        schedule: step (from 0) -> learning rate; the optimizer's own when None.
        max_norm: of all gradients together, which are shrunk to it.
        on_step: called with `(step, loss)` after each step: a progress bar, say.
    """
    losses = []
    for step, (tokens, targets) in enumerate(batches):
        loss, gradients = model.loss_and_gradients(tokens, targets)
        gradients, _ = clip_gradients(gradients, max_norm)
        optimizer.step(model.weights, gradients, lr=schedule(step) if schedule else None)
        losses.append(loss)
        if on_step:
            on_step(step, loss)
    return losses
