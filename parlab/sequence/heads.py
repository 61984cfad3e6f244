"""Which rank attends which heads, and which tokens it brings: the tables by which `ulysses` exchanges.

Invariant: each query head belongs to one rank; a K/V head to every rank that has a query head which reads it.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.arrays import Array
from parlab.sequence.attend import ALL, Heads
from parlab.sequence.layouts import positions
from parlab.world import Comm
from parlab.world.collectives import piece_sizes, pieces_of
from parlab.world.units import several


class RankHeads(NamedTuple):
    """The heads of one rank: its query heads, and the K/V heads that they read."""

    query_heads: slice
    kv_heads: slice


def heads_of_ranks(H: int, G: int, size: int) -> list[RankHeads]:
    """The heads of each rank: H/P query heads, the first (H mod P) ranks one more; and the K/V heads that they read.

    >>> heads_of_ranks(H=4, G=2, size=2)[1]  # query heads 2 and 3 read K/V head 1
    RankHeads(query_heads=slice(2, 4, None), kv_heads=slice(1, 2, None))
    >>> [heads.kv_heads.start for heads in heads_of_ranks(H=4, G=2, size=4)]  # two ranks read one K/V head
    [0, 0, 1, 1]

    Raises:
        ValueError: more ranks than query heads.
    """
    if size > H:
        most = several(H, "rank")
        raise ValueError(
            f"{size} ranks share {several(H, 'query head')}: a rank needs at least one, so use at most {most}"
        )
    each = H // G  # query heads that read one K/V head
    query_heads = pieces_of(piece_sizes(H, size))  # of each rank
    return [RankHeads(own, slice(own.start // each, (own.stop - 1) // each + 1)) for own in query_heads]


def reads_on_rank(H: int, G: int, size: int, rank: int) -> Heads:
    """Which of the rank's query heads read which of its K/V heads, counted from its first of each.

    >>> reads_on_rank(H=8, G=2, size=3, rank=1)  # it has heads 3 to 5: 3 reads K/V head 0, 4 and 5 read 1
    [(slice(0, 1, None), slice(0, 1, None)), (slice(1, 3, None), slice(1, 2, None))]
    >>> reads_on_rank(H=12, G=2, size=3, rank=1) == ALL  # heads 4 to 7: 4 and 5 read 0, 6 and 7 read 1
    True
    """
    own, each = heads_of_ranks(H, G, size)[rank], H // G  # so many query heads read one K/V head
    first, stop = own.query_heads.start, own.query_heads.stop
    reads = []
    for number, kv_head in enumerate(range(own.kv_heads.start, own.kv_heads.stop)):
        begin, end = max(kv_head * each, first), min((kv_head + 1) * each, stop)
        reads.append((slice(begin - first, end - first), slice(number, number + 1)))
    equally_many = len({query_heads.stop - query_heads.start for query_heads, _ in reads}) == 1
    return ALL if equally_many else reads


class HeadLevel(NamedTuple):
    """One all-to-all between tokens and heads, among the ranks of `comm`: the heads of each, and its tokens.

    The tokens of a rank are one chunk of the whole, or several: `chunks[rank]` are their numbers, in the order of its
    shard. Rank 0 of 2 has chunk 0 of 2, and in zigzag the chunks 0 and 3 of 4.
    """

    comm: Comm
    heads: list[RankHeads]
    chunks: list[list[int]]

    def heads_by_array(self, queries: int, keys: int) -> list[list[slice]]:
        """`[rank][array]`: a rank's heads in each array, first so many arrays of query heads, then of K/V heads."""
        return [[own.query_heads] * queries + [own.kv_heads] * keys for own in self.heads]


def chunks_of_ranks(size: int, layout: str) -> list[list[int]]:
    """The numbers of the chunks of each rank, one or in zigzag two.

    >>> chunks_of_ranks(2, "contiguous"), chunks_of_ranks(2, "zigzag")
    ([[0], [1]], [[0, 3], [1, 2]])
    """
    return positions(2 * size if layout == "zigzag" else size, size, layout)


def pieces_by_heads(shards: Sequence[Array], heads: list[list[slice]], count: int) -> list[list[Array]]:
    """Views of each rank's heads in shards of `count` chunks; `heads[rank][number of the shard]`.

    With one chunk: `[B, H, S/P, ...]` -> for each rank `[B, H/P, S/P, ...]`.
    """
    pieces = []
    for of_rank in heads:
        its_heads = [x[:, own, ...] for x, own in zip(shards, of_rank, strict=True)]
        pieces.append([chunk for x in its_heads for chunk in cut(x, count)])
    return pieces


def pieces_by_tokens(wholes: Sequence[Array], chunks: list[list[int]]) -> list[list[Array]]:
    """Views of each rank's tokens in arrays of the whole sequence; `chunks[rank]` are the numbers of its chunks.

    With one chunk a rank: `[B, H/P, S, ...]` -> for each rank `[B, H/P, S/P, ...]`.
    """
    cut_wholes = [cut(x, sum(map(len, chunks))) for x in wholes]
    return [[cut_whole[number] for cut_whole in cut_wholes for number in own] for own in chunks]


def cut(x: Array, count: int) -> list[Array]:
    """Views of the tokens of x, cut into so many chunks of one length: `[B, H, S, ...]` -> `[B, H, S/count, ...]`."""
    length = x.shape[2] // count
    return [x[:, :, number * length : (number + 1) * length, ...] for number in range(count)]
