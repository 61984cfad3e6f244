"""Attention one strip of keys at a time (FlashAttention): the score matrix never exists as a whole.

A *tile* is some queries against some keys, which are attended strip by strip. It returns its own `(out, lse)`, and
`merge` joins two such pairs over different keys exactly, because lse remembers how much each one was divided by. Ring
attention needs no more than that.

This page is the algorithm; `parlab.nn.tiles` says which strips there are, and what makes them quick.

Shapes: `B` batch, `H` query heads, `G` key/value heads (each serves H/G query heads), `S` queries, `T` keys, `D` head
size. Inside a tile H is two axes, `[B, G, H/G, S, D]` beside `[B, G, 1, T, D]`; a prime (`B'`) says: a few of them.

Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022, "FlashAttention", algorithms 1, 2 and 4.
"""

from __future__ import annotations

import math

from parlab.arrays import Array, exp_, namespace, on_host
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import accumulator_dtype, row_dot, wide_zeros, widened
from parlab.nn.tiles import (
    LOWEST_EXPONENT,
    Strip,
    few_at_a_time,
    hide,
    largest_score,
    product_of,
    row_sums,
    scores_are_small,
    scores_buffer,
    stretches_of,
)

CAUSAL = 0  # `diagonal` of a tile whose query i sees keys 0..i
STRICT = -1  # ... keys 0..i−1: query 0 sees none


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
    queries of its stretch (of 256, more on a device) as well: −inf is added to a hidden score, and NaN − inf is NaN.

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
    check_inputs(q, k, v, scale=scale, same_length=causal)
    xp = namespace(q)
    out, lse = attend_tile(q, k, v, diagonal=CAUSAL if causal else None, scale=scale)
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

    The weights are made again, strip by strip, from q, k and lse: nothing of size S × S was kept.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale, same_length=causal)
    xp = namespace(q)
    diagonal = CAUSAL if causal else None
    gradients = attend_tile_backward(dout, q, k, v, lse, row_dot(dout, out), diagonal=diagonal, scale=scale)
    return tuple(xp.astype(d, x.dtype, copy=False) for d, x in zip(gradients, (q, k, v), strict=True))


