"""Chunks of a causal sequence that are equal work for every rank.

A causal query sees all tokens before it, so later tokens cost more. In a packed sequence it sees no token before its
document's start, so the work of a document grows with the square of its length. `documents` are the starts of the
packed documents, rising from 0, and the end; else a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from parlab.arguments import amount, whole
from parlab.arrays import Array, is_array, to_numpy
from parlab.sequence.arguments import list_like
from parlab.sequence.layouts import checked_sequence
from parlab.sequence.splitting.chunks import Chunk, deal, even_stops


def causal_work(S: int) -> list[int]:
    """The number of keys that each of S tokens sees: 1, 2, ..., S."""
    whole("S", S, least=1)
    return packed_work([0, S])


def packed_work(documents: Sequence[int]) -> list[int]:
    """The number of keys that each token sees, causally, in its document.

    >>> packed_work([0, 3, 5])
    [1, 2, 3, 1, 2]
    """
    list_like("documents", documents)
    return [token - start + 1 for start, stop in _documents(documents) for token in range(start, stop)]


def split_by_work(work: Sequence[float] | Array, ranks: int) -> list[Chunk]:
    """One chunk a rank, so that the largest work of a chunk is as small as contiguous chunks can make it.

    `work` has one number a token, in any unit: `causal_work(S)`, `packed_work(documents)`, or seconds. With more
    ranks than tokens the last ranks get no chunk.

    Raises:
        ValueError: there is no token, or a work that is negative or infinite.

    >>> [(chunk.start, chunk.stop) for chunk in split_by_work(causal_work(16), ranks=4)]
    [(0, 8), (8, 11), (11, 14), (14, 16)]
    """
    list_like("work", work)
    whole("ranks", ranks, least=1)
    work = _checked_work(work)
    return deal(even_stops(work, min(ranks, len(work))), ranks)


def imbalance(chunks: Sequence[Chunk], work: Sequence[float] | Array, ranks: int) -> float:
    """The work of the slowest rank over the mean: 1 if all are equal, `ranks` if one rank has all of it. Each token
    counts on its own chunk's rank, and not where it is an overlap.

    Raises:
        ValueError: a chunk has a rank or a token that is not there.

    >>> round(imbalance(split_by_work(causal_work(4096), ranks=8), causal_work(4096), 8), 2)
    1.0
    """
    list_like("chunks", chunks)
    list_like("work", work)
    whole("ranks", ranks, least=1)
    before = list(accumulate(_checked_work(work), initial=0))
    loads: list[float] = [0] * ranks
    for chunk in chunks:
        if chunk.rank >= ranks or chunk.stop >= len(before):
            raise ValueError(f"{chunk}: there are ranks={ranks} and work for {len(before) - 1} tokens")
        loads[chunk.rank] += before[chunk.stop] - before[chunk.start + chunk.overlap_before]
    return max(loads) * ranks / sum(loads) if any(loads) else 1.0


def _checked_work(work: Sequence[float] | Array) -> list[float]:
    work = to_numpy(work).tolist() if is_array(work) else list(work)
    if not work:
        raise ValueError("work is empty: there must be at least 1 token")
    for token, value in enumerate(work):
        amount(f"work[{token}]", value)
    return work


def _documents(documents: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(checked_sequence(documents[-1] if len(documents) else 0, size=1, documents=documents)))
