"""Chunks of a causal sequence that are equal work for every rank.

A causal query sees all tokens before it, so later tokens cost more. In a packed sequence it sees no token before its
document's start, so the work of a document grows with the square of its length. `documents` are the starts of the
packed documents, rising from 0, and the end; else a ValueError.

Sources: head and tail: Llama 3 (2024), section 3.3.2; longest first: Graham 1969, "Bounds on multiprocessing timing
anomalies", which keeps the slowest rank below 4/3 of the best possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from parlab.arguments import amount, whole
from parlab.arrays import Array, is_array, to_numpy
from parlab.sequence.arguments import list_like
from parlab.sequence.layouts import checked_documents
from parlab.sequence.splitting.chunks import Chunk, deal, even_stops, proportional_stops


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


def head_tail(S: int, ranks: int) -> list[Chunk]:
    """2P chunks, as equal as possible: rank r owns the r-th from the head and the r-th from the tail. Zigzag for any S.

    >>> [chunk.rank for chunk in head_tail(16, ranks=4)]
    [0, 1, 2, 3, 3, 2, 1, 0]
    """
    whole("S", S, least=1)
    return per_document([0, S], ranks)


def per_document(documents: Sequence[int], ranks: int) -> list[Chunk]:
    """`head_tail` in each document by itself. Each document starts one rank later, so that the longer chunks, where 2P
    does not divide its length, go to all ranks in turn.
    """
    list_like("documents", documents)
    whole("ranks", ranks, least=1)
    parts, stops, owners = 2 * ranks, [], []
    for number, (start, stop) in enumerate(_documents(documents)):
        stops += [start + end for end in proportional_stops(stop - start, [1] * parts)]
        owners += [(min(part, parts - 1 - part) + number) % ranks for part in range(parts)]
    return deal(stops, owners)


def longest_first(documents: Sequence[int], ranks: int) -> list[Chunk]:
    """Whole documents, the costliest first, each to the rank with the least work so far.

    No attention crosses ranks, but one long document makes its rank the slowest.

    >>> [chunk.rank for chunk in longest_first([0, 5, 9, 12, 15], ranks=2)]  # 15, 10, 6 and 6 pairs
    [0, 1, 1, 0]
    """
    list_like("documents", documents)
    whole("ranks", ranks, least=1)
    loads, owners = [0] * ranks, {}
    for start, stop in sorted(_documents(documents), key=lambda piece: piece[0] - piece[1]):
        owners[stop] = loads.index(min(loads))
        loads[owners[stop]] += (stop - start) * (stop - start + 1) // 2
    return deal(sorted(owners), [owners[stop] for stop in sorted(owners)])


def loads_of(chunks: Sequence[Chunk], work: Sequence[float] | Array, ranks: int) -> list[float]:
    """The work of each rank's own tokens, without its overlaps.

    Raises:
        ValueError: a chunk has a rank or a token that is not there.
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
    return loads


def imbalance(chunks: Sequence[Chunk], work: Sequence[float] | Array, ranks: int) -> float:
    """The work of the slowest rank over the mean: 1 if all are equal, `ranks` if one rank has all of it.

    >>> imbalance(head_tail(4096, 8), causal_work(4096), 8)
    1.0
    """
    loads = loads_of(chunks, work, ranks)
    return max(loads) * ranks / sum(loads) if any(loads) else 1.0


def _checked_work(work: Sequence[float] | Array) -> list[float]:
    work = to_numpy(work).tolist() if is_array(work) else list(work)
    if not work:
        raise ValueError("work is empty: there must be at least 1 token")
    for token, value in enumerate(work):
        amount(f"work[{token}]", value)
    return work


def _documents(documents: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(checked_documents(documents, documents[-1] if len(documents) else 0, size=1)))
