"""Attention one tile at a time, with the online softmax: the score matrix never exists as a whole.

A *block* is a stretch of queries against a stretch of keys. It returns its own `(out, lse)`, and `merge` joins two such
pairs over different keys exactly, because lse remembers how much each one was divided by. That is all that ring
attention needs.

Shapes: `B` batch, `H` query heads, `G` key/value heads (each serves H/G query heads), `S` queries, `T` keys, `D` head
size.

Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022, "FlashAttention", algorithms 1, 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from array_api_compat import is_numpy_array

from parlab.arguments import finite
from parlab.arrays import Array, exp_, is_array, namespace, on_host

CAUSAL = 0  # `diagonal` of a block whose query i sees keys 0..i
STRICT = -1  # ... keys 0..i−1: query 0 sees none

TILE = 512  # queries × keys whose scores exist at one time
TRIANGLE = 256  # queries of a tile on the diagonal, where half of the work is wasted
DEVICE_SCORES = 2**25  # on a device all heads are one operation, and a tile grows until it has so many scores
LOWEST_EXPONENT = -60.0  # exp(−60) vanishes beside 1; below −87 float32 results are denormal, ten times slower
GENTLE = 30.0  # scores within ±30 need no maximum: exp(30) is far from overflow, exp(−30) from vanishing

Tile = tuple[slice, Array | None]  # which keys, and what to add to the scores of the last: 0, or −inf where hidden


def attention(q: Array, k: Array, v: Array, *, causal: bool = False, scale: float | None = None) -> tuple[Array, Array]:
    """softmax(scale · q kᵀ) v, and the log of the softmax's denominator ("log-sum-exp"), one a query.

    Args:
        q: `[B, H, S, D]`.
        k, v: `[B, G, S, D]`, where G divides H: query head h reads key/value head h // (H/G).
        causal: query i sees keys 0..i only.
        scale: 1/√D when None.

    Returns:
        out `[B, H, S, D]` in q's dtype and lse `[B, H, S]` in float32 or wider.

    A key that is NaN makes out and lse NaN for each query that sees it. Under the causal mask it may do so for earlier
    queries of its tile (of 256, more on a device) as well: −inf is added to a hidden score, and NaN − inf is NaN.

    Raises:
        ValueError: shapes that do not fit.

    >>> import numpy as np
    >>> q = k = v = np.ones((1, 2, 8, 4))
    >>> out, lse = attention(q, k, v, causal=True)
    >>> out.shape, lse.shape
    ((1, 2, 8, 4), (1, 2, 8))
    >>> bool(np.allclose(np.exp(lse[0, 0] - 2), np.arange(1, 9)))  # each logit is 2; query i counts i + 1 keys
    True
    """
    check_inputs(q, k, v, causal=causal, scale=scale)
    xp = namespace(q)
    out, lse = attend_block(q, k, v, diagonal=CAUSAL if causal else None, scale=scale)
    return xp.astype(out, q.dtype, copy=False), lse


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of a loss from `dout`, its gradient with respect to `out`.

    The weights are made again, tile by tile, from q, k and lse: nothing of size S × S was kept.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_inputs(q, k, v, causal=causal, scale=scale)
    check_gradient(dout, q, out, lse)
    xp = namespace(q)
    diagonal = CAUSAL if causal else None
    gradients = attend_block_backward(dout, q, k, v, lse, row_dot(dout, out), diagonal=diagonal, scale=scale)
    return tuple(xp.astype(d, x.dtype, copy=False) for d, x in zip(gradients, (q, k, v), strict=True))


def attend_block(
    q: Array,
    k: Array,
    v: Array,
    *,
    diagonal: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    into: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """One block's `(out [B, H, S, D], lse [B, H, S])`, both in float32 or wider; merged `into` these, if given.

    `diagonal` None: every query sees every key; else query i sees keys 0..i + diagonal (`CAUSAL`, `STRICT`, or any
    offset between the first query's and the first key's position), with a `window` only the last `window` of them. A
    query without keys gets out 0 and lse −inf.
    """
    xp = namespace(q, k, v)
    scale = default_scale(scale, q.shape[3])
    gentle = on_host(q) and _largest_score(q, k, scale) < GENTLE
    sums = into or (wide_zeros(q), xp.full(q.shape[:-1], -xp.inf, dtype=accumulator_dtype(q), device=q.device))
    begun = into and not (on_host(q) and xp.all(sums[1] == -xp.inf))  # else there is nothing to merge with
    q, out, lse, k, v = _by_kv_head(q, *sums, k, v)  # twice [B, G, H/G, S, D], [B, G, H/G, S], twice [B, G, 1, T, D]
    buffer = _tile_buffer(out)
    stretches = list(_stretches(q.shape[3], k.shape[3], diagonal, window, out))
    for b, g, h in _at_once(q, stretches, TILE * TILE):
        queries = _widen(q[b, g, h, ...]) * scale  # [B', G', H', S, D]
        keys, values = _widen(k[b, g, ...]), _widen(v[b, g, ...])  # [B', G', 1, T, D]
        for rows, tiles in stretches:
            part = _attend_rows(queries[..., rows, :], keys, values, tiles, gentle, buffer)
            if begun:
                part = merge(out[b, g, h, rows, :], lse[b, g, h, rows], *part)
            out[b, g, h, rows, :], lse[b, g, h, rows] = part
    return sums


def _attend_rows(q: Array, k: Array, v: Array, tiles: list[Tile], gentle: bool, buffer: Array) -> tuple[Array, Array]:
    """The online softmax: `out` is Σ exp(score − largest) · v and `total` the sum of these weights; both shrink when a
    larger score turns up.

    Where all scores are small no maximum is needed: exp can neither overflow nor vanish, and `largest` stays 0.
    """
    xp = namespace(q, k, v)
    lowest = 0.0 if gentle else xp.finfo(q.dtype).min  # not −inf: a row that sees no key would have −inf − −inf
    largest = xp.full((*q.shape[:-1], 1), lowest, dtype=q.dtype, device=q.device)  # [B', G', H', rows, 1]
    total, out = xp.zeros_like(largest), None
    for columns, hidden in tiles:
        scores = _product(q, k[..., columns, :], buffer)  # [B', G', H', rows, columns]
        _hide(scores, hidden)
        if not gentle:
            before, largest = largest, xp.maximum(largest, xp.max(scores, axis=-1, keepdims=True))
            shrink = xp.exp(before - largest)
            total, out = total * shrink, None if out is None else out * shrink
            scores = xp.maximum(scores - largest, LOWEST_EXPONENT)
            _hide(scores, hidden)  # again: the line above let it through
        weights = exp_(scores)
        total += _row_sums(weights)
        part = weights @ v[..., columns, :]  # [B', G', H', rows, D]
        out = part if out is None else out + part
    seen = total != 0 if gentle else largest != lowest  # any key; NaN ≠ x: a row that met a NaN has seen it
    total = xp.where(seen, total, xp.inf)  # out / inf is 0
    return out / total, xp.where(seen, largest + xp.log(total), -xp.inf)[..., 0]


def attend_block_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    lse: Array,
    delta: Array,
    *,
    diagonal: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    totals: tuple[Array, Array, Array] | None = None,
) -> tuple[Array, Array, Array]:
    """One block's share of `(dq, dk, dv)`, in float32 or wider; or the `totals` of all blocks, to which it is added.

    `lse` and `delta` = rowsum(dO ∘ O), both `[B, H, S]`, belong to the whole attention, over the keys of all blocks;
    then the blocks' shares simply add up. With P = exp(scores − lse): dV = Pᵀ dO, dS = P ∘ (dO Vᵀ − delta), dQ = dS K,
    dK = dSᵀ Q. Both differences are made inside the products, by one more column against a column of ones.
    """
    xp = namespace(dout, q, k, v)
    scale = default_scale(scale, q.shape[3])
    gentle = on_host(q) and _largest_score(q, k, scale) + float(xp.max(lse)) < -LOWEST_EXPONENT
    lse = xp.where(lse == -xp.inf, xp.inf, lse)  # a query without keys: every weight is exp(−inf)
    totals = totals or (wide_zeros(q), wide_zeros(k), wide_zeros(v))
    q, dout, lse, delta, k, v = _by_kv_head(q, dout, lse, delta, k, v)
    dq, dk, dv = _by_kv_head(*totals)  # views: to part an axis moves nothing
    scores_buffer, dscores_buffer = _tile_buffer(dq), _tile_buffer(dq)
    stretches = list(_stretches(q.shape[3], k.shape[3], diagonal, window, dq))
    for b, g, h in _at_once(q, stretches, TILE * TILE // 4):  # dK/dV of all of them must stay in the cache too
        queries, douts = _widen(q[b, g, h, ...]) * scale, _widen(dout[b, g, h, ...])  # [B', G', H', S, D]
        keys, values = _widen(k[b, g, ...]), _widen(v[b, g, ...])  # [B', G', 1, T, D]
        queries_lse, douts_delta = _append(queries, -lse[b, g, h, :]), _append(douts, -delta[b, g, h, :])  # [..., D+1]
        ones = xp.ones_like(keys[..., 0])
        keys_one, values_one = _append(keys, ones), _append(values, ones)  # [B', G', 1, T, D+1]
        keys = keys * scale
        for rows, tiles in stretches:
            for columns, hidden in tiles:
                scores = _product(queries_lse[..., rows, :], keys_one[..., columns, :], scores_buffer)
                if not gentle:
                    scores = xp.maximum(scores, LOWEST_EXPONENT)
                _hide(scores, hidden)
                weights = exp_(scores)  # [B', G', H', rows, columns]
                dv[b, g, :, columns, :] += _over_heads(xp.matrix_transpose(weights) @ douts[..., rows, :])
                dscores = _product(douts_delta[..., rows, :], values_one[..., columns, :], dscores_buffer)
                dscores *= weights
                dk[b, g, :, columns, :] += _over_heads(xp.matrix_transpose(dscores) @ queries[..., rows, :])
                dq[b, g, h, rows, :] += dscores @ keys[..., columns, :]
    return totals


def merge(out: Array, lse: Array, block_out: Array, block_lse: Array) -> tuple[Array, Array]:
    """The `(out, lse)` over the keys of both pairs: a mean of the two outputs, weighted by exp(lse).

    Either side may have rows without keys (lse −inf, weight 0); a row without keys on both sides stays 0 and −inf.

    >>> import numpy as np
    >>> merge(np.array([[1.0]]), np.array([0.0]), np.array([[4.0]]), np.array([np.log(2)]))[0]  # (1·1 + 2·4) / 3
    array([[3.]])
    """
    xp = namespace(out, lse, block_out, block_lse)
    merged = xp.logaddexp(lse, block_lse)
    finite = xp.where(merged == -xp.inf, 0.0, merged)  # −inf − −inf would be NaN
    out = out * xp.exp(lse - finite)[..., None]
    out += block_out * xp.exp(block_lse - finite)[..., None]
    return out, merged


def row_dot(a: Array, b: Array) -> Array:
    """Σ over the last axis of a ∘ b, in float32 or wider: `[..., D]`, `[..., D]` -> `[...]`."""
    return namespace(a, b).vecdot(_widen(a), _widen(b))


def accumulator_dtype(x: Array) -> object:
    """What sums over x are kept in: float32, or x's own dtype where that is wider."""
    xp = namespace(x)
    return xp.result_type(x.dtype, xp.float32)


