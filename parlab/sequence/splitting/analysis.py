"""Measures of an attention map: its span, its kinds of heads, and the cuts that the least attention crosses.

Sources: attention distance as in Dosovitskiy et al. 2021, "An image is worth 16x16 words", figure 7; shares beyond
chance as in Cohen 1960, "A coefficient of agreement for nominal scales". The cut's penalty on short chunks is a ratio
cut's, Hagen and Kahng 1992, "New spectral methods for ratio cut partitioning"; that chunks are contiguous makes the
optimum a matter of dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import whole
from parlab.arrays import Array, is_array, namespace, to_host
from parlab.sequence.arguments import list_like
from parlab.sequence.splitting.chunks import Chunk, deal, split_equal

LOCAL, GLOBAL = 1 / 3, 2 / 3  # of the span of a head that looks everywhere alike
TINY = 1e-300  # keeps a map of zeros from dividing by 0
BEYOND = 0.2  # share beyond distance that names a head
SHORT = 1.5  # with 1, to cut off the last token would often be the cheapest; with 2, all chunks are nearly equal
EVEN = 1e-6  # decides between cuts that cross as little as each other


@dataclass(frozen=True)
class HeadPattern:
    """The measures of head number `head`.

    Attributes:
        kind: syntactic, where the share below is at least `BEYOND`. Else the span decides, as a part of the span of
            uniform attention to the same tokens: up to `LOCAL` local, from `GLOBAL` on global, else between.
        span: mean distance of query and key in tokens, by weight: `Σ w |i − j| / Σ w`.
        strength: the largest weight of a query, in the mean over queries: 1 where each looks at one token only.
        crossing: `[S+1]`, the weight that crosses the boundary before each token, either way; 0 at both ends.
        syntactic: (inside − expected) / (1 − expected), where inside is the share of the weight in the query's own
            sentence, and expected what it would be if weight depended on the distance of query and key alone, as it
            does in this head on average. 0: distance explains all; 1: no weight leaves a sentence.
    """

    head: int
    kind: str
    span: float
    strength: float
    crossing: Array
    syntactic: float | None = None


@dataclass(frozen=True)
class AttentionAnalysis:
    """The measures of a map: in the mean over heads, and of each head. A query gives 1 in all."""

    crossing: Array  # [S+1], as for each head
    importance: Array  # [S], the attention that each token receives; 1 is a fair share
    heads: list[HeadPattern]


def analyse_attention(weights: Array, sentences: Sequence[int] | None = None) -> AttentionAnalysis:
    """Measure an attention map.

    Args:
        weights: `[H, S, S]` (head, query, key), the result of a softmax, causal or not.
        sentences: the ends of the sentences, rising, in 1..S; the last, S, may be left out. Needed to find syntactic
            heads.

    Raises:
        ValueError: weights that are no map, or ends that do not rise or lie outside.

    >>> import numpy as np
    >>> found = analyse_attention(np.eye(4)[None, :, :])  # each token looks at itself
    >>> found.heads[0].kind, found.heads[0].span, found.heads[0].strength, float(found.crossing[2])
    ('local', 0.0, 1.0, 0.0)
    """
    if sentences is not None:
        list_like("sentences", sentences)
    check_weights(weights)
    xp = namespace(weights)
    H, S, _ = weights.shape
    weights = xp.astype(weights, xp.float64)
    looks = None if sentences is None else _looks_inside(_sentence_of_each(sentences, S), weights)
    position = xp.arange(S, device=weights.device)
    distance = xp.astype(xp.abs(position[:, None] - position[None, :]), xp.float64)  # [S, S]
    uniform_span = _uniform_span(weights, distance)
    crossing = crossings(weights)[:, 0, :]  # [H, S+1], as of a chunk from the start on
    heads = []
    for head in range(H):
        w = weights[head, :, :]
        span = to_host(xp.sum(w * distance)) / max(to_host(xp.sum(w)), TINY)
        strength = to_host(xp.mean(xp.max(w, axis=-1)))
        syntactic = None if looks is None else _beyond_distance(w, looks)
        own = xp.asarray(crossing[head, :], copy=True)  # a view would keep all crossings alive, H·(S+1)² numbers
        heads.append(HeadPattern(head, _kind(span, uniform_span, syntactic), span, strength, own, syntactic))
    importance = xp.mean(xp.sum(weights, axis=1), axis=0)
    return AttentionAnalysis(xp.mean(crossing, axis=0), importance, heads)


def split_by_attention(weights: Array, ranks: int, limit: int | None = None, overlap: int = 0) -> list[Chunk]:
    """Chunks, one a rank or as many as the limit asks, cut where the least attention of all heads crosses.

    Of all ways to cut n chunks c this is the one with the least

        `Σ_c ½ crossing(c) · max(1, ⌊S/n⌋ / |c|)^SHORT  +  EVEN · W · Σ_c (|c| / S)²`

    where `|c|` counts effective tokens, crossing(c) is the weight between tokens of c and of other chunks, either way,
    and W is the sum of all weights. Half of all crossings is the weight that is cut. A chunk shorter than the mean pays
    more for its crossings, equal chunks pay nothing more. So, where the limit allows equal chunks, the best cuts never
    cut more weight than those; and a map of n blocks is cut between them, whatever their lengths. The second term
    decides between equals: the more even cut wins. With more ranks than tokens the last ranks get no chunk.

    `weights` as `analyse_attention`; ranks, overlap and limit as `split_equal`, None for no limit; the same errors.

    >>> import numpy as np
    >>> blocks = np.kron(np.eye(2), np.full((3, 3), 1 / 3))[None, 1:, 1:]  # [1, 5, 5]: tokens 0, 1 and tokens 2, 3, 4
    >>> [(chunk.start, chunk.stop) for chunk in split_by_attention(blocks, ranks=2)]
    [(0, 2), (2, 5)]
    """
    whole("ranks", ranks, least=1)
    if limit is not None:
        whole("limit", limit, least=1)
    whole("overlap", overlap)
    check_weights(weights)
    S = weights.shape[-1]
    limit = max(S, overlap + 1) if limit is None else limit
    n = max(min(ranks, S), len(split_equal(S, limit, overlap, ranks)))
    xp = namespace(weights)
    position = xp.arange(S + 1, device=weights.device)
    start, stop = position[:, None], position[None, :]
    length = xp.astype(xp.clip(stop - start, 1), xp.float64)  # [S+1, S+1]
    crossing, W = crossings(xp.sum(weights, axis=0)), xp.sum(weights, dtype=xp.float64)
    cost = crossing / 2 * xp.clip(S // n / length, 1.0) ** SHORT + EVEN * W * (length / S) ** 2
    with_overlap = stop - xp.clip(start - overlap, 0)
    cost = xp.where((start < stop) & (with_overlap <= limit), cost, xp.inf)
    best, choices = cost[0, :], []  # of the first chunks up to each position
    for _ in range(n - 1):
        total = best[:, None] + cost
        choices.append(xp.argmin(total, axis=0))
        best = xp.min(total, axis=0)
    stops = [S]
    for choice in reversed(choices):
        stops.append(to_host(choice[stops[-1]]))
    return deal(stops[::-1], ranks, overlap)


def weight_cut(weights: Array, chunks: Sequence[Chunk]) -> float:
    """The weight between tokens of different chunks, in the mean over heads. A query gives 1 in all.

    >>> import numpy as np
    >>> weight_cut(np.full((1, 4, 4), 1 / 4), split_equal(4, 2))
    2.0
    """
    list_like("chunks", chunks)
    check_weights(weights)
    for chunk in chunks:
        if chunk.stop > weights.shape[-1]:
            raise ValueError(f"chunks[{chunk.index}] ends at {chunk.stop}: the map has {weights.shape[-1]} tokens")
    crossing = crossings(namespace(weights).mean(weights, axis=0))
    return sum(to_host(crossing[chunk.start + chunk.overlap_before, chunk.stop]) for chunk in chunks) / 2


class _Looks(NamedTuple):
    """The looks between two tokens of one sentence."""

    inside: Array  # [S, S]: 1 for each such pair of query and key, else 0
    of_offset: Array  # [2S−1]: their share of all pairs of each offset


def _looks_inside(sentence_of_each: list[int], like: Array) -> _Looks:
    """The looks between two tokens of one sentence, on the device of `like` and in its dtype."""
    xp = namespace(like)
    sentence = xp.asarray(sentence_of_each, device=like.device)
    inside = xp.astype(sentence[:, None] == sentence[None, :], like.dtype)
    return _Looks(inside, _by_offset(inside) / _by_offset(xp.ones_like(inside)))


def _uniform_span(weights: Array, distance: Array) -> float:
    """The span of uniform attention to what a query can see: no later token, if no weight of the map is on one."""
    xp = namespace(weights)
    pairs = xp.ones_like(distance)
    seen = pairs if to_host(xp.any(xp.triu(weights, k=1) > 0)) else xp.tril(pairs)
    return to_host(xp.mean(xp.sum(seen * distance, axis=-1) / xp.sum(seen, axis=-1)))


def _kind(span: float, uniform_span: float, syntactic: float | None) -> str:
    """The kind of a head, as `HeadPattern` says."""
    if syntactic is not None and syntactic >= BEYOND:
        return "syntactic"
    if span <= LOCAL * uniform_span:
        return "local"
    return "global" if span >= GLOBAL * uniform_span else "between"


def _beyond_distance(w: Array, looks: _Looks) -> float:
    """(found − expected) / (1 − expected): the share of the weight inside, beyond the one that offsets alone give."""
    xp = namespace(w)
    total = max(to_host(xp.sum(w)), TINY)
    found = to_host(xp.sum(w * looks.inside)) / total
    expected = to_host(xp.sum(_by_offset(w) * looks.of_offset)) / total
    return (found - expected) / (1 - expected) if expected < 1 - 1e-12 else 0.0


def _by_offset(x: Array) -> Array:
    """The sum over each diagonal: `[S, S]` -> `[2S−1]`."""
    xp = namespace(x)
    S = x.shape[0]
    padded = xp.concat([xp.flip(x, axis=1), xp.zeros_like(x)], axis=1)  # [S, 2S]: read one shorter, row i moves by i
    return xp.sum(xp.reshape(xp.reshape(padded, (-1,))[: S * (2 * S - 1)], (S, 2 * S - 1)), axis=0)


def _sentence_of_each(ends: Sequence[int], S: int) -> list[int]:
    ends = [whole(f"sentences[{i}]", end) for i, end in enumerate(ends)]
    if any(not 1 <= end <= S for end in ends) or any(a >= b for a, b in pairwise(ends)):
        raise ValueError(f"sentences={ends!r:.60}: where each sentence ends is needed, growing, within 1 to {S}")
    return [sum(end <= token for end in ends) for token in range(S)]


def crossings(weights: Array) -> Array:
    """The weight between tokens in start..stop − 1 and others, either way: `[..., S, S]` -> `[..., S+1, S+1]`."""
    xp = namespace(weights)
    sums = xp.astype(weights, xp.float64)
    for axis in (-2, -1):  # over the first i queries and j keys
        sums = xp.cumulative_sum(sums, axis=axis, include_initial=True)
    touching = sums[..., :, -1] + sums[..., -1, :]  # [..., S+1]: of the queries before a position, and of the keys
    ends = xp.linalg.diagonal(sums)
    inside = ends[..., None, :] - sums - xp.matrix_transpose(sums) + ends[..., :, None]  # [..., S+1, S+1]
    return xp.clip(touching[..., None, :] - touching[..., :, None] - 2 * inside, 0.0)  # rounding can leave −1e−16


def check_weights(weights: Array) -> None:
    """ValueError: `weights` are no attention map."""
    if not is_array(weights) or weights.ndim != 3 or weights.shape[1] != weights.shape[2] or 0 in weights.shape:
        found = f"has shape {tuple(weights.shape)}" if is_array(weights) else f"is {weights!r:.60}"
        raise ValueError(f"weights {found}: an array [H, S, S] is needed, head, query, key")
    xp = namespace(weights)
    if not xp.isdtype(weights.dtype, "real floating") or not to_host(xp.all(xp.isfinite(weights) & (weights >= 0))):
        raise ValueError(f"weights of {weights.dtype}: finite numbers, none of them negative, are needed")
