"""The cut of a flat vector into shards, and of a list of blocks among ranks.

Invariant of every cut: the shards are disjoint, and together they are everything.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from parlab.arguments import checked, checked_rank, whole
from parlab.zero.arguments import RULES


@checked(RULES)
def shard_range(total: int, rank: int, size: int) -> range:
    """The elements that `rank` owns of `total`: contiguous; each of the first (total mod size) ranks owns one more.

    Raises:
        ValueError: a negative total, no ranks, or a rank that is not in the group.

    >>> [shard_range(10, rank, 3) for rank in range(3)]
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    return _shard_range(total, checked_rank(rank, "rank", size), size)


def _shard_range(total: int, rank: int, size: int) -> range:
    base, more = divmod(total, size)
    start = rank * base + min(rank, more)
    return range(start, start + base + (rank < more))


def cut(sizes: Sequence[int], ranks: int, *, alike: bool = False) -> list[list[int]]:
    """How many elements of each block each rank owns, `[block][rank]`; in a block they follow each other by rank.

    Every block is cut into `ranks` parts. The elements left over are dealt out in turn, going on from block to block,
    so that a rank owns in all as many as `shard_range` gives it of the whole.

    Args:
        sizes: elements of each block.
        ranks: how many ranks share them.
        alike: every block begins with the first rank instead: blocks of one size are cut at the same places.

    >>> cut([5, 5, 4], ranks=3)
    [[2, 2, 1], [2, 1, 2], [1, 2, 1]]
    >>> cut([5, 5, 4], ranks=3, alike=True)
    [[2, 2, 1], [2, 2, 1], [2, 1, 1]]
    """
    starts = [0] * len(sizes) if alike else accumulate(sizes, initial=0)
    return [
        [len(_shard_range(size, (rank - start) % ranks, ranks)) for rank in range(ranks)]
        for size, start in zip(sizes, starts, strict=False)
    ]


class ShardMap:
    """Whole blocks dealt out to ranks: each block has one owner.

    Args:
        owners: the rank that owns block i, for every i.
        size: how many ranks there are.

    Raises:
        ValueError: an owner that is not one of the ranks.

    >>> ShardMap.round_robin(24, 4).blocks(0)
    [0, 4, 8, 12, 16, 20]
    >>> ShardMap.contiguous(10, 3).blocks(1)
    [4, 5, 6]
    """

    @checked(RULES)
    def __init__(self, owners: Sequence[int], size: int) -> None:
        self.owners = tuple(checked_rank(owner, f"owners[{block}]", size) for block, owner in enumerate(owners))
        self.size = size

    @classmethod
    @checked(RULES)
    def contiguous(cls, num_blocks: int, size: int) -> ShardMap:
        """Neighbouring blocks together, as in a pipeline; each of the first (num_blocks mod size) ranks owns one more.

        Raises:
            ValueError: a negative number of blocks, or no ranks.
        """
        return cls([rank for rank in range(size) for _ in _shard_range(num_blocks, rank, size)], size)

    @classmethod
    @checked(RULES)
    def round_robin(cls, num_blocks: int, size: int) -> ShardMap:
        """Block i on rank i mod size.

        Raises:
            ValueError: a negative number of blocks, or no ranks.
        """
        return cls([block % size for block in range(num_blocks)], size)

    def owner(self, block: int) -> int:
        """The rank that owns block number `block`.

        Raises:
            ValueError: there is no such block.
        """
        if not 0 <= whole("block", block) < len(self.owners):
            raise ValueError(f"block={block!r}: there are {len(self.owners)} blocks, from 0")
        return self.owners[block]

    def blocks(self, rank: int) -> list[int]:
        """The numbers of the blocks that `rank` owns, ascending.

        Raises:
            ValueError: there is no such rank.
        """
        rank = checked_rank(rank, "rank", self.size)
        return [block for block, owner in enumerate(self.owners) if owner == rank]

    def __repr__(self) -> str:
        return f"ShardMap({list(self.owners)}, size={self.size})"
