"""Which rank attends which heads, and where its tokens stand: what the all-to-alls of `ulysses.HeadExchange` go by.

Invariant: each query head belongs to one rank; a K/V head to every rank that has a query head which reads it.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from parlab.arrays import Array
from parlab.sequence.attend import ALL, Heads
from parlab.sequence.layouts import positions
from parlab.world import Comm
from parlab.world.collectives import piece_sizes, pieces_of
from parlab.world.units import several


class HeadShare(NamedTuple):
    """The heads of one rank: its query heads, and the K/V heads that they read."""

    query_heads: slice
    kv_heads: slice
    reads: Heads  # which of these query heads read which of these K/V heads, counted from the first of each


def head_shares(H: int, G: int, size: int) -> list[HeadShare]:
    """Each rank's heads: H/P query heads, the first (H mod P) ranks one more; ValueError: more ranks than heads."""
    if size > H:
        most = several(H, "rank")
        raise ValueError(
            f"{size} ranks share {several(H, 'query head')}: a rank needs at least one, so use at most {most}"
        )
    shares, each = [], H // G  # query heads that read one K/V head
    for query_heads in pieces_of(piece_sizes(H, size)):
        kv_heads = slice(query_heads.start // each, (query_heads.stop - 1) // each + 1)
        shares.append(HeadShare(query_heads, kv_heads, reads_on_rank(query_heads, kv_heads, each)))
    return shares


def reads_on_rank(query_heads: slice, kv_heads: slice, each: int) -> Heads:
    """Which of a rank's query heads read which of its K/V heads, counted from the first of each.

    `query_heads` and `kv_heads` are counted over all ranks, and so is `each`, the query heads that read one K/V head.

    >>> reads_on_rank(slice(3, 6), slice(0, 2), each=4)  # query head 3 reads K/V head 0, and 4 and 5 read 1
    [(slice(0, 1, None), slice(0, 1, None)), (slice(1, 3, None), slice(1, 2, None))]
    >>> reads_on_rank(slice(2, 6), slice(0, 2), each=4) == ALL  # 2 and 3 read 0, 4 and 5 read 1: equally many
    True
    """
    first, stop = query_heads.start, query_heads.stop
    next_begins = range((kv_heads.start + 1) * each, stop, each)  # the first reader of each K/V head after the first
    edges = [first, *next_begins, stop]
    readers = [slice(start - first, end - first) for start, end in pairwise(edges)]  # of each K/V head
    if len({part.stop - part.start for part in readers}) == 1:
        return ALL
    return [(part, slice(number, number + 1)) for number, part in enumerate(readers)]


Runs = list[tuple[slice, slice]]  # of a rank's runs of tokens: where in its shard, and where in the whole sequence


class HeadLevel(NamedTuple):
    """One all-to-all between tokens and heads: the ranks that take part, and of each of them its heads and its tokens.

    Heads are counted from the first that comes into the level: all come into the first level, and into a second one,
    inside a node, the node's.
    """

    comm: Comm
    shares: list[HeadShare]
    runs: list[Runs]

    @property
    def our_runs(self) -> Runs:
        """The runs of this rank."""
        return self.runs[self.comm.rank]

    def heads(self, rank: int, queries: int, keys: int) -> list[slice]:
        """The heads of `rank` in each of so many arrays of query heads, then in each of so many of K/V heads."""
        share = self.shares[rank]
        return [share.query_heads] * queries + [share.kv_heads] * keys


def token_runs(size: int, length: int, layout: str) -> list[Runs]:
    """Where the tokens of each rank stand in its shard, and where in the whole sequence, in its order."""
    chunks = 2 if layout == "zigzag" else 1  # a rank
    where = pieces_of([length // chunks] * chunks * size)
    chunks_of_ranks = positions(chunks * size, size, layout)
    return [[(where[number], where[chunk]) for number, chunk in enumerate(owned)] for owned in chunks_of_ranks]


def of_shard(shards: Sequence[Array], heads: Sequence[slice], runs: Runs) -> list[Array]:
    """Views of these heads of a rank's tokens, one for each run of tokens."""
    return [x[:, h, here, ...] for x, h in zip(shards, heads, strict=True) for here, _ in runs]


def of_whole(wholes: Sequence[Array], runs: Runs) -> list[Array]:
    """Views of a rank's tokens in arrays of all tokens, one for each run of them."""
    return [x[:, :, there, ...] for x in wholes for _, there in runs]
