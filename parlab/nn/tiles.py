"""How a tile is cut into stretches of queries, each with strips of keys, and what makes that quick.

The scores of one stretch and one strip are all that exists of the score matrix. On the host they are as many as the
cache allows. On a device all heads are one operation, and stretches and strips are longer.

Invariant: each (query, key) pair that the tile's mask leaves is in one stretch and one of its strips; a pair that it
hides is in none, or has −inf added to its score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from array_api_compat import is_numpy_array

from parlab.arrays import Array, namespace, on_host
from parlab.nn.sums import row_dot

SIDE = 512  # the most queries, and the most keys, whose scores exist at one time
TRIANGLE = 256  # the most queries of a stretch on the diagonal, where half of the work is wasted
DEVICE_SCORES = 2**25  # on a device both grow until the scores of all heads are so many

LOWEST_EXPONENT = -60.0  # exp(−60) vanishes beside 1; below −87 float32 results are denormal, ten times slower
SMALL = 30.0  # scores within ±30 need no maximum: exp(30) is far from overflow, exp(−30) from vanishing

# (keys, mask). The mask covers the strip's last keys: 0 or −inf is added to their scores. None: no key is hidden.
Strip = tuple[slice, Array | None]
Stretch = tuple[slice, list[Strip]]  # a stretch of queries, and the strips of keys that it sees


def stretches_of(q: Array, k: Array, diagonal: int | None, window: int | None, like: Array) -> Iterator[Stretch]:
    """The stretches of queries `[..., S, D]` that see any of the keys `[..., T, D]`, each with its strips of keys."""
    S, T = q.shape[-2], k.shape[-2]
    if diagonal is None:
        return _full(S, T, like)
    if window is None:
        return _causal(S, T, diagonal, like)
    return _windowed(S, T, diagonal, window, like)


def _full(num_queries: int, num_keys: int, like: Array) -> Iterator[Stretch]:
    """Every query sees every key."""
    side = _side(like)
    for start in range(0, num_queries, side):
        strips: list[Strip] = [(slice(left, min(left + side, num_keys)), None) for left in range(0, num_keys, side)]
        yield slice(start, min(start + side, num_queries)), strips


def _causal(num_queries: int, num_keys: int, diagonal: int, like: Array) -> Iterator[Stretch]:
    """Query i sees keys 0..i + diagonal. A stretch of four queries (s: seen, .: hidden):

        query 0   s s s s s s s . . .
        query 1   s s s s s s s s . .
        query 2   s s s s s s s s s .
        query 3   s s s s s s s s s s
                              newest

    `newest` is the last key that its first query sees. Each next query sees one more: from there on the mask is a
    triangle, the same for every stretch.
    """
    side, height = _side(like), _height(num_queries, num_queries, like)
    later = namespace(like).triu(_never(height, height, like), k=1)  # row i hides the columns behind i
    for start in range(0, num_queries, height):
        rows = min(height, num_queries - start)
        newest = start + diagonal
        strips = _strips(0, newest + rows, num_keys, side, later[:rows, :], newest)
        if strips:
            yield slice(start, start + rows), strips


def _windowed(num_queries: int, num_keys: int, diagonal: int, window: int, like: Array) -> Iterator[Stretch]:
    """Query i sees the last `window` of the keys 0..i + diagonal. A stretch of four queries, with a window of 7:

        query 0   s s s s s s s . . .
        query 1   . s s s s s s s . .
        query 2   . . s s s s s s s .
        query 3   . . . s s s s s s s
              oldest  inner   newest

    The first query sees the keys oldest..newest, all queries see inner..newest. The keys before `inner` are a strip of
    their own, with one triangle as its mask; from `newest` on the mask is the other triangle, as in `_causal`. In a
    window shorter than the stretch no key is seen by all, and one mask has both triangles.
    """
    xp, side, height = namespace(like), _side(like), _height(num_queries, window, like)
    never = _never(height, height, like)
    earlier, later = xp.tril(never, k=-1), xp.triu(never, k=1)  # row i hides the columns before i, those behind i
    wide = _never(height, height + window - 1 if window < height else 0, like)  # in a longer window it is not needed
    both = xp.tril(wide, k=-1) + xp.triu(wide, k=window)  # row i hides all but the columns i..i + window − 1
    for start in range(0, num_queries, height):
        rows = min(height, num_queries - start)
        newest = start + diagonal
        oldest = newest - window + 1
        inner, end = oldest + rows - 1, newest + rows
        if inner <= newest:
            strips = _strips(oldest, inner, num_keys, side, earlier[:rows, :], oldest)
            strips += _strips(inner, end, num_keys, side, later[:rows, :], newest)
        else:
            strips = _strips(oldest, end, num_keys, side, both[:rows, :], oldest)
        if strips:
            yield slice(start, start + rows), strips


def _strips(start: int, stop: int, num_keys: int, side: int, mask: Array, origin: int) -> list[Strip]:
    """The strips of those keys start..stop − 1 that there are; from key `origin` on they have the columns of `mask`."""
    strips: list[Strip] = []
    start, stop = max(start, 0), min(stop, num_keys)
    for left in range(start, stop, side):
        right, masked = min(left + side, stop), max(left, origin)
        hidden = mask[:, masked - origin : right - origin] if masked < right else None
        strips.append((slice(left, right), hidden))
    return strips


def _height(num_queries: int, window: int, like: Array) -> int:
    """The most queries of a stretch of which some see a key that others do not."""
    most = max(min(num_queries, window) // 4, 64)  # else a short tile is all triangle
    if not on_host(like):
        most = num_queries
    return min(TRIANGLE * _side(like) // SIDE, most, num_queries)


def _never(rows: int, columns: int, like: Array) -> Array:
    """A mask that hides every key from every query."""
    return namespace(like).full((rows, columns), -namespace(like).inf, dtype=like.dtype, device=like.device)


def _side(like: Array) -> int:
    """The most keys of a strip; and the most queries of a stretch, where no key is hidden."""
    if on_host(like):
        return SIDE
    return max(SIDE, math.isqrt(DEVICE_SCORES // math.prod(like.shape[:-2])))


def few_at_a_time(q: Array, stretches: list[Stretch], share: int = 1) -> Iterator[tuple[slice, ...]]:
    """Which sequences, K/V heads and query heads of each are attended together, of q `[B, G, H/G, S, D]`.

    Short strips cost more calls than computation. So on the host as many heads are taken together as have `SIDE` ×
    `SIDE` scores, or a `share` of them, and of sequences as many as keep their keys in the cache: a quarter of as many
    numbers. On a device all are taken together.
    """
    B, G, heads, _, D = q.shape
    sizes = [(rows.stop - rows.start, keys.stop - keys.start) for rows, strips in stretches for keys, _ in strips]
    by_scores = by_keys = B * G * heads  # how many heads: all
    if on_host(q) and sizes:
        most_scores, most_keys = max(rows * keys for rows, keys in sizes), max(keys for _, keys in sizes)  # of a head
        by_scores = max(SIDE * SIDE // share // most_scores, 1)
        by_keys = SIDE * SIDE // 4 // (most_keys * D)
    sequences = max(min(by_scores, by_keys) // (G * heads), 1)
    each = (B, sequences), (G, max(by_scores // heads, 1)), (heads, by_scores)
    return product(*([slice(at, min(at + few, size)) for at in range(0, size, few)] for size, few in each))


def scores_buffer(like: Array) -> Array:
    """Memory for the scores of one strip, on the host: a new array for each strip would cost more than its exp."""
    return namespace(like).empty(SIDE * SIDE if on_host(like) else 0, dtype=like.dtype, device=like.device)


def product_of(a: Array, b: Array, buffer: Array) -> Array:
    """a bᵀ: `[..., rows, D]`, `[..., columns, D]` -> `[..., rows, columns]`, on the host written into `buffer`."""
    xp = namespace(a, b)
    b = xp.matrix_transpose(b)
    if is_numpy_array(a):
        shape = *a.shape[:-1], b.shape[-1]
        return xp.matmul(a, b, out=xp.reshape(buffer[: math.prod(shape)], shape))
    return a @ b


def hide(scores: Array, hidden: Array | None) -> None:
    """Add the mask to the scores of a strip's last keys."""
    if hidden is not None:
        scores[..., scores.shape[-1] - hidden.shape[-1] :] += hidden


def row_sums(x: Array) -> Array:
    """The sums of rows, as a product, which is quicker than a sum: `[..., rows, columns]` -> `[..., rows, 1]`."""
    return x @ namespace(x).ones((x.shape[-1], 1), dtype=x.dtype, device=x.device)


def scores_are_small(q: Array, k: Array, scale: float) -> bool:
    """Whether no score of the tile needs a maximum. On a device it is not asked: the answer would be waited for."""
    return on_host(q) and largest_score(q, k, scale) < SMALL


def largest_score(q: Array, k: Array, scale: float) -> float:
    """No |scale · q · k| is larger (Cauchy-Schwarz)."""
    xp = namespace(q, k)
    return abs(scale) * math.sqrt(float(xp.max(row_dot(q, q)))) * math.sqrt(float(xp.max(row_dot(k, k))))
