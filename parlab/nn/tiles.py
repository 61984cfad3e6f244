"""How a tile is cut into stretches of queries, each with strips of keys, and what makes that quick.

The scores of one stretch and one strip are all that exists of the score matrix. On the host they are as many as the
cache allows. On a device all heads are one operation, and stretches and strips are longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

from array_api_compat import is_numpy_array

from parlab.arrays import Array, exp_, namespace, on_host
from parlab.nn.sums import row_dot

SIDE = 512  # the most queries, and the most keys, whose scores exist at one time
TRIANGLE = 256  # the most queries of a stretch on the diagonal, where half of the work is wasted
DEVICE_SCORES = 2**25  # on a device both grow until the scores of all heads are so many

LOWEST_EXPONENT = -60.0  # exp(−60) vanishes beside 1; below −87 float32 results are denormal, ten times slower
SMALL = 30.0  # scores within ±30 need no maximum: exp(30) is far from overflow, exp(−30) from vanishing

# (keys, mask). The mask covers the strip's last keys: 0 or −inf is added to their scores. None: no key is hidden.
Strip = tuple[slice, Array | None]
Stretch = tuple[slice, list[Strip]]  # a stretch of queries, and the strips of keys that it sees
Softmax = Callable[[Array, Array, Array, list[Strip], Array], tuple[Array, Array]]  # of a stretch: its out and lse


def stretches_of(q: Array, k: Array, diagonal: int | None, window: int | None, like: Array) -> Iterator[Stretch]:
    """The stretches of queries `[..., S, D]` that see any of the keys `[..., T, D]`, each with its strips of keys."""
    if diagonal is None:
        yield from _full(q.shape[-2], k.shape[-2], like)
    else:
        yield from _masked(q.shape[-2], k.shape[-2], diagonal, window, like)


def _full(num_queries: int, num_keys: int, like: Array) -> Iterator[Stretch]:
    """Every query sees every key."""
    side = _side(like)
    for start in range(0, num_queries, side):
        strips: list[Strip] = [(slice(left, min(left + side, num_keys)), None) for left in range(0, num_keys, side)]
        yield slice(start, min(start + side, num_queries)), strips


def _masked(num_queries: int, num_keys: int, diagonal: int, window: int | None, like: Array) -> Iterator[Stretch]:
    """Query i sees keys 0..i + diagonal, with a window the last `window` of them.

    The first query of a stretch sees the keys oldest..newest, and each next query those one further. A stretch of four
    queries, with a window of 7 (s: seen, .: hidden):

        query 0   s s s s s s s . . .
        query 1   . s s s s s s s . .
        query 2   . . s s s s s s s .
        query 3   . . . s s s s s s s
                  before|  all  |after

    Every query of the stretch sees the keys inner..newest. The keys before them have one triangular mask, the keys
    after them another. Both masks are slices of `band`, which is the same for every stretch. The keys before are a
    strip of their own; the keys after end the last strips. In a window shorter than the stretch no key is seen by all,
    and one mask has both triangles.
    """
    xp, side = namespace(like), _side(like)
    most = max(min(num_queries, window or num_queries) // 4, 64)  # else a short tile is all triangle
    if not on_host(like):
        most = num_queries
    height = min(TRIANGLE * side // SIDE, most, num_queries)
    width = 1 if window is None else min(window, height)
    never = xp.full((height, height + width - 1), -xp.inf, dtype=like.dtype, device=like.device)
    band = xp.triu(never, k=width)  # row i sees the columns 0..i + width − 1
    if window is None:
        window = num_queries + abs(diagonal)  # all of them
    else:
        band += xp.tril(never, k=-1)  # ... i..i + width − 1
    for start in range(0, num_queries, height):
        stop = min(start + height, num_queries)
        newest, oldest = start + diagonal, start + diagonal - window + 1
        edges = (oldest, stop + diagonal - window, newest, stop + diagonal)
        first, inner, full, end = (min(max(edge, 0), num_keys) for edge in edges)
        column = newest - width + 1  # the key of the band's column 0; of the triangle before it is `oldest`
        if inner > full:
            inner, full, column = first, first, oldest
        strips: list[Strip] = []
        if first < inner:
            strips.append((slice(first, inner), band[: stop - start, first - oldest : inner - oldest]))
        for left in range(inner, end, side):
            right, edge = min(left + side, end), max(left, full)
            hidden = band[: stop - start, edge - column : right - column] if edge < right else None
            strips.append((slice(left, right), hidden))
        if strips:
            yield slice(start, stop), strips


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
    fit = kept = B * G * heads
    if on_host(q) and sizes:
        fit = max(SIDE * SIDE // share // max(rows * keys for rows, keys in sizes), 1)
        kept = SIDE * SIDE // 4 // (D * max(keys for _, keys in sizes))
    each = (B, max(min(fit, kept) // (G * heads), 1)), (G, max(fit // heads, 1)), (heads, fit)
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


def quick_softmax(q: Array, k: Array, scale: float) -> Softmax | None:
    """The softmax without a maximum, where all scores are small; else None.

    Not asked on a device, where the answer would have to be waited for.
    """
    return _unshifted_softmax if on_host(q) and largest_score(q, k, scale) < SMALL else None


def largest_score(q: Array, k: Array, scale: float) -> float:
    """No |scale · q · k| is larger (Cauchy-Schwarz)."""
    xp = namespace(q, k)
    return abs(scale) * math.sqrt(float(xp.max(row_dot(q, q)))) * math.sqrt(float(xp.max(row_dot(k, k))))


def _unshifted_softmax(q: Array, k: Array, v: Array, strips: list[Strip], buffer: Array) -> tuple[Array, Array]:
    """`(out, lse)` where all scores are small: exp can neither overflow nor vanish, so no maximum is needed."""
    xp = namespace(q, k, v)
    total, out = xp.zeros((*q.shape[:-1], 1), dtype=q.dtype, device=q.device), None  # [B', G', H', rows, 1]
    for columns, hidden in strips:
        scores = product_of(q, k[..., columns, :], buffer)  # [B', G', H', rows, columns]
        hide(scores, hidden)
        weights = exp_(scores)
        total += row_sums(weights)
        part = weights @ v[..., columns, :]  # [B', G', H', rows, D]
        out = part if out is None else out + part
    seen = total > 0  # any key; a NaN score is not small
    total = xp.where(seen, total, xp.inf)  # out / inf is 0
    return out / total, xp.where(seen, xp.log(total), -xp.inf)[..., 0]
