"""The mask between two ranks: which tiles of queries × keys a rank attends, and how far K/V must travel for that.

No S × S mask is made; only the keys on a tile's diagonal get one (`parlab.nn.tiles`). In every layout a rank's queries
see a *tile* of the keys of another rank: in each document either a rectangle or a triangle.

Sources: Liu et al. 2023, "Ring Attention", algorithm 1; striped: Brandon et al. 2023, "Striped Attention", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import flag, one_of
from parlab.nn.attention import CAUSAL, STRICT
from parlab.sequence.layouts import LAYOUTS, Documents, checked_documents, edges_of


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
            return max(side, 0) * (side + 1) // 2

        def below(d: int) -> int:
            return triangle(queries + d) - triangle(d) - triangle(queries + d - keys) + triangle(d - keys)

        return below(self.diagonal) - (0 if self.window is None else below(self.diagonal - self.window))


class HowDealt(NamedTuple):
    """How a sequence is dealt out among the ranks, and what its tokens see; made by `how_dealt`."""

    causal: bool
    layout: str
    documents: tuple[int, ...] | None


def how_dealt(causal: bool = False, layout: str = "contiguous", documents: Documents = None) -> HowDealt:
    """These arguments of `ring_attention`, checked as far as they can be without the sequence's length."""
    flag("causal", causal)
    one_of("layout", layout, LAYOUTS)
    return HowDealt(causal, layout, None if documents is None else edges_of(documents))


@lru_cache(maxsize=4096)
def tiles_between(rank: int, source: int, size: int, length: int, dealt: HowDealt) -> Sequence[Tile]:
    """The tiles that `rank` of `size` attends of the K/V of rank `source`, `length` tokens: at most one a document.

    >>> tiles_between(1, 0, 2, 6, how_dealt(causal=True, documents=[0, 2, 7, 12]))  # the second is cut
    (Tile(queries=slice(0, 1, None), keys=slice(2, 6, None), diagonal=None, window=None),)
    """
    found = []
    for start, stop in pairwise(checked_documents(dealt.documents, length * size, size, dealt.layout)):
        queries, keys = (_part(owner, size, length, dealt.layout, start, stop) for owner in (rank, source))
        tile = _causal(queries, keys, rank, source, dealt.layout) if dealt.causal else Tile(queries, keys)
        if tile is not None and tile.pairs:
            found.append(tile)
    return tuple(found)


def _part(rank: int, size: int, length: int, layout: str, start: int, stop: int) -> slice:
    """Where the tokens start..stop − 1, one document, stand in the shard of `rank`."""
    if layout == "contiguous":
        return slice(*(min(max(edge - rank * length, 0), length) for edge in (start, stop)))
    if layout == "zigzag":  # each rank has as much of it
        return slice(start // size, stop // size)
    return slice(*((edge - rank + size - 1) // size for edge in (start, stop)))


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


def readers(size: int, length: int, dealt: HowDealt) -> list[list[bool]]:
    """Which ranks need the K/V of each source: all of them; with documents those whose queries see some of its keys.

    `readers(...)[source][rank]`; every rank computes the same.
    """
    if dealt.documents is None:
        return [[True] * size] * size
    return [[bool(tiles_between(rank, source, size, length, dealt)) for rank in range(size)] for source in range(size)]


def journeys(size: int, length: int, dealt: HowDealt) -> list[int]:
    """How many hops the K/V of each rank make: to the last of its `readers`, which take the same arguments.

    >>> journeys(4, 3, how_dealt(causal=True, documents=[0, 2, 8, 12]))  # token 2, on rank 0, is seen by ranks 1 and 2
    [2, 1, 1, 0]
    """
    found = readers(size, length, dealt)
    return [max(hop for hop in range(size) if found[s][(s + hop) % size]) for s in range(size)]
