"""The cuts of a sequence that the least attention crosses.

Sources: the penalty on short chunks is a ratio cut's, Hagen and Kahng 1992, "New spectral methods for ratio cut
partitioning"; that chunks are contiguous makes the optimum a matter of dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arguments import whole
from parlab.arrays import Array, is_array, namespace, to_host
from parlab.sequence.arguments import list_like
from parlab.sequence.splitting.chunks import Chunk, deal, split_equal

SHORT = 1.5  # with 1, to cut off the last token would often be the cheapest; with 2, all chunks are nearly equal
EVEN = 1e-6  # decides between cuts that cross as little as each other


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
    length = xp.astype(xp.clip(stop - start, 1), xp.float64)  # [S+1, S+1], by start and stop
    crossing, W = crossings(xp.sum(weights, axis=0)), xp.sum(weights, dtype=xp.float64)
    cost = crossing / 2 * xp.clip(S // n / length, 1.0) ** SHORT + EVEN * W * (length / S) ** 2
    held = stop - xp.clip(start - overlap, 0)  # with the overlap
    cost = xp.where((start < stop) & (held <= limit), cost, xp.inf)
    return deal(cheapest_stops(cost, n), ranks, overlap)


def cheapest_stops(cost: Array, n: int) -> list[int]:
    """The ends of n chunks from 0 to S whose costs sum to the least; `cost[start, stop]` is that of one, `[S+1, S+1]`.

    By dynamic programming. Invariant: after k − 1 passes, `best[stop]` is the least cost of k chunks from 0 to `stop`.

    >>> import numpy as np
    >>> start, stop = np.ogrid[:6, :6]
    >>> cost = np.where(start < stop, (stop - start - 2.0) ** 2, np.inf)  # least for two tokens
    >>> cheapest_stops(cost, 2), cheapest_stops(cost, 3)
    ([2, 5], [1, 3, 5])
    """
    xp = namespace(cost)
    best, last_starts = cost[0, :], []
    for _ in range(n - 1):
        total = best[:, None] + cost  # by the last chunk's start and stop
        last_starts.append(xp.argmin(total, axis=0))  # by its stop
        best = xp.min(total, axis=0)
    stops = [cost.shape[0] - 1]
    for starts in reversed(last_starts):
        stops.append(to_host(starts[stops[-1]]))
    return stops[::-1]


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


def crossings(weights: Array) -> Array:
    """The weight between tokens in start..stop − 1 and others, either way: `[..., S, S]` -> `[..., S+1, S+1]`.

    >>> import numpy as np
    >>> w = np.array([[8, 0, 0], [1, 7, 0], [2, 3, 3]])
    >>> [float(crossings(w)[start, stop]) for start, stop in ((0, 1), (1, 2), (0, 2))]  # 1 + 2, 1 + 3, 2 + 3
    [3.0, 4.0, 5.0]
    """
    xp = namespace(weights)
    sums = xp.astype(weights, xp.float64)
    for axis in (-2, -1):  # sums[i, j]: over the first i queries and j keys
        sums = xp.cumulative_sum(sums, axis=axis, include_initial=True)
    touching = sums[..., :, -1] + sums[..., -1, :]  # [..., S+1]: of the queries before a position, and of the keys
    touching = touching[..., None, :] - touching[..., :, None]  # [..., S+1, S+1]: of those from start to stop
    ends = xp.linalg.diagonal(sums)
    inside = ends[..., None, :] - sums - xp.matrix_transpose(sums) + ends[..., :, None]  # both from start to stop
    return xp.clip(touching - 2 * inside, 0.0)  # a look inside touches twice; rounding can leave −1e−16


def check_weights(weights: Array) -> None:
    """ValueError: `weights` are no attention map."""
    if not is_array(weights) or weights.ndim != 3 or weights.shape[1] != weights.shape[2] or 0 in weights.shape:
        found = f"has shape {tuple(weights.shape)}" if is_array(weights) else f"is {weights!r:.60}"
        raise ValueError(f"weights {found}: an array [H, S, S] is needed, head, query, key")
    xp = namespace(weights)
    if not xp.isdtype(weights.dtype, "real floating") or not to_host(xp.all(xp.isfinite(weights) & (weights >= 0))):
        raise ValueError(f"weights of {weights.dtype}: finite numbers, none of them negative, are needed")
