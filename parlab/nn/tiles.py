"""Which tiles of queries × keys a block has, and what makes them quick: their size, their memory, how many at a time.

A tile's scores are all that exists of the score matrix. On the host it is as large as the cache allows. On a device all
heads are one operation, and tiles are larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from array_api_compat import is_numpy_array

from parlab.arrays import Array, namespace, on_host

TILE = 512  # queries × keys whose scores exist at one time
TRIANGLE = 256  # queries of a tile on the diagonal, where half of the work is wasted
DEVICE_SCORES = 2**25  # on a device a tile grows until the scores of all heads are so many

Tiles = list[tuple[slice, Array | None]]  # which keys; what to add to the scores of the last: 0, or −inf where hidden
Stretch = tuple[slice, Tiles]  # a stretch of queries, and the tiles of keys that it sees


def stretches_of(q: Array, k: Array, diagonal: int | None, window: int | None, like: Array) -> Iterator[Stretch]:
    """The stretches of queries `[..., S, D]` that see any of the keys `[..., T, D]`, each with its tiles of keys."""
    if diagonal is None:
        yield from _full(q.shape[-2], k.shape[-2], like)
    else:
        yield from _masked(q.shape[-2], k.shape[-2], diagonal, window, like)


def _full(num_queries: int, num_keys: int, like: Array) -> Iterator[Stretch]:
    """Every query sees every key."""
    tile = _side(like)
    for start in range(0, num_queries, tile):
        tiles: Tiles = [(slice(left, min(left + tile, num_keys)), None) for left in range(0, num_keys, tile)]
        yield slice(start, min(start + tile, num_queries)), tiles


def _masked(num_queries: int, num_keys: int, diagonal: int, window: int | None, like: Array) -> Iterator[Stretch]:
    """Query i sees keys 0..i + diagonal, with a window the last `window` of them.

    The first query of a stretch sees the keys up to `newest`, from `oldest` on, and each next query those one further.
    So the keys inner..newest are seen by all of the stretch. Those before and behind form triangles with it, the same
    in every stretch, which both lie in `band`. In a window shorter than the stretch the two are one. The keys before
    are a tile of their own, those behind end the last tiles.
    """
    xp, tile = namespace(like), _side(like)
    most = max(min(num_queries, window or num_queries) // 4, 64)  # else a short block is all triangle
    if not on_host(like):
        most = num_queries
    height = min(TRIANGLE * tile // TILE, most, num_queries)
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
        tiles: Tiles = []
        if first < inner:
            tiles.append((slice(first, inner), band[: stop - start, first - oldest : inner - oldest]))
        for left in range(inner, end, tile):
            right, edge = min(left + tile, end), max(left, full)
            hidden = band[: stop - start, edge - column : right - column] if edge < right else None
            tiles.append((slice(left, right), hidden))
        if tiles:
            yield slice(start, stop), tiles


def _side(like: Array) -> int:
    """How many keys a tile has, and queries where none is hidden."""
    if on_host(like):
        return TILE
    return max(TILE, math.isqrt(DEVICE_SCORES // math.prod(like.shape[:-2])))


def few_at_a_time(q: Array, stretches: list[Stretch], share: int = 1) -> Iterator[tuple[slice, ...]]:
    """Which sequences, K/V heads and query heads of each are attended together, of q `[B, G, H/G, S, D]`.

    Small tiles cost more calls than computation. So on the host as many heads are taken together as have the scores of
    one tile of `TILE` × `TILE`, or a `share` of it, and of sequences as many as keep their keys in the cache: a quarter
    of a tile's numbers. On a device all are taken together.
    """
    B, G, heads, _, D = q.shape
    tiles = [(rows.stop - rows.start, keys.stop - keys.start) for rows, tiles in stretches for keys, _ in tiles]
    fit = kept = B * G * heads
    if on_host(q) and tiles:
        fit = max(TILE * TILE // share // max(rows * keys for rows, keys in tiles), 1)
        kept = TILE * TILE // 4 // (D * max(keys for _, keys in tiles))
    each = (B, max(min(fit, kept) // (G * heads), 1)), (G, max(fit // heads, 1)), (heads, fit)
    return product(*([slice(at, min(at + few, size)) for at in range(0, size, few)] for size, few in each))


def tile_buffer(like: Array) -> Array:
    """Memory for the scores of a tile, on the host: a new array for each tile would cost more than its exp."""
    return namespace(like).empty(TILE * TILE if on_host(like) else 0, dtype=like.dtype, device=like.device)


def product_of(a: Array, b: Array, buffer: Array) -> Array:
    """a bᵀ: `[..., rows, D]`, `[..., columns, D]` -> `[..., rows, columns]`, on the host written into `buffer`."""
    xp = namespace(a, b)
    b = xp.matrix_transpose(b)
    if is_numpy_array(a):
        shape = *a.shape[:-1], b.shape[-1]
        return xp.matmul(a, b, out=xp.reshape(buffer[: math.prod(shape)], shape))
    return a @ b


def hide(scores: Array, hidden: Array | None) -> None:
    """Add to the scores of a tile what hides its last keys from some of the queries."""
    if hidden is not None:
        scores[..., scores.shape[-1] - hidden.shape[-1] :] += hidden


def row_sums(x: Array) -> Array:
    """The sums of rows, as a product, which is quicker than a sum: `[..., rows, columns]` -> `[..., rows, 1]`."""
    return x @ namespace(x).ones((x.shape[-1], 1), dtype=x.dtype, device=x.device)
