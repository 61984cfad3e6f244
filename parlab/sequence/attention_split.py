"""Where to cut a sequence so that little attention crosses: dynamic programming over a measured map.

Source: the penalty on short chunks is a ratio cut's, Hagen and Kahng 1992, "New spectral methods for ratio cut
partitioning"; that chunks are contiguous makes the optimum a matter of dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arrays import Array, is_array, namespace, to_host
from parlab.sequence.chunks import Chunk, deal, split_equal

SHORT = 1.5  # with 1, to cut off the last token would often be the cheapest; with 2, all chunks are nearly equal
EVEN = 1e-6  # decides between cuts that cross as little as each other


def split_by_attention(weights: Array, ranks: int, limit: int | None = None, overlap: int = 0) -> list[Chunk]:
    """One chunk a rank, or as many as the limit takes, cut where the attention of all heads crosses least.

    Of all ways to cut n chunks c it takes the one with the least

        `Σ_c ½ crossing(c) · max(1, ⌊S/n⌋ / |c|)^SHORT  +  EVEN · W · Σ_c (|c| / S)²`

    where `|c|` counts effective tokens, crossing(c) is the weight between tokens of c and of other chunks, either way,
    and W is all weight. Half of all crossings is the weight that is cut; a chunk shorter than the mean pays more for
    its own. Equal chunks pay nothing more, so the best cuts never cut more weight than they do (where the limit allows
    them); and a map of n blocks is cut between them, whatever their lengths. The second term chooses the more even of
    equals. The overlap counts for the limit alone.

    Args:
        weights: `[H, S, S]`, head, query, key: what softmax gave. Not negative; causal or not.
        ranks: how many. With more ranks than tokens the last ones get no chunk.
        limit: the most tokens in a chunk, with its overlap; None: no limit.
        overlap: how many tokens of the one before a chunk holds too.

    Raises:
        ValueError: weights of another form or with a negative or infinite one, a number below its least, or an overlap
            that fills a chunk.

    >>> import numpy as np
    >>> blocks = np.kron(np.eye(2), np.full((3, 3), 1 / 3))[None, 1:, 1:]  # [1, 5, 5]: tokens 0, 1 and tokens 2, 3, 4
    >>> [(chunk.start, chunk.stop) for chunk in split_by_attention(blocks, ranks=2)]
    [(0, 2), (2, 5)]
    """
    check_weights(weights)
    S = weights.shape[-1]
    limit = max(S, overlap + 1) if limit is None else limit
    n = max(min(ranks, S), len(split_equal(S, limit, overlap, ranks)))
    xp = namespace(weights)
    cost = chunk_costs(weights, n)
    position = xp.arange(S + 1, device=weights.device)
    start, stop = position[:, None], position[None, :]
    held = stop - xp.clip(start - overlap, 0)
    cost = xp.where((start < stop) & (held <= limit), cost, xp.inf)  # [S+1, S+1]
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
    """The weight between tokens of different chunks, in the mean over heads; a query has 1 to give.

    >>> import numpy as np
    >>> weight_cut(np.full((1, 4, 4), 1 / 4), split_equal(4, 2))
    2.0
    """
    check_weights(weights)
    xp = namespace(weights)
    own = [slice(chunk.start + chunk.overlap_before, chunk.stop) for chunk in chunks]  # without what it shares
    inside = [xp.sum(weights[:, tokens, tokens], dtype=xp.float64) for tokens in own]
    return (to_host(xp.sum(weights, dtype=xp.float64)) - sum(map(to_host, inside))) / weights.shape[0]


def chunk_costs(weights: Array, n: int) -> Array:
    """What a chunk of each start and stop adds to the objective of n chunks: `[S+1, S+1]`, for start < stop."""
    xp = namespace(weights)
    S = weights.shape[-1]
    sums = prefix_sums(xp.sum(weights, axis=0, dtype=xp.float64))  # [S+1, S+1]
    touching = sums[:, -1] + sums[-1, :]  # [S+1]: of the queries before a position, and of the keys
    ends = xp.linalg.diagonal(sums)
    inside = ends[None, :] - sums - xp.matrix_transpose(sums) + ends[:, None]  # [S+1, S+1]
    crossing = xp.clip(touching[None, :] - touching[:, None] - 2 * inside, 0.0)  # rounding can leave −1e−16
    position = xp.arange(S + 1, dtype=xp.float64, device=weights.device)
    length = xp.clip(position[None, :] - position[:, None], 1.0)  # [S+1, S+1]
    return crossing / 2 * xp.clip(S // n / length, 1.0) ** SHORT + EVEN * ends[-1] * (length / S) ** 2


def prefix_sums(x: Array) -> Array:
    """The sums over the first i queries and j keys: `[..., S, S]` -> `[..., S+1, S+1]`."""
    xp = namespace(x)
    for axis in (-2, -1):
        x = xp.cumulative_sum(x, axis=axis, include_initial=True)
    return x


def check_weights(weights: Array) -> None:
    """Refuse what is no attention map."""
    if not is_array(weights) or weights.ndim != 3 or weights.shape[1] != weights.shape[2] or 0 in weights.shape:
        found = f"has shape {tuple(weights.shape)}" if is_array(weights) else f"is {weights!r:.60}"
        raise ValueError(f"weights {found}: an array [H, S, S] is needed, head, query, key")
    xp = namespace(weights)
    if not xp.isdtype(weights.dtype, "real floating") or not to_host(xp.all(xp.isfinite(weights) & (weights >= 0))):
        raise ValueError(f"weights of {weights.dtype}: finite numbers, none of them negative, are needed")