def attend_tile(
    q: Array,
    k: Array,
    v: Array,
    *,
    diagonal: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    into: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """One tile's `(out [B, H, S, D], lse [B, H, S])`, both in float32 or wider; merged `into` these, if given.

    For each stretch of queries the strips of keys that it sees are attended one after the other (algorithm 1).

    `diagonal` None: every query sees every key; else query i sees keys 0..i + diagonal (`CAUSAL`, `STRICT`, or any
    offset between the first query's and the first key's position), with a `window` only the last `window` of them. A
    query without keys gets out 0 and lse −inf.
    """
    xp, scale = namespace(q, k, v), default_scale(scale, q.shape[3])
    softmax = _unshifted_softmax if scores_are_small(q, k, scale) else _online_softmax
    sums = into or (wide_zeros(q), xp.full(q.shape[:-1], -xp.inf, dtype=accumulator_dtype(q), device=q.device))
    # Sums over no keys, as before the first tile, have weight 0: such a merge gives the tile, which is written instead
    merges = into is not None and _have_keys(into[1])
    q, out, lse, k, v = _by_kv_head(q, *sums, k, v)  # twice [B, G, H/G, S, D], [B, G, H/G, S], twice [B, G, 1, T, D]
    stretches, buffer = list(stretches_of(q, k, diagonal, window, out)), scores_buffer(out)
    for b, g, h in few_at_a_time(q, stretches):
        queries = widened(q[b, g, h, ...]) * scale  # [B', G', H', S, D]
        keys, values = widened(k[b, g, ...]), widened(v[b, g, ...])  # [B', G', 1, T, D]
        for rows, strips in stretches:
            part = softmax(queries[..., rows, :], keys, values, strips, buffer)
            if merges:
                part = merge(out[b, g, h, rows, :], lse[b, g, h, rows], *part)
            out[b, g, h, rows, :], lse[b, g, h, rows] = part
    return sums


def _have_keys(lse: Array) -> bool:
    """Whether some query has seen a key. On a device it may have: the answer would have to be waited for."""
    xp = namespace(lse)
    return not on_host(lse) or bool(xp.any(lse != -xp.inf))


def _online_softmax(q: Array, k: Array, v: Array, strips: list[Strip], buffer: Array) -> tuple[Array, Array]:
    """One stretch of queries against its strips of keys: `(out, lse)`.

    Invariant, after each strip, over all keys seen so far: `largest` is the largest score, `total` is
    Σ exp(score − largest), and `out` is Σ exp(score − largest) · v. Both sums shrink when a larger score turns up.
    """
    xp = namespace(q, k, v)
    lowest = xp.finfo(q.dtype).min  # not −inf: a row that sees no key would have −inf − −inf
    largest = xp.full((*q.shape[:-1], 1), lowest, dtype=q.dtype, device=q.device)  # [B', G', H', rows, 1]
    total, out = xp.zeros_like(largest), None
    for columns, hidden in strips:
        scores = product_of(q, k[..., columns, :], buffer)  # [B', G', H', rows, columns]
        hide(scores, hidden)
        before, largest = largest, xp.maximum(largest, xp.max(scores, axis=-1, keepdims=True))
        shrink = xp.exp(before - largest)
        scores = xp.maximum(scores - largest, LOWEST_EXPONENT)
        hide(scores, hidden)  # again: the line above let it through
        weights = exp_(scores)
        total = total * shrink + row_sums(weights)
        part = weights @ v[..., columns, :]  # [B', G', H', rows, D]
        out = part if out is None else out * shrink + part
    seen = largest != lowest  # any key; NaN ≠ x: a row that met a NaN has seen it
    total = xp.where(seen, total, xp.inf)  # out / inf is 0
    return out / total, xp.where(seen, largest + xp.log(total), -xp.inf)[..., 0]


def _unshifted_softmax(q: Array, k: Array, v: Array, strips: list[Strip], buffer: Array) -> tuple[Array, Array]:
    """As the online softmax, where all scores are small: exp can neither overflow nor vanish, without a maximum too."""
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


def attend_tile_backward(
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
    """One tile's share of `(dq, dk, dv)`, in float32 or wider; or the `totals` of all tiles, to which it is added.

    `lse` and `delta` = rowsum(dO ∘ O), both `[B, H, S]`, belong to the whole attention, over the keys of all tiles;
    then the tiles' shares simply add up (algorithm 4). With P = exp(scores − lse):

        dV = Pᵀ dO,   dS = P ∘ (dO Vᵀ − delta),   dQ = dS K,   dK = dSᵀ Q

    A product makes both differences: −lse and −delta are one more column, against a column of ones.
    """
    xp, scale = namespace(dout, q, k, v), default_scale(scale, q.shape[3])
    none_vanishes = on_host(q) and largest_score(q, k, scale) + float(xp.max(lse)) < -LOWEST_EXPONENT
    lse = xp.where(lse == -xp.inf, xp.inf, lse)  # a query without keys: every weight is exp(−inf)
    totals = totals or (wide_zeros(q), wide_zeros(k), wide_zeros(v))
    q, dout, lse, delta, k, v = _by_kv_head(q, dout, lse, delta, k, v)
    dq, dk, dv = _by_kv_head(*totals)  # views: to part an axis moves nothing
    for_scores, for_dscores = scores_buffer(dq), scores_buffer(dq)
    stretches = list(stretches_of(q, k, diagonal, window, dq))
    for b, g, h in few_at_a_time(q, stretches, share=4):  # dK/dV of all of them must stay in the cache too
        queries, douts = widened(q[b, g, h, ...]) * scale, widened(dout[b, g, h, ...])  # [B', G', H', S, D]
        keys, values = widened(k[b, g, ...]), widened(v[b, g, ...])  # [B', G', 1, T, D]
        queries_lse, douts_delta = _append(queries, -lse[b, g, h, :]), _append(douts, -delta[b, g, h, :])  # [..., D+1]
        ones = xp.ones_like(keys[..., 0])
        keys_one, values_one = _append(keys, ones), _append(values, ones)  # [B', G', 1, T, D+1]
        keys = keys * scale
        for rows, strips in stretches:
            for columns, hidden in strips:
                scores = product_of(queries_lse[..., rows, :], keys_one[..., columns, :], for_scores)
                if not none_vanishes:
                    scores = xp.maximum(scores, LOWEST_EXPONENT)
                hide(scores, hidden)
                weights = exp_(scores)  # [B', G', H', rows, columns]
                dv[b, g, :, columns, :] += _over_heads(xp.matrix_transpose(weights) @ douts[..., rows, :])
                dscores = product_of(douts_delta[..., rows, :], values_one[..., columns, :], for_dscores)
                dscores *= weights
                dk[b, g, :, columns, :] += _over_heads(xp.matrix_transpose(dscores) @ queries[..., rows, :])
                dq[b, g, h, rows, :] += dscores @ keys[..., columns, :]
    return totals


def merge(out: Array, lse: Array, tile_out: Array, tile_lse: Array) -> tuple[Array, Array]:
    """The `(out, lse)` over the keys of both pairs: a mean of the two outputs, weighted by exp(lse).

    Either side may have rows without keys (lse −inf, weight 0); a row without keys on both sides stays 0 and −inf.

    >>> import numpy as np
    >>> merge(np.array([[1.0]]), np.array([0.0]), np.array([[4.0]]), np.array([np.log(2)]))[0]  # (1·1 + 2·4) / 3
    array([[3.]])
    """
    xp = namespace(out, lse, tile_out, tile_lse)
    merged = xp.logaddexp(lse, tile_lse)
    finite = xp.where(merged == -xp.inf, 0.0, merged)  # −inf − −inf would be NaN
    out = out * xp.exp(lse - finite)[..., None]
    out += tile_out * xp.exp(tile_lse - finite)[..., None]
    return out, merged


def _by_kv_head(q: Array, *others: Array) -> list[Array]:
    """Heads in two axes, those of K/V and the query heads of each: `[B, H, ...]` -> `[B, G, H/G or 1, ...]`."""
    xp, G = namespace(q), others[-1].shape[1]
    return [xp.reshape(x, (x.shape[0], G, x.shape[1] // G, *x.shape[2:])) for x in (q, *others)]


def _append(x: Array, column: Array) -> Array:
    """One more column: `[..., rows, D]`, `[..., rows]` -> `[..., rows, D+1]`."""
    return namespace(x, column).concat([x, column[..., None]], axis=-1)


def _over_heads(x: Array) -> Array:
    """The sum over the query heads that share a K/V head: `[..., G', H', T, D]` -> `[..., G', 1, T, D]`."""
    return x if x.shape[-3] == 1 else namespace(x).sum(x, axis=-3, keepdims=True)


def default_scale(scale: float | None, head_size: int) -> float:
    """1/√D unless the caller says otherwise ("Attention is all you need", section 3.2.1)."""
    return 1 / math.sqrt(head_size) if scale is None else scale
