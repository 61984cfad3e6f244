"""A sequence cut into chunks: of equal length, or as large as memory allows.

Where there are more chunks than ranks, they go to the ranks in turn. A chunk may begin with tokens of the chunk before
it, its overlap. Its rank only reads those; the other tokens are its *effective* part. The effective parts lie end to
end, and none is empty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from parlab.arguments import amount, positive, whole
from parlab.sequence.arguments import list_like


@dataclass(frozen=True)
class Chunk:
    """The tokens `start` to `stop` − 1, number `index` of the sequence's chunks, on rank `rank`.

    The first `overlap_before` tokens belong to earlier chunks. The next chunk reads the last `overlap_after` tokens.
    """

    index: int
    rank: int
    start: int
    stop: int
    overlap_before: int = 0
    overlap_after: int = 0

    @property
    def length(self) -> int:
        """Tokens that its rank holds."""
        return self.stop - self.start

    @property
    def effective_length(self) -> int:
        """Tokens that are its own."""
        return self.length - self.overlap_before

    @property
    def needs_communication(self) -> bool:
        """Whether it shares tokens with a neighbour."""
        return self.overlap_before > 0 or self.overlap_after > 0


def split_equal(length: int, limit: int, overlap: int = 0, ranks: int = 1) -> list[Chunk]:
    """Chunks of `limit` tokens, the last one shorter. Each starts with the last `overlap` tokens of the one before.

    Raises:
        ValueError: the overlap leaves a chunk no token of its own.

    >>> [(chunk.start, chunk.stop, chunk.effective_length) for chunk in split_equal(1800, limit=1000, overlap=100)]
    [(0, 1000, 1000), (900, 1800, 800)]
    """
    whole("length", length, least=1)
    whole("limit", limit, least=1)
    whole("overlap", overlap)
    whole("ranks", ranks, least=1)
    if not 0 <= overlap < limit:
        right = f"must be at least 0 and below limit={limit}, or a chunk has no new token"
        raise ValueError(f"overlap={overlap!r}: {right}")
    return deal([*range(limit, length, limit - overlap), length], ranks, overlap)


def split_by_memory(length: int, budgets: Sequence[float], bytes_per_token: float) -> list[Chunk]:
    """One chunk a rank, in proportion to the tokens that fit into its budget of bytes, and never longer than that. A
    rank whose share is no token gets no chunk.

    Raises:
        ValueError: a budget has no room for one token, or all together have none for the sequence.

    >>> [chunk.length for chunk in split_by_memory(1000, budgets=[16e6, 8e6, 8e6], bytes_per_token=20_000)]
    [500, 250, 250]
    """
    whole("length", length, least=1)
    list_like("budgets", budgets)
    whole("budgets", len(budgets), least=1)
    fits = [_tokens(f"budgets[{rank}]", budget, bytes_per_token) for rank, budget in enumerate(budgets)]
    room = sum(fits)
    if room < length:
        found = f"room for {room} tokens of {bytes_per_token} bytes"
        raise ValueError(f"budgets={list(budgets)!r}: {found}, {length} are needed")
    stops = [length * tokens // room for tokens in accumulate(fits)]  # in proportion, each end rounded down
    return deal(stops, ranks=len(fits))


def best_size(length: int, bytes_per_token: float, bytes_per_rank: float, world: int) -> int:
    """The fewest ranks whose memory holds the sequence.

    Raises:
        ValueError: the world has too few ranks, or a rank has no room for one token.

    >>> best_size(length=10_000, bytes_per_token=1024, bytes_per_rank=8e9, world=4)
    1
    """
    whole("length", length, least=1)
    whole("world", world, least=1)
    size = -(-length // _tokens("bytes_per_rank", bytes_per_rank, bytes_per_token))
    if size > world:
        needed = f"{length} tokens of {bytes_per_token} bytes need {size} ranks of {bytes_per_rank}"
        raise ValueError(f"world={world}: {needed}")
    return size


def even_stops(sizes: Sequence[float], n: int) -> list[int]:
    """The ends of n runs of neighbours, none empty, whose largest sum is as small as possible.

    By bisection: a bound suffices if n runs, each filled up to it, reach the end.

    >>> even_stops([1, 2, 3, 4, 5], n=2)  # 1 + 2 + 3 and 4 + 5
    [3, 5]
    """
    before = list(accumulate(sizes, initial=0))

    def filled(bound: float) -> list[int]:
        stops = [0]
        for to_come in reversed(range(n)):  # each of them needs an item
            furthest = bisect_right(before, before[stops[-1]] + bound) - 1
            stops.append(min(furthest, len(sizes) - to_come))
        return stops[1:]

    low, high = before[-1] / n, before[-1]
    while low < (middle := (low + high) / 2) < high:  # until no number lies between them
        if filled(middle)[-1] == len(sizes):
            high = middle
        else:
            low = middle
    return filled(high)


def deal(stops: Sequence[int], ranks: int, overlap: int = 0) -> list[Chunk]:
    """Chunks whose effective parts end at `stops`; the ranks take turns. Where a part would be empty there is none.

    >>> [(chunk.rank, chunk.start, chunk.stop) for chunk in deal([4, 4, 9], ranks=3, overlap=1)]
    [(0, 0, 4), (2, 3, 9)]
    """
    chunks: list[Chunk] = []
    start = 0
    for turn, stop in enumerate(stops):
        if start < stop:
            before = min(overlap, start)
            after = min(overlap, stop) if stop < stops[-1] else 0  # which the next chunk has before its own
            chunks.append(Chunk(len(chunks), turn % ranks, start - before, stop, before, after))
        start = stop
    return chunks


def _tokens(name: str, budget: float, bytes_per_token: float) -> int:
    """How many tokens fit into the budget."""
    amount(name, budget)
    positive("bytes_per_token", bytes_per_token, finite=True)
    if budget < bytes_per_token:
        raise ValueError(f"{name}={budget!r}: no memory for one token of {bytes_per_token} bytes")
    return int(budget // bytes_per_token)
