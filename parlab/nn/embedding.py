"""The embedding: a row of a table for each token; and what becomes of a token that the table does not have.

Source: Bengio et al. 2003, "A neural probabilistic language model" (the table).
"""

from __future__ import annotations

from parlab.arrays import Array, add_at, namespace, on_host
from parlab.nn.linear import as_rows


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
