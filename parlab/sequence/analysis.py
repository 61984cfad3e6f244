"""What an attention map says: which boundaries its weight crosses, which tokens it looks at, what each head is for.

Source: attention distance as in Dosovitskiy et al. 2021, "An image is worth 16x16 words", figure 7; shares beyond
chance as in Cohen 1960, "A coefficient of agreement for nominal scales".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from parlab.arguments import whole
from parlab.arrays import Array, namespace, to_host
from parlab.sequence.attention_split import check_weights, prefix_sums

LOCAL, GLOBAL = 1 / 3, 2 / 3  # of the span of a head that looks everywhere alike
TINY = 1e-300  # keeps a map of zeros from dividing by 0
BEYOND = 0.2  # share beyond distance that names a head


@dataclass(frozen=True)
class HeadPattern:
    """What head number `head` does.

    Attributes:
        kind: syntactic or semantic, where the larger of the two shares below is at least `BEYOND`; else by its span,
            against that of uniform attention to the same tokens: local up to `LOCAL` of it, global from `GLOBAL` on,
            and between.
        span: mean distance of query and key in tokens, by weight: `Σ w |i − j| / Σ w`.
        strength: the largest weight of a query, in the mean over queries: 1 where each looks at one token only.
        crossing: `[S+1]`, the weight that crosses each boundary, either way; 0 at both ends.
        syntactic: (inside − expected) / (1 − expected), where inside is the share of the weight in the query's own
            sentence, and expected what it would be if weight depended on the distance of query and key alone, as it
            does in this head on average. 0: distance explains all; 1: no weight leaves a sentence.
        semantic: the same share of the weight on the same or a related word; a token's look at itself cancels.
    """

    head: int
    kind: str
    span: float
    strength: float
    crossing: Array
    syntactic: float | None = None
    semantic: float | None = None


@dataclass(frozen=True)
class AttentionAnalysis:
    """What a map says, in the mean over heads and of each.

    Attributes:
        crossing: `[S+1]`, the weight that crosses the boundary before each token, either way; a query has 1 to give.
        importance: `[S]`, the attention that each token receives; 1 is a fair share.
    """

    crossing: Array
    importance: Array
    heads: list[HeadPattern]


def analyse_attention(
    weights: Array, sentences: Sequence[int] | None = None, *, words: Sequence[str] | None = None
) -> AttentionAnalysis:
    """Measure the map `weights [H, S, S]` (head, query, key; not negative).

    Args:
        weights: what softmax gave, causal or not.
        sentences: where sentences end, as positions in 1..S, growing; the last end, S, may be left out. Needed to call
            a head syntactic.
        words: the word of each token. Words are related when their `stem` is the same; one without a letter or digit is
            related to no other. Needed to call a head semantic.

    Raises:
        ValueError: weights that are no map, ends that do not grow or lie outside, or a wrong number of words.

    >>> import numpy as np
    >>> found = analyse_attention(np.eye(4)[None, :, :])  # each token looks at itself
    >>> found.heads[0].kind, found.heads[0].span, found.heads[0].strength, float(found.crossing[2])
    ('local', 0.0, 1.0, 0.0)
    """
    check_weights(weights)
    xp = namespace(weights)
    S, device = weights.shape[-1], weights.device
    weights = xp.astype(weights, xp.float64)
    numbers = {}  # one for each token: a look between two of the same is inside
    if sentences is not None:
        numbers["syntactic"] = _sentence_of_each(sentences, S)
    if words is not None:
        numbers["semantic"] = _word_of_each(words, S)
    inside = {}  # [S, S], and the share of the pairs of each offset that is inside, [2S−1]
    for name, of_each in numbers.items():
        number = xp.asarray(of_each, device=device)
        same = xp.astype(number[:, None] == number[None, :], xp.float64)
        inside[name] = same, _by_offset(same) / _by_offset(xp.ones_like(same))
    position = xp.arange(S, device=device)
    distance = xp.astype(xp.abs(position[:, None] - position[None, :]), xp.float64)  # [S, S]
    seen = xp.ones_like(distance) if to_host(xp.any(xp.triu(weights, k=1) > 0)) else xp.tril(xp.ones_like(distance))
    everywhere = to_host(xp.mean(xp.sum(seen * distance, axis=-1) / xp.sum(seen, axis=-1)))  # span of uniform attention
    sums = prefix_sums(weights)  # [H, S+1, S+1]
    touching = sums[:, :, -1] + sums[:, -1, :]  # of the weight with a query or a key before a boundary
    crossing = xp.clip(touching - 2 * xp.linalg.diagonal(sums), 0.0)  # [H, S+1]: what has not both
    heads = []
    for head in range(weights.shape[0]):
        w = weights[head, :, :]
        span = to_host(xp.sum(w * distance)) / max(to_host(xp.sum(w)), TINY)
        strength = to_host(xp.mean(xp.max(w, axis=-1)))
        shares = {name: _beyond_distance(w, *pairs) for name, pairs in inside.items()}
        kind = "local" if span <= LOCAL * everywhere else "global" if span >= GLOBAL * everywhere else "between"
        if shares and max(shares.values()) >= BEYOND:
            kind = max(shares, key=lambda name: shares[name])
        heads.append(HeadPattern(head, kind, span, strength, crossing[head, :], **shares))
    importance = xp.mean(xp.sum(weights, axis=1), axis=0)
    return AttentionAnalysis(xp.mean(crossing, axis=0), importance, heads)


def stem(word: str) -> str:
    """What is left of a word without case, spaces and the commonest English endings; "" for punctuation.

    >>> [stem(word) for word in ("Lamps ", "lamp", "looking", "looked", "king's", "is", ".")]
    ['lamp', 'lamp', 'look', 'look', 'king', 'is', '']
    """
    letters = re.sub(r"['’]s\b|\W", "", word.lower())
    return re.sub(r"(?<=\w\w\w)(?:ing|ed|es|s)$", "", letters)


def _beyond_distance(w: Array, inside: Array, share: Array) -> float:
    """(found − expected) / (1 − expected), where `share` of the weight at each offset is expected inside."""
    xp = namespace(w)
    total = max(to_host(xp.sum(w)), TINY)
    found, expected = to_host(xp.sum(w * inside)) / total, to_host(xp.sum(_by_offset(w) * share)) / total
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


def _word_of_each(words: Sequence[str], S: int) -> list[int]:
    if len(words) != S:
        raise ValueError(f"words has {len(words)} entries: the map has {S} tokens, give one a token")
    numbers: dict[str, int] = {}
    return [numbers.setdefault(stem(word) or f"token {token}", len(numbers)) for token, word in enumerate(words)]
