"""The cuts: of a flat vector into shards, of blocks among ranks, of a block's arrays as one flat vector.

Invariant of every cut: the shards are disjoint, and together they are everything.

Sources: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5;
Zhao et al. 2023, "PyTorch FSDP", section 3.2 (flat parameters, cut block by block).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arguments import checked_rank, whole
from parlab.arrays import Array, namespace
from parlab.world import Comm
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


def shard_sizes(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """How many elements of each block each rank owns, `[block][rank]`; in a block they follow each other by rank.

    Every block is cut into `ranks` parts. The elements left over are dealt out in turn, going on from block to block,
    so that a rank owns in all as many as `shard_range` gives it of the whole.

    Args:
        sizes: elements of each block.
        ranks: how many ranks share them.

    >>> shard_sizes([5, 5, 4], ranks=3)
    [[2, 2, 1], [2, 1, 2], [1, 2, 1]]
    """
    counts, start = [], 0
    for size in sizes:
        pieces = piece_sizes(size, ranks)
        counts.append([pieces[(rank - start) % ranks] for rank in range(ranks)])
        start += size
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
    """The arrays of a block, one after the other in one flat array; and the cut of that array among a group of ranks.

    Args:
        shapes: of the block's arrays, by name.
        counts: elements that each rank of the group owns; one number, if each of them owns the whole block.
        group: the ranks that share the block, or sum its gradients.

    Attributes:
        size: elements of the block.
        own: where this rank's shard lies in the flat array.
        is_cut: whether the block is cut at all.
        places: where each array lies in the flat array, by name.
        in_shard: the shard, array by array: (name, place in the shard, number of the first element in that array).

    >>> from parlab import run
    >>> def program(comm):
    ...     layout = FlatLayout({"w": (2, 3), "b": (2,)}, counts=[4, 4], group=comm)
    ...     return layout.places, layout.in_shard
    >>> places, in_shard = run(program, 2).results[1]
    >>> places
    {'w': slice(0, 6, None), 'b': slice(6, 8, None)}
    >>> in_shard  # the last two of w, from its element 4 on, and all of b
    [('w', slice(0, 2, None), 4), ('b', slice(2, 4, None), 0)]
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], counts: Sequence[int], group: Comm) -> None:
        self.shapes, self.counts, self.group = dict(shapes), list(counts), group
        self.is_cut = len(counts) > 1
        rank = group.rank if self.is_cut else 0
        first = sum(counts[:rank])
        self.own = slice(first, first + counts[rank])
        self.places: dict[str, slice] = {}
        self.in_shard: list[tuple[str, slice, int]] = []
        self.size = 0
        for name, shape in shapes.items():
            place = slice(self.size, self.size + math.prod(shape))
            start, stop = max(place.start, self.own.start), min(place.stop, self.own.stop)
            if start < stop:
                self.in_shard.append((name, slice(start - first, stop - first), start - place.start))
            self.places[name] = place
            self.size = place.stop

    def pack(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """The block's arrays, found by name, as one, in memory of its own: `[n]`."""
        parts = [arrays[name] for name in self.places]
        xp = namespace(*parts)
        flat = xp.empty((self.size,), dtype=dtype, device=parts[0].device)  # [n]
        for x, place in zip(parts, self.places.values(), strict=True):
            flat[place] = xp.astype(xp.reshape(x, (-1,)), dtype, copy=False)
        return flat

    def pack_own(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """This rank's shard of them, in memory of its own: `[n_r]`."""
        flat = self.pack(arrays, dtype)
        return namespace(flat).asarray(flat[self.own], copy=True)

    def unpack(self, flat: Array) -> dict[str, Array]:
        """Views of `flat`, by name and in shape."""
        xp = namespace(flat)
        return {name: xp.reshape(flat[place], self.shapes[name]) for name, place in self.places.items()}


def cut_blocks(
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]], groups: Mapping[str, Comm], how: str
) -> dict[str, FlatLayout]:
    """The layout of each block.

    Args:
        shapes: of the arrays of each block, by block and name.
        groups: that share the blocks.
        how: "whole": no block is cut; "apart": each is cut as if it were the only one, so that groups of one size cut
            it at the same places; "together": the elements left over are dealt out over all blocks, which one group
            shares.
    """
    sizes = [sum(math.prod(shape) for shape in of_block.values()) for of_block in shapes.values()]
    ranks = [groups[block].size for block in shapes]
    if how == "whole":
        counts = [[size] for size in sizes]
    elif how == "apart":
        counts = [shard_sizes([size], number)[0] for size, number in zip(sizes, ranks, strict=True)]
    else:
        counts = shard_sizes(sizes, ranks[0])
    return {
        block: FlatLayout(of_block, of_ranks, groups[block])
        for (block, of_block), of_ranks in zip(shapes.items(), counts, strict=True)
    }
