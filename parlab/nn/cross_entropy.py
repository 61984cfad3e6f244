"""The cross-entropy of the logits: the loss of a step, a mean over the tokens that have a target.

Invariant: a token without a target counts nowhere: neither in the sum nor in the number by which it is divided.
"""

from __future__ import annotations

import math
from typing import Any

from parlab.arrays import Array, namespace, to_host, to_numpy
from parlab.nn.embedding import checked_range, or_nan
from parlab.nn.sums import widened

LossCache = tuple[Array, Array]  # probabilities [B, S, V], targets [B, S]

# The target of a token that has none: one of a prompt, or padding. Hugging Face's label, PyTorch's `ignore_index`
IGNORED = -100


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, LossCache]:
    """The mean over all target tokens of −log softmax(logits)[target], in nats: `[B, S, V]`, `[B, S]` -> a number.

    A token whose target is `IGNORED` counts neither in the sum nor in the number of tokens. Of no target token the loss
    is 0, and so is its gradient.

    >>> import numpy as np
    >>> loss, cache = cross_entropy(np.zeros((1, 3, 4)), np.array([[0, 1, 2]]))
    >>> bool(np.isclose(loss, np.log(4)))  # a uniform guess among four
    True

    Raises:
        ValueError: targets of another shape than the logits' tokens, or a target outside 0..V−1 that is not `IGNORED`.
    """
    if tuple(targets.shape) != tuple(logits.shape[:-1]):
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, logits {tuple(logits.shape)}: one target a token is needed, "
            f"{tuple(logits.shape[:-1])}"
        )
    fitting, counted, inside = checked_targets(targets, logits.shape[-1])
    xp = namespace(logits)
    wide = widened(logits)
    largest = xp.max(wide, axis=-1, keepdims=True)  # [B, S, 1]
    probabilities = xp.exp(wide - largest)  # [B, S, V]
    total = xp.sum(probabilities, axis=-1, keepdims=True)
    probabilities /= total
    chosen = xp.take_along_axis(wide, fitting[..., None], axis=-1)  # [B, S, 1]
    loss = or_nan(mean_of_counted((largest + xp.log(total) - chosen)[..., 0], counted), inside)
    return xp.asarray(loss), (xp.astype(probabilities, logits.dtype, copy=False), targets)


def cross_entropy_backward(dloss: float, cache: LossCache) -> Array:
    """dlogits `[B, S, V]` = dloss · (softmax − one-hot target) / target tokens, and 0 where there is no target."""
    probabilities, targets = cache
    xp = namespace(probabilities)
    share = share_of_counted(dloss, is_target(targets), probabilities.dtype)  # [B, S, 1]
    hit = xp.arange(probabilities.shape[-1], dtype=targets.dtype, device=targets.device) == targets[..., None]
    dlogits = probabilities * share
    dlogits -= xp.astype(hit, dlogits.dtype) * share
    return dlogits


def checked_targets(targets: Array, size: int) -> tuple[Array, Array, Array | None]:
    """`(targets, counted, inside)`: 0 in place of `IGNORED`; which are targets; and as for `checked_range`.

    Targets of an unsigned dtype, which cannot be `IGNORED`, become int64.
    """
    xp = namespace(targets)
    if xp.isdtype(targets.dtype, "unsigned integer"):
        targets = xp.astype(targets, xp.int64)
    counted = is_target(targets)
    fitting, inside = checked_range("targets", xp.where(counted, targets, xp.zeros_like(targets)), size)
    return fitting, counted, inside


def is_target(targets: Array) -> Array:
    """Which tokens have a target: all but the `IGNORED`. Numbers of another kind, such as a regression's, all count."""
    xp = namespace(targets)
    if xp.isdtype(targets.dtype, "signed integer"):
        return targets != IGNORED
    return xp.ones_like(targets, dtype=xp.bool)


def number_of_targets(targets: Array) -> int:
    """How many target tokens there are."""
    return to_host(namespace(targets).count_nonzero(is_target(targets)))


def mean_of_counted(losses: Array, counted: Array) -> Array:
    """The mean of the losses `[B, S]` of target tokens; 0 if there is none."""
    xp = namespace(losses)
    return xp.sum(xp.where(counted, losses, xp.zeros_like(losses))) / _count(counted, losses.dtype)


def share_of_counted(dloss: float, counted: Array, dtype: Any) -> Array:
    """The weight of each token's gradient, `[B, S, 1]`: dloss / target tokens, and 0 where there is no target."""
    xp = namespace(counted)
    share = float(dloss) / _count(counted, xp.float64)
    return xp.astype(xp.where(counted, share, xp.zeros_like(share)), dtype)[..., None]


def _count(counted: Array, dtype: Any) -> Array:
    """The number of target tokens, at least 1, by which a mean is divided."""
    xp = namespace(counted)
    return xp.astype(xp.maximum(xp.count_nonzero(counted), xp.asarray(1, device=counted.device)), dtype)


def loss_to_host(loss: Array, tokens: Array, targets: Array, vocab_size: int) -> float:
    """The loss as a number of Python. On a device this is the one wait of a step.

    Raises:
        ValueError: the loss is NaN because a token or a target was outside the vocabulary, or 0 because there is none.
    """
    number: float = to_host(loss)
    if math.isnan(number):
        checked_range("tokens", to_numpy(tokens), vocab_size)
        checked_targets(to_numpy(targets), vocab_size)
    if number == 0:
        check_any_target(to_numpy(targets))
    return number


def check_any_target(targets: Array) -> None:
    """Refuse a batch in which no token has a target.

    Raises:
        ValueError: all targets are `IGNORED`.
    """
    if number_of_targets(targets) == 0:
        raise ValueError(f"targets are all {IGNORED}, the ignored label: a mean needs at least one target token")