def wide_zeros(x: Array) -> Array:
    """In the form of x, to sum in."""
    return namespace(x).zeros(x.shape, dtype=accumulator_dtype(x), device=x.device)


def default_scale(scale: float | None, head_size: int) -> float:
    """1/√D unless the caller says otherwise ("Attention is all you need", section 3.2.1)."""
    return 1 / math.sqrt(head_size) if scale is None else scale


def check_inputs(q: Array, k: Array, v: Array, *, causal: bool, scale: float | None) -> None:
    """Refuse what attention cannot mean, each with what would be right."""
    named = (("q", q), ("k", k), ("v", v))
    for name, x in named:
        if not is_array(x):
            raise TypeError(f"{name} is a {type(x).__name__}: an array [batch, heads, sequence, head size] is needed")
    xp = namespace(q, k, v)
    for name, x in named:
        if x.ndim != 4 or 0 in x.shape:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: [batch, heads, sequence, head size] is needed, none 0"
            )
        if not xp.isdtype(x.dtype, "real floating") or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype} and q {q.dtype}: q, k and v need one floating-point dtype")
    if tuple(k.shape) != tuple(v.shape):
        raise ValueError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}: they must be equal")
    B, H, S, D = q.shape
    if k.shape[0] != B or k.shape[3] != D:
        raise ValueError(f"k has batch {k.shape[0]} and head size {k.shape[3]}, q has {B} and {D}: they must be equal")
    if H % k.shape[1]:
        raise ValueError(f"{H} query heads do not divide among {k.shape[1]} key/value heads: use a multiple of them")
    if causal and k.shape[2] != S:
        raise ValueError(f"q has sequence length {S} and k {k.shape[2]}: they must be equal")
    if scale is not None:
        finite("scale", scale)


