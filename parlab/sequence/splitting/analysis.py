"""Measures of an attention map: its span, and its kinds of heads.

Sources: attention distance as in Dosovitskiy et al. 2021, "An image is worth 16x16 words", figure 7; shares beyond
chance as in Cohen 1960, "A coefficient of agreement for nominal scales".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import whole
from parlab.arrays import Array, namespace, to_host
from parlab.sequence.arguments import list_like
from parlab.sequence.splitting.attention import check_weights, crossings

LOCAL, GLOBAL = 1 / 3, 2 / 3  # of the span of a head that looks everywhere alike
TINY = 1e-300  # keeps a map of zeros from dividing by 0
BEYOND = 0.2  # share beyond distance that names a head


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
    pairs = None if sentences is None else _pairs_inside(_sentence_of_each(sentences, S), weights)
    position = xp.arange(S, device=weights.device)
    distance = xp.astype(xp.abs(position[:, None] - position[None, :]), xp.float64)  # [S, S]
    uniform_span = _uniform_span(weights, distance)
    crossing = crossings(weights)[:, 0, :]  # [H, S+1], as of a chunk from the start on
    heads = []
    for head in range(H):
        w = weights[head, :, :]
        span = to_host(xp.sum(w * distance)) / max(to_host(xp.sum(w)), TINY)
        strength = to_host(xp.mean(xp.max(w, axis=-1)))
        syntactic = None if pairs is None else _beyond_distance(w, pairs)
        own = xp.asarray(crossing[head, :], copy=True)  # a view would keep all crossings alive, H·(S+1)² numbers
        heads.append(HeadPattern(head, _kind(span, uniform_span, syntactic), span, strength, own, syntactic))
    importance = xp.mean(xp.sum(weights, axis=1), axis=0)
    return AttentionAnalysis(xp.mean(crossing, axis=0), importance, heads)


class _PairsInside(NamedTuple):
    """The pairs of a query and a key in one sentence."""

    is_inside: Array  # [S, S]: 1 for each such pair, else 0
    share_at_offset: Array  # [2S−1]: how many of the pairs of each offset they are


def _pairs_inside(sentence_of_each: list[int], like: Array) -> _PairsInside:
    """On the device of `like` and in its dtype."""
    xp = namespace(like)
    sentence = xp.asarray(sentence_of_each, device=like.device)
    is_inside = xp.astype(sentence[:, None] == sentence[None, :], like.dtype)
    return _PairsInside(is_inside, _by_offset(is_inside) / _by_offset(xp.ones_like(is_inside)))


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


def _beyond_distance(w: Array, pairs: _PairsInside) -> float:
    """(found − expected) / (1 − expected): the share of the weight inside, beyond the one that offsets alone give."""
    xp = namespace(w)
    total = max(to_host(xp.sum(w)), TINY)
    found = to_host(xp.sum(w * pairs.is_inside)) / total
    expected = to_host(xp.sum(_by_offset(w) * pairs.share_at_offset)) / total
    return (found - expected) / (1 - expected) if expected < 1 - 1e-12 else 0.0


def _by_offset(x: Array) -> Array:
    """The sum over each diagonal, from the keys S − 1 after their query to those before: `[S, S]` -> `[2S−1]`.

    >>> import numpy as np
    >>> _by_offset(np.array([[1, 2],
    ...                      [3, 4]]))  # rows 2 1 0 0 and 4 3 0 0, which read by threes are 2 1 0 and 0 4 3
    array([2, 5, 3])
    """
    xp = namespace(x)
    S = x.shape[0]
    padded = xp.concat([xp.flip(x, axis=1), xp.zeros_like(x)], axis=1)  # [S, 2S]
    diagonals = xp.reshape(xp.reshape(padded, (-1,))[: S * (2 * S - 1)], (S, 2 * S - 1))  # row i moved right by i
    return xp.sum(diagonals, axis=0)


def _sentence_of_each(ends: Sequence[int], S: int) -> list[int]:
    ends = [whole(f"sentences[{i}]", end) for i, end in enumerate(ends)]
    if any(not 1 <= end <= S for end in ends) or any(a >= b for a, b in pairwise(ends)):
        raise ValueError(f"sentences={ends!r:.60}: where each sentence ends is needed, growing, within 1 to {S}")
    return [sum(end <= token for end in ends) for token in range(S)]
