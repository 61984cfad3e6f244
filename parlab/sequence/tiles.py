"""The mask between two ranks: which tiles of queries × keys a rank attends, and how far K/V must travel for that.

No S × S mask is made; only the keys on a tile's diagonal get one (`parlab.nn.tiles`). In every layout a rank's queries
see a *tile* of the keys of another rank: in each document either a rectangle or a triangle.

Invariant: over all sources, a rank's tiles have each (query, key) pair that the mask leaves to it exactly once.

Sources: Liu et al. 2023, "Ring Attention", algorithm 1; striped: Brandon et al. 2023, "Striped Attention", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import flag
from parlab.nn.attention import CAUSAL, STRICT
from parlab.sequence.layouts import Documents, checked_sequence


@dataclass(frozen=True)
class Tile:
    """A rectangle of queries × keys that is work: which of a shard's queries and keys, and how they are masked.

    `diagonal` None: every query sees every key. Else query i of these sees keys 0..i + diagonal, and with a `window`
    only the last `window` of them.
    """

    queries: slice
    keys: slice
    diagonal: int | None = None
    window: int | None = None

    @property
    def mask(self) -> str:
        """full, causal (query i sees keys 0..i) or strict (keys 0..i−1)."""
        return {None: "full", CAUSAL: "causal", STRICT: "strict"}[self.diagonal]

    @property
    def pairs(self) -> int:
        """How many (query, key) pairs are unmasked."""
        queries, keys = self.queries.stop - self.queries.start, self.keys.stop - self.keys.start
        if self.diagonal is None:
            return queries * keys

        def triangle(side: int) -> int:
            """1 + 2 + ... + side; 0 of a side below 1."""
            return max(side, 0) * (side + 1) // 2

        def below(d: int) -> int:
            """The pairs of each query i with keys 0..i + d, if there are any, less those behind the last key."""
            return triangle(queries + d) - triangle(d) - triangle(queries + d - keys) + triangle(d - keys)

        return below(self.diagonal) - (0 if self.window is None else below(self.diagonal - self.window))


class ShardedMask(NamedTuple):
    """Which keys the queries of a sequence see, and how its tokens are dealt out to ranks; made by `sharded_mask`."""

    size: int  # P, the ranks
    length: int  # S/P, the tokens of each
    causal: bool
    layout: str
    documents: tuple[int, ...] | None  # their starts, and the end; None: one document


def sharded_mask(
    size: int, length: int, causal: bool = False, layout: str = "contiguous", documents: Documents = None
) -> ShardedMask:
    """The mask of a sequence on `size` ranks of `length` tokens each; the other arguments as `ring_attention`.

    Raises:
        ValueError: as `positions`.
    """
    flag("causal", causal)
    edges = checked_sequence(size * length, size, layout, documents)
    return ShardedMask(size, length, causal, layout, None if documents is None else edges)


@lru_cache(maxsize=4096)
def tiles_between(rank: int, source: int, mask: ShardedMask) -> Sequence[Tile]:
    """The tiles that `rank` attends of the K/V of rank `source`: at most one a document.

    >>> tiles_between(1, 0, sharded_mask(2, 6, causal=True, documents=[0, 2, 7, 12]))  # the second document is cut
    (Tile(queries=slice(0, 1, None), keys=slice(2, 6, None), diagonal=None, window=None),)
    """
    found = []
    for start, stop in pairwise(mask.documents or (0, mask.size * mask.length)):
        queries, keys = _part(rank, mask, start, stop), _part(source, mask, start, stop)
        tile = _causal(queries, keys, rank, source, mask.layout) if mask.causal else Tile(queries, keys)
        if tile is not None and tile.pairs:
            found.append(tile)
    return tuple(found)


def _part(rank: int, mask: ShardedMask, start: int, stop: int) -> slice:
    """Where the tokens start..stop − 1, one document, stand in the shard of `rank`."""
    size, length, edges = mask.size, mask.length, (start, stop)
    if mask.layout == "contiguous":
        return slice(*(min(max(edge - rank * length, 0), length) for edge in edges))
    if mask.layout == "zigzag":  # each rank has as much of it
        return slice(start // size, stop // size)
    return slice(*((edge - rank + size - 1) // size for edge in edges))


def _causal(queries: slice, keys: slice, rank: int, source: int, layout: str) -> Tile | None:
    """The tile of these queries and keys, both of one document, in causal attention."""
    if layout == "striped":  # query i is token i·P + rank of the sequence, key i is token i·P + source
        return Tile(queries, keys, queries.start - keys.start + (CAUSAL if source <= rank else STRICT))
    if source == rank:
        return Tile(queries, keys, CAUSAL)  # a shard's tokens stand in their order
    if layout == "zigzag":  # earlier: only its early chunk lies before ours; later: both before our late one
        half = (keys.stop - keys.start) // 2
        if source < rank:
            return Tile(queries, slice(keys.start, keys.start + half))
        return Tile(slice(queries.start + half, queries.stop), keys)
    return Tile(queries, keys) if source < rank else None


def readers(mask: ShardedMask) -> list[Sequence[int]]:
    """The ranks that need the K/V of each source: all; with documents those whose queries see some of its keys."""
    ranks = range(mask.size)
    if mask.documents is None:
        return [ranks for _ in ranks]
    return [[rank for rank in ranks if tiles_between(rank, source, mask)] for source in ranks]


def kv_hops(mask: ShardedMask) -> list[int]:
    """How many hops the K/V of each rank make around the ring: to the last of its `readers`.

    >>> kv_hops(sharded_mask(4, 3, causal=True, documents=[0, 2, 8, 12]))  # ranks 1 and 2 see token 2, on rank 0
    [2, 1, 1, 0]
    """
    return [max((rank - source) % mask.size for rank in ranks) for source, ranks in enumerate(readers(mask))]