def check_gradient(dout: Array, q: Array, out: Array, lse: Array) -> None:
    """Refuse what cannot be the gradient of an attention's output, or that output."""
    wide = accumulator_dtype(q)
    expected = (("dout", dout, q.shape, q.dtype), ("out", out, q.shape, q.dtype), ("lse", lse, q.shape[:-1], wide))
    for name, x, shape, dtype in expected:
        if tuple(x.shape) != tuple(shape) or x.dtype != dtype:
            found = f"{name} has shape {tuple(x.shape)} and is {x.dtype}"
            raise ValueError(f"{found}: with this q it must have {tuple(shape)} and {dtype}")


def _widen(x: Array) -> Array:
    return namespace(x).astype(x, accumulator_dtype(x), copy=False)


def _by_kv_head(q: Array, *others: Array) -> list[Array]:
    """Heads in two axes, those of K/V and the query heads of each: `[B, H, ...]` -> `[B, G, H/G or 1, ...]`."""
    xp, G = namespace(q), others[-1].shape[1]
    return [xp.reshape(x, (x.shape[0], G, x.shape[1] // G, *x.shape[2:])) for x in (q, *others)]


def _append(x: Array, column: Array) -> Array:
    """One more column: `[..., rows, D]`, `[..., rows]` -> `[..., rows, D+1]`."""
    return namespace(x, column).concat([x, column[..., None]], axis=-1)


def _at_once(q: Array, stretches: list[tuple[slice, list[Tile]]], most: int) -> Iterator[tuple[slice, ...]]:
    """Which sequences, K/V heads and query heads of each: as many at a time as have `most` scores in their tiles, and
    of sequences as many as stay in the cache, with a quarter of a tile's numbers in their keys.

    Where tiles are small the calls would cost more than what they compute; on a device they do so for all sizes.
    """
    B, G, heads, _, D = q.shape
    tiles = [(rows.stop - rows.start, keys.stop - keys.start) for rows, tiles in stretches for keys, _ in tiles]
    fit = kept = B * G * heads
    if on_host(q) and tiles:
        fit = max(most // max(rows * keys for rows, keys in tiles), 1)
        kept = TILE * TILE // 4 // (D * max(keys for _, keys in tiles))
    each = (B, max(min(fit, kept) // (G * heads), 1)), (G, max(fit // heads, 1)), (heads, fit)
    return product(*([slice(at, min(at + few, size)) for at in range(0, size, few)] for size, few in each))


def _row_sums(x: Array) -> Array:
    """As a product, which is quicker than a sum: `[..., rows, columns]` -> `[..., rows, 1]`."""
    return x @ namespace(x).ones((x.shape[-1], 1), dtype=x.dtype, device=x.device)


def _over_heads(x: Array) -> Array:
    """What query heads give to the K/V head that they share: `[..., G', H', T, D]` -> `[..., G', 1, T, D]`."""
    return x if x.shape[-3] == 1 else namespace(x).sum(x, axis=-3, keepdims=True)


def _largest_score(q: Array, k: Array, scale: float) -> float:
    """No |scale · q · k| is larger (Cauchy-Schwarz)."""
    xp = namespace(q, k)
    return abs(scale) * math.sqrt(float(xp.max(row_dot(q, q)))) * math.sqrt(float(xp.max(row_dot(k, k))))


def _tile_buffer(like: Array) -> Array:
    return namespace(like).empty(TILE * TILE if on_host(like) else 0, dtype=like.dtype, device=like.device)


def _product(a: Array, b: Array, buffer: Array) -> Array:
    """a bᵀ, on the host written into `buffer`: a new array for each tile would cost more than its exp."""
    xp = namespace(a, b)
    b = xp.matrix_transpose(b)
    if is_numpy_array(a):
        shape = *a.shape[:-1], b.shape[-1]
        return xp.matmul(a, b, out=xp.reshape(buffer[: math.prod(shape)], shape))
    return a @ b


def _hide(scores: Array, hidden: Array | None) -> None:
    """Add to the scores of a tile what hides its last keys from some of the queries."""
    if hidden is not None:
        scores[..., scores.shape[-1] - hidden.shape[-1] :] += hidden


def _stretches(
    num_queries: int, num_keys: int, diagonal: int | None, window: int | None, like: Array
) -> Iterator[tuple[slice, list[Tile]]]:
    """Stretches of queries that see any keys, each with the tiles of keys that it sees.

    The first query of a stretch sees the keys up to `newest`, from `oldest` on, and each next query those one further.
    So the keys inner..newest are seen by all of the stretch; those before and behind form triangles with it, the same
    in every stretch, which both lie in `band`. In a window shorter than the stretch the two are one. The keys before
    are a tile of their own, those behind end the last tiles.
    """
    xp = namespace(like)
    tile, most = TILE, max(min(num_queries, window or num_queries) // 4, 64)  # else a short block is all triangle
    if not on_host(like):
        tile, most = max(TILE, math.isqrt(DEVICE_SCORES // math.prod(like.shape[:-2]))), num_queries
    corner = min(TRIANGLE * tile // TILE, most, num_queries)
    height = tile if diagonal is None else corner
    shift = num_keys if diagonal is None else diagonal
    width = 1 if window is None else min(window, corner)
    never = xp.full((corner, corner + width - 1), -xp.inf, dtype=like.dtype, device=like.device)
    band = xp.triu(never, k=width)  # row i sees the columns 0..i + width − 1
    if window is None:
        window = num_queries + abs(shift)  # all of them
    else:
        band += xp.tril(never, k=-1)  # ... i..i + width − 1
    for start in range(0, num_queries, height):
        stop = min(start + height, num_queries)
        newest, oldest = start + shift, start + shift - window + 1
        edges = (oldest, stop + shift - window, newest, stop + shift)
        first, inner, full, end = (min(max(edge, 0), num_keys) for edge in edges)
        column = newest - width + 1  # the key of the band's column 0; of the triangle before it is `oldest`
        if inner > full:
            inner, full, column = first, first, oldest
        tiles: list[Tile] = []
        if first < inner:
            tiles.append((slice(first, inner), band[: stop - start, first - oldest : inner - oldest]))
        for left in range(inner, end, tile):
            right, edge = min(left + tile, end), max(left, full)
            hidden = band[: stop - start, edge - column : right - column] if edge < right else None
            tiles.append((slice(left, right), hidden))
        if tiles:
            yield slice(start, stop), tiles
