"""Both ends of the model: the embedding, which looks up a row for each token, and the cross-entropy of the logits."""

from __future__ import annotations

import math

from parlab.arrays import Array, add_at, namespace, on_host, to_host, to_numpy
from parlab.nn.linear import as_rows

LossCache = tuple[Array, Array]  # probabilities [B, S, V], targets [B, S]


def embedding(tokens: Array, weight: Array) -> tuple[Array, Array]:
    """y = weight[token], a row for each token: `[B, S]`, `[V, E]` -> `[B, S, E]`.

    Raises:
        ValueError: a token outside 0..V−1.
    """
    fitting, inside = checked_range("tokens", tokens, weight.shape[0])
    xp = namespace(weight)
    rows = or_nan(xp.take(weight, xp.reshape(fitting, (-1,)), axis=0), inside)
    return xp.reshape(rows, (*tokens.shape, weight.shape[1])), tokens


def embedding_backward(dy: Array, cache: Array, vocab_size: int) -> Array:
    """dweight `[V, E]`: each row of dy is added to its token's row. There is no dx, because tokens have no gradient."""
    xp = namespace(dy)
    dweight = xp.zeros((vocab_size, dy.shape[-1]), dtype=dy.dtype, device=dy.device)
    return add_at(dweight, xp.reshape(cache, (-1,)), as_rows(dy))


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, LossCache]:
    """The mean over all tokens of −log softmax(logits)[target], in nats: `[B, S, V]`, `[B, S]` -> a number.

    >>> import numpy as np
    >>> loss, cache = cross_entropy(np.zeros((1, 3, 4)), np.array([[0, 1, 2]]))
    >>> bool(np.isclose(loss, np.log(4)))  # a uniform guess among four
    True

    Raises:
        ValueError: targets of another shape than the logits' tokens, or a target outside 0..V−1.
    """
    if tuple(targets.shape) != tuple(logits.shape[:-1]):
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, logits {tuple(logits.shape)}: one target a token is needed, "
            f"{tuple(logits.shape[:-1])}"
        )
    fitting, inside = checked_range("targets", targets, logits.shape[-1])
    xp = namespace(logits)
    wide = xp.astype(logits, xp.result_type(logits.dtype, xp.float32), copy=False)
    largest = xp.max(wide, axis=-1, keepdims=True)  # [B, S, 1]
    probabilities = xp.exp(wide - largest)  # [B, S, V]
    total = xp.sum(probabilities, axis=-1, keepdims=True)
    probabilities /= total
    chosen = xp.take_along_axis(wide, fitting[..., None], axis=-1)  # [B, S, 1]
    loss = or_nan(xp.mean(largest + xp.log(total) - chosen), inside)
    return xp.asarray(loss), (xp.astype(probabilities, logits.dtype, copy=False), targets)


def cross_entropy_backward(dloss: float, cache: LossCache) -> Array:
    """dlogits `[B, S, V]` = dloss · (softmax − one-hot target) / tokens."""
    probabilities, targets = cache
    xp = namespace(probabilities)
    share = float(dloss) / targets.size
    hit = xp.arange(probabilities.shape[-1], dtype=targets.dtype, device=targets.device) == targets[..., None]
    dlogits = probabilities * share
    dlogits -= xp.astype(hit, dlogits.dtype) * share
    return dlogits


def checked_range(name: str, indices: Array, size: int) -> tuple[Array, Array | None]:
    """Refuse indices that are not integers in 0..size−1, because NumPy counts negative ones from the end.

    On a device a look at the values would wait for all work before. There nothing is refused. The function returns the
    indices clipped to the range, and an array that says whether they were inside. Pass it to `or_nan`.
    """
    xp = namespace(indices)
    if not xp.isdtype(indices.dtype, "integral"):
        raise ValueError(f"{name} have dtype {indices.dtype}: integers are needed")
    if not on_host(indices):
        fitting = xp.clip(indices, 0, size - 1)
        return fitting, xp.all(fitting == indices)
    if indices.size and (int(xp.min(indices)) < 0 or int(xp.max(indices)) >= size):
        raise ValueError(
            f"{name} hold {int(xp.min(indices))}..{int(xp.max(indices))}: the vocabulary has 0..{size - 1}"
        )
    return indices, None


def or_nan(x: Array, inside: Array | None) -> Array:
    """`x`, or NaN everywhere if `inside` is false: an index was outside, and `checked_range` could not say so."""
    xp = namespace(x)
    return x if inside is None else xp.where(inside, x, xp.nan)


def loss_to_host(loss: Array, tokens: Array, targets: Array, vocab_size: int) -> float:
    """The loss as a number of Python. On a device this is the one wait of a step.

    Raises:
        ValueError: the loss is NaN because a token or a target was outside the vocabulary.
    """
    number: float = to_host(loss)
    if math.isnan(number):
        checked_range("tokens", to_numpy(tokens), vocab_size)
        checked_range("targets", to_numpy(targets), vocab_size)
    return number
