"""Chunks of equal work: what a token costs under a causal mask, and three ways to deal the work out.

A causal query looks at all tokens before it, so later tokens cost more; in a packed sequence it looks no further back
than its document's start, so a document costs its length squared. `documents` are the starts of the packed documents,
from 0, and the end of the last one; such that do not start at 0, or do not grow, are a ValueError.

Sources: head and tail: Llama 3 (2024), section 3.3.2; longest first: Graham 1969, "Bounds on multiprocessing timing
anomalies", which keeps the slowest rank below 4/3 of the best possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from parlab.arguments import amount
from parlab.arrays import Array, is_array, to_numpy
from parlab.sequence.chunks import Chunk, check_counts, deal
from parlab.sequence.layouts import checked_documents


def causal_work(S: int) -> list[int]:
    """The keys that each of S tokens looks at: 1, 2, ..., S."""
    check_counts(S=S)
    return packed_work([0, S])


def packed_work(documents: Sequence[int]) -> list[int]:
    """The keys that each token looks at, causally, in its document.

    >>> packed_work([0, 3, 5])
    [1, 2, 3, 1, 2]
    """
    return [token - start + 1 for start, stop in _documents(documents) for token in range(start, stop)]


def split_by_work(work: Sequence[float] | Array, ranks: int) -> list[Chunk]:
    """One chunk a rank; the one with the most work has as little as contiguous chunks can have.

    With more ranks than tokens the last ones get no chunk.

    Args:
        work: of each token, in any unit: `causal_work(S)`, `packed_work(documents)`, or measured.
        ranks: how many.

    Raises:
        ValueError: no tokens, a negative or infinite work, or no ranks.

    >>> [(chunk.start, chunk.stop) for chunk in split_by_work(causal_work(16), ranks=4)]
    [(0, 8), (8, 11), (11, 14), (14, 16)]
    """
    work = _checked_work(work)
    check_counts(ranks=ranks)
    return deal(even_stops(work, min(ranks, len(work))), ranks)


def head_tail(S: int, ranks: int) -> list[Chunk]:
    """2P chunks, as equal as can be; rank r owns the r-th from the head and the r-th from the tail. Zigzag, for any S.

    >>> [chunk.rank for chunk in head_tail(16, ranks=4)]
    [0, 1, 2, 3, 3, 2, 1, 0]
    """
    check_counts(S=S)
    return per_document([0, S], ranks)


def per_document(documents: Sequence[int], ranks: int) -> list[Chunk]:
    """`head_tail` in each document by itself, so that every rank has its part of each.

    Each document starts with the next rank: what its length leaves over does not always fall on the same one.
    """
    check_counts(ranks=ranks)
    parts, stops, owners = 2 * ranks, [], []
    for number, (start, stop) in enumerate(_documents(documents)):
        stops += [start + (stop - start) * (part + 1) // parts for part in range(parts)]
        owners += [(min(part, parts - 1 - part) + number) % ranks for part in range(parts)]
    return deal(stops, owners)


def longest_first(documents: Sequence[int], ranks: int) -> list[Chunk]:
    """Longest processing time first: whole documents, the costliest first, each to the rank with the least work so far.

    Nothing then crosses the ranks, but one long document makes its rank the slowest.

    >>> documents = [0, 5, 9, 12, 15]  # 15, 10, 6 and 6 pairs
    >>> [chunk.rank for chunk in longest_first(documents, ranks=2)]
    [0, 1, 1, 0]
    """
    check_counts(ranks=ranks)
    loads, owners = [0] * ranks, {}
    for start, stop in sorted(_documents(documents), key=lambda piece: piece[0] - piece[1]):
        owners[stop] = loads.index(min(loads))
        loads[owners[stop]] += (stop - start) * (stop - start + 1) // 2
    return deal(sorted(owners), [owners[stop] for stop in sorted(owners)])


def loads_of(chunks: Sequence[Chunk], work: Sequence[float] | Array, ranks: int) -> list[float]:
    """The work of each rank's own tokens, those of its overlaps apart.

    Raises:
        ValueError: a chunk of a rank that is not there, or after the last token.
    """
    before = list(accumulate(_checked_work(work), initial=0))
    loads: list[float] = [0] * ranks
    for chunk in chunks:
        if chunk.rank >= ranks or chunk.stop >= len(before):
            raise ValueError(f"{chunk}: there are ranks={ranks} and work for {len(before) - 1} tokens")
        loads[chunk.rank] += before[chunk.stop] - before[chunk.start + chunk.overlap_before]
    return loads


def imbalance(chunks: Sequence[Chunk], work: Sequence[float] | Array, ranks: int) -> float:
    """The work of the slowest rank over the mean: 1 is balanced, and `ranks` is all on one. Raises: as `loads_of`.

    >>> imbalance(head_tail(4096, 8), causal_work(4096), 8)
    1.0
    """
    loads = loads_of(chunks, work, ranks)
    return max(loads) * ranks / sum(loads) if any(loads) else 1.0


def even_stops(sizes: Sequence[float], n: int) -> list[int]:
    """Where to end n runs of neighbours, none empty, so that the largest is as small as it can be.

    By bisection: a bound will do if n runs, each filled up to it, reach the end.

    >>> even_stops([3, 1, 1, 1, 2, 4], n=3)
    [2, 5, 6]
    """
    before = list(accumulate(sizes, initial=0))
    low, high = before[-1] / n, before[-1]
    while low < (middle := (low + high) / 2) < high:
        if _filled(before, n, middle)[-1] == len(sizes):
            high = middle
        else:
            low = middle
    return _filled(before, n, high)


def _filled(before: list[float], n: int, bound: float) -> list[int]:
    """The ends of n runs, each as long as `bound` allows and leaving an item for each of those to come."""
    position, stops = 0, []
    for run in range(1, n + 1):
        furthest = bisect_right(before, before[position] + bound) - 1
        position = min(furthest, len(before) - 1 - (n - run))
        stops.append(position)
    return stops


def _checked_work(work: Sequence[float] | Array) -> list[float]:
    work = to_numpy(work).tolist() if is_array(work) else list(work)
    if not work:
        raise ValueError("work is empty: there must be at least 1 token")
    for token, value in enumerate(work):
        amount(f"work[{token}]", value)
    return work


def _documents(documents: Sequence[int]) -> list[tuple[int, int]]:
    """Start and stop of each."""
    return list(pairwise(checked_documents(documents, documents[-1] if len(documents) else 0, size=1)))
