"""The cut of a flat vector into shards, of a list of blocks among ranks, and a block's arrays as one flat vector.

Invariant of every cut: the shards are disjoint, and together they are everything.

Sources: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5;
Zhao et al. 2023, "PyTorch FSDP", section 3.2 (flat parameters, cut block by block).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from parlab.arguments import checked_rank, whole
from parlab.arrays import Array, namespace
from parlab.world.collectives.common import piece_sizes


def shard_range(total: int, rank: int, size: int) -> range:
    """The elements that `rank` owns of `total`: contiguous; each of the first (total mod size) ranks owns one more.

    Raises:
        ValueError: a negative total, no ranks, or a rank that is not in the group.

    >>> [shard_range(10, rank, 3) for rank in range(3)]
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    whole("total", total, least=0)
    whole("size", size, least=1)
    rank = checked_rank(rank, "rank", size)
    sizes = piece_sizes(total, size)
    start = sum(sizes[:rank])
    return range(start, start + sizes[rank])


def cut(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """How many elements of each block each rank owns, `[block][rank]`; in a block they follow each other by rank.

    Every block is cut into `ranks` parts. The elements left over are dealt out in turn, going on from block to block,
    so that a rank owns in all as many as `shard_range` gives it of the whole.

    Args:
        sizes: elements of each block.
        ranks: how many ranks share them.

    >>> cut([5, 5, 4], ranks=3)
    [[2, 2, 1], [2, 1, 2], [1, 2, 1]]
    """
    counts = []
    for size, start in zip(sizes, accumulate(sizes, initial=0), strict=False):
        pieces = piece_sizes(size, ranks)
        counts.append([pieces[(rank - start) % ranks] for rank in range(ranks)])
    return counts


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

    def __init__(self, owners: Sequence[int], size: int) -> None:
        if not isinstance(owners, Sequence):
            raise ValueError(f"owners={owners!r:.60}: a list of whole numbers is needed")
        whole("size", size, least=1)
        self.owners = tuple(checked_rank(owner, f"owners[{block}]", size) for block, owner in enumerate(owners))
        self.size = size

    @classmethod
    def contiguous(cls, num_blocks: int, size: int) -> ShardMap:
        """Neighbouring blocks together, as in a pipeline; each of the first (num_blocks mod size) ranks owns one more.

        Raises:
            ValueError: a negative number of blocks, or no ranks.
        """
        whole("num_blocks", num_blocks, least=0)
        whole("size", size, least=1)
        return cls([rank for rank in range(size) for _ in shard_range(num_blocks, rank, size)], size)

    @classmethod
    def round_robin(cls, num_blocks: int, size: int) -> ShardMap:
        """Block i on rank i mod size.

        Raises:
            ValueError: a negative number of blocks, or no ranks.
        """
        whole("num_blocks", num_blocks, least=0)
        whole("size", size, least=1)
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


class FlatLayout:
    """The arrays of a block, one after the other in one flat array, and this rank's shard of it.

    Args:
        arrays: the block's, for their names and shapes.
        counts: elements that each rank owns.
        rank: this one.

    Attributes:
        size: elements of the block.
        own: where this rank's shard lies in the flat array.
        is_cut: whether the block is cut at all, or one rank owns it whole.
        places: where each array lies in the flat array, by name.
        owned: the shard, array by array: (name, its place in the shard, the number of its first element in that array).
    """

    def __init__(self, arrays: Mapping[str, Array], counts: Sequence[int], rank: int) -> None:
        self.shapes, self.counts = {name: tuple(x.shape) for name, x in arrays.items()}, list(counts)
        self.is_cut = len(counts) > 1
        self.own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        ends = list(accumulate((x.size for x in arrays.values()), initial=0))
        self.places = {name: slice(start, end) for name, (start, end) in zip(arrays, pairwise(ends), strict=True)}
        self.size = ends[-1]
        self.owned: list[tuple[str, slice, int]] = []
        for name, place in self.places.items():
            start, stop = max(place.start, self.own.start), min(place.stop, self.own.stop)
            if start < stop:
                in_shard = slice(start - self.own.start, stop - self.own.start)
                self.owned.append((name, in_shard, start - place.start))

    def pack(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """The arrays as one, in memory of its own: `[n]`."""
        xp = namespace(*arrays.values())
        flat = xp.empty((self.size,), dtype=dtype, device=next(iter(arrays.values())).device)  # [n]
        for name, place in self.places.items():
            flat[place] = xp.astype(xp.reshape(arrays[name], (-1,)), dtype, copy=False)
        return flat

    def pack_own(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """This rank's shard of them, in memory of its own: `[n_r]`."""
        xp = namespace(*arrays.values())
        return xp.asarray(self.pack(arrays, dtype)[self.own], copy=True)

    def unpack(self, flat: Array) -> dict[str, Array]:
        """Views of `flat`, by name and in shape."""
        xp = namespace(flat)
        return {name: xp.reshape(flat[place], self.shapes[name]) for name, place in self.places.items()}
