"""A sequence cut into chunks: equal ones, ones that fit into memory, and how many ranks that takes.

Chunks go round the ranks when there are more of them. A chunk may begin with tokens of the one before it, its overlap:
those it only reads, and what is left is its *effective* part. The effective parts lie end to end, and none is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from parlab.arguments import amount, checked_axis, positive, whole
from parlab.arrays import Array, namespace
from parlab.world import Comm


@dataclass(frozen=True)
class Chunk:
    """The tokens `start` to `stop` − 1, number `index` of the sequence's chunks, on rank `rank`.

    The first `overlap_before` of them belong to earlier chunks; the next chunk reads the last `overlap_after`.
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

    def take(self, comm: Comm, x: Array, axis: int = -2) -> Array:
        """Its tokens of `x`, the whole sequence, as a copy: `[..., S, D]` -> `[..., length, D]`.

        Raises:
            ValueError: it belongs to another rank, or to none of this world, or `x` ends before it does.
        """
        xp, axis = namespace(x), checked_axis(axis, "axis", x)
        found = f"chunk {self.index} belongs to rank {self.rank}"
        if self.rank >= comm.size:
            raise ValueError(f"{found}: the world has {comm.size} ranks, split for at most so many")
        if self.rank != comm.rank:
            raise ValueError(f"{found}: rank {comm.rank} must not take it")
        if x.shape[axis] < self.stop:
            raise ValueError(f"x has {x.shape[axis]} tokens: chunk {self.index} ends at {self.stop}")
        return xp.take(x, xp.arange(self.start, self.stop, device=x.device), axis=axis)


def split_equal(length: int, limit: int, overlap: int = 0, ranks: int = 1) -> list[Chunk]:
    """Chunks of `limit` tokens, the last one shorter, each starting with the last `overlap` tokens of the one before.

    Raises:
        ValueError: a number below its least, or an overlap that leaves a chunk no token of its own.

    >>> [(chunk.start, chunk.stop, chunk.effective_length) for chunk in split_equal(1800, limit=1000, overlap=100)]
    [(0, 1000, 1000), (900, 1800, 800)]
    """
    check_counts(length=length, limit=limit, ranks=ranks)
    if not 0 <= whole("overlap", overlap) < limit:
        right = f"must be at least 0 and below limit={limit}, or a chunk has no new token"
        raise ValueError(f"overlap={overlap!r}: {right}")
    return deal([*range(limit, length, limit - overlap), length], ranks, overlap)


def split_by_memory(length: int, budgets: Sequence[float], bytes_per_token: float) -> list[Chunk]:
    """One chunk a rank, in proportion to the tokens that fit into each rank's budget of bytes, and never more.

    A sequence with fewer tokens than ranks leaves the ranks with the smallest shares without a chunk.

    Raises:
        ValueError: a budget without room for one token, or budgets without room for the sequence.

    >>> [chunk.length for chunk in split_by_memory(1000, budgets=[16e6, 8e6, 8e6], bytes_per_token=20_000)]
    [500, 250, 250]
    """
    check_counts(length=length, budgets=len(budgets))
    fits = [_tokens(f"budgets[{rank}]", budget, bytes_per_token) for rank, budget in enumerate(budgets)]
    if sum(fits) < length:
        found = f"room for {sum(fits)} tokens of {bytes_per_token} bytes"
        raise ValueError(f"budgets={list(budgets)!r}: {found}, {length} are needed")
    return deal([length * total // sum(fits) for total in accumulate(fits)], range(len(fits)))


def best_size(length: int, bytes_per_token: float, bytes_per_rank: float, world: int) -> int:
    """The fewest ranks whose memory holds the sequence.

    Raises:
        ValueError: a rank without room for one token, or more ranks needed than the world has.

    >>> best_size(length=10_000, bytes_per_token=1024, bytes_per_rank=8e9, world=4)
    1
    """
    check_counts(length=length, world=world)
    size = -(-length // _tokens("bytes_per_rank", bytes_per_rank, bytes_per_token))
    if size > world:
        needed = f"{length} tokens of {bytes_per_token} bytes need {size} ranks of {bytes_per_rank}"
        raise ValueError(f"world={world}: {needed}")
    return size


def deal(stops: Sequence[int], ranks: int | Sequence[int], overlap: int = 0) -> list[Chunk]:
    """The chunks whose effective parts end at `stops`, but for empty ones: round so many ranks, or on those given."""
    owners = [index % ranks for index in range(len(stops))] if isinstance(ranks, int) else ranks
    cuts = [cut for cut in zip([0, *stops[:-1]], stops, owners, strict=True) if cut[0] < cut[1]]
    shared = [min(overlap, start) for start, _, _ in cuts]
    return [
        Chunk(index, rank, start - before, stop, before, after)
        for index, ((start, stop, rank), before, after) in enumerate(zip(cuts, shared, [*shared[1:], 0], strict=True))
    ]


def check_counts(**counts: int) -> None:
    """Refuse what is not a whole number, at least 1."""
    for name, value in counts.items():
        whole(name, value, least=1)


def _tokens(name: str, budget: float, bytes_per_token: float) -> int:
    """How many tokens fit."""
    amount(name, budget)
    positive("bytes_per_token", bytes_per_token, finite=True)
    if budget < bytes_per_token:
        raise ValueError(f"{name}={budget!r}: no memory for one token of {bytes_per_token} bytes")
    return int(budget // bytes_per_token)
