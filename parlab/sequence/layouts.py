"""Which rank owns which tokens, and what the queries of one see of the keys of another.

With causal attention a late token has more keys to look at than an early one, so equal shares of tokens need not be
equal shares of work. `contiguous` hands out neighbours; `zigzag` gives rank r the chunks r and 2P − 1 − r of 2P, one
early and one late; `striped` deals tokens like cards. Where several documents are packed into one sequence, zigzag
deals out each of them by itself; `documents` are their starts, and the end: [0, ..., S].

A mask is never made. In all three layouts a rank's queries see a *tile* of the arriving keys: in each document either a
rectangle or a triangle. This file says which.

Sources: Liu et al. 2023, "Ring Attention", algorithm 1; striped: Brandon et al. 2023, "Striped Attention", section 3;
zigzag: Llama 3 (2024), section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from parlab.arguments import checked, checked_axis, one_of, whole
from parlab.arrays import Array, namespace
from parlab.nn.attention import CAUSAL, STRICT
from parlab.sequence.arguments import RULES

Documents = Sequence[int] | None

LAYOUTS = ("contiguous", "zigzag", "striped")


@checked(RULES)
def positions(S: int, size: int, layout: str = "contiguous", documents: Documents = None) -> list[list[int]]:
    """The token positions of each rank's shard, in its order, for rotary embeddings and masks: S/P for each of P ranks.
    ValueError: S, or a document in zigzag, does not divide; no such layout, or no such documents.

    >>> [positions(8, 2, layout)[0] for layout in LAYOUTS]  # of rank 0
    [[0, 1, 2, 3], [0, 1, 6, 7], [0, 2, 4, 6]]
    >>> positions(12, 2, "zigzag", documents=[0, 8, 12])
    [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    """
    edges = checked_documents(documents, S, size, layout)
    if layout == "striped":
        return [list(range(rank, S, size)) for rank in range(size)]
    if layout == "contiguous":
        return [list(range(rank * S // size, (rank + 1) * S // size)) for rank in range(size)]
    owned: list[list[int]] = [[] for _ in range(size)]
    for start, stop in pairwise(edges):
        chunk = (stop - start) // (2 * size)
        for rank, mine in enumerate(owned):
            mine += range(start + rank * chunk, start + (rank + 1) * chunk)
            mine += range(stop - (rank + 1) * chunk, stop - rank * chunk)
    return owned


@checked(RULES)
def shard(x: Array, size: int, layout: str = "contiguous", axis: int = -2, documents: Documents = None) -> list[Array]:
    """The shards of `x` along its sequence axis, one a rank, each a copy: `[..., S, D]` -> P times `[..., S/P, D]`; of
    rank r the tokens at its `positions`.
    """
    xp = namespace(x)
    owned = positions(x.shape[checked_axis(axis, "axis", x)], size, layout, documents)
    return [xp.take(x, xp.asarray(indices, device=x.device), axis=axis) for indices in owned]


@checked(RULES)
def unshard(shards: Sequence[Array], layout: str = "contiguous", axis: int = -2, documents: Documents = None) -> Array:
    """The whole array again, its tokens in their order: the inverse of `shard`, for shards of one shape."""
    shapes = {tuple(piece.shape) for piece in shards}
    if len(shapes) != 1:
        raise ValueError(f"shards have the shapes {sorted(shapes)}: all must have the same, and there must be one")
    xp, size = namespace(*shards), len(shards)
    owned = positions(size * shards[0].shape[checked_axis(axis, "axis", shards[0])], size, layout, documents)
    order = xp.asarray([position for indices in owned for position in indices], device=shards[0].device)  # [S]
    return xp.take(xp.concat(list(shards), axis=axis), xp.argsort(order), axis=axis)


def checked_documents(documents: Documents, S: int, size: int, layout: str = "contiguous") -> tuple[int, ...]:
    """The starts of the documents, and the end; (0, S) when None. ValueError: as `positions`."""
    one_of("layout", layout, LAYOUTS)
    chunks, zigzag = f"{2 * size} chunks, two for each of {size} ranks", layout == "zigzag"
    if size < 1:
        raise ValueError(f"size={size}: there must be at least 1 rank")
    if S < 1:
        raise ValueError(f"sequence length {S}: there must be at least 1 token")
    if S % size:
        shards = f"{size} shards: use a multiple of {size} (zigzag needs {2 * size})"
        raise ValueError(f"sequence length {S} does not divide into {shards}")
    if documents is None:
        if zigzag and S % (2 * size):
            found = f"sequence length {S} does not divide into {chunks}"
            raise ValueError(f"{found}: use a multiple of {2 * size} with zigzag")
        return 0, S
    edges = tuple(whole(f"documents[{number}]", edge) for number, edge in enumerate(documents))
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != S or any(start >= stop for start, stop in pairwise(edges)):
        raise ValueError(f"documents={list(edges)}: must rise from 0 to the sequence length {S}, each start once")
    for number, (start, stop) in enumerate(pairwise(edges)):
        if zigzag and (missing := -(stop - start) % (2 * size)):
            found = f"document {number} has {stop - start} tokens, which do not divide into {chunks}"
            pad = f"pad it with {missing} to {stop - start + missing}, or use another layout"
            raise ValueError(f"documents={list(edges)}: {found}: {pad}")
    return edges


@dataclass(frozen=True)
class RingStep:
    """One hop: what a rank holds goes to `send_to`; what comes from `recv_from` is the K/V of rank `kv_source`."""

    step: int
    send_to: int
    recv_from: int
    kv_source: int


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


class RingSchedule:
    """What rank `rank` of `size` does: `size − 1` hops, for its own K/V need not travel to it.

    >>> [step.kv_source for step in RingSchedule(rank=0, size=4).steps]
    [3, 2, 1]
    >>> [RingSchedule(rank=2, size=4).mask(source) for source in range(4)]
    ['full', 'full', 'causal', 'none']
    """

    @checked(RULES)
    def __init__(self, rank: int, size: int):
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank}: a ring of {size} has ranks 0 to {size - 1}")
        self.rank, self.size = rank, size
        right, left = (rank + 1) % size, (rank - 1) % size
        self.steps = [RingStep(step, right, left, kv_source=(rank - step - 1) % size) for step in range(size - 1)]

    def tiles(
        self, source: int, length: int, layout: str = "contiguous", *, causal: bool = True, documents: Documents = None
    ) -> Sequence[Tile]:
        """The work of this rank on the K/V of rank `source`, `length` tokens: at most one tile a document.

        >>> RingSchedule(1, 2).tiles(0, 6, documents=[0, 2, 7, 12])  # the second document lies on both ranks
        (Tile(queries=slice(0, 1, None), keys=slice(2, 6, None), diagonal=None, window=None),)
        """
        if not 0 <= source < self.size:
            raise ValueError(f"source={source}: a ring of {self.size} has ranks 0 to {self.size - 1}")
        edges = None if documents is None else tuple(documents)
        return _tiles(self.rank, source, self.size, length, layout, causal, edges)

    def tile(self, source: int, length: int, layout: str = "contiguous", *, causal: bool = True) -> Tile | None:
        """As `tiles`, of one document; None when no query sees any of the K/V."""
        return next(iter(self.tiles(source, length, layout, causal=causal)), None)

    def mask(self, source: int, layout: str = "contiguous", *, causal: bool = True) -> str:
        """full, causal, strict or none: the mask on what `tile` selects (in zigzag, half of the queries or keys)."""
        tile = self.tile(source, 2, layout, causal=causal)
        return "none" if tile is None else tile.mask


@lru_cache(maxsize=4096)
def _tiles(
    rank: int, source: int, size: int, length: int, layout: str, causal: bool, documents: tuple[int, ...] | None
) -> tuple[Tile, ...]:
    """What the queries of `rank` see of the keys of `source`, document by document."""
    found = []
    for start, stop in pairwise(checked_documents(documents, length * size, size, layout)):
        queries, keys = (_part(owner, size, length, layout, start, stop) for owner in (rank, source))
        tile = _causal(queries, keys, rank, source, layout) if causal else Tile(queries, keys)
        if tile is not None and tile.pairs:
            found.append(tile)
    return tuple(found)


def _part(rank: int, size: int, length: int, layout: str, start: int, stop: int) -> slice:
    """Where in the shard of `rank` the tokens start..stop − 1 stand, which are one document."""
    if layout == "contiguous":
        return slice(*(min(max(edge - rank * length, 0), length) for edge in (start, stop)))
    if layout == "zigzag":  # each rank has as much of it
        return slice(start // size, stop // size)
    return slice(*((edge - rank + size - 1) // size for edge in (start, stop)))


def _causal(queries: slice, keys: slice, rank: int, source: int, layout: str) -> Tile | None:
    """What these queries see of these keys, both of one document, in causal attention."""
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


def readers(
    size: int, length: int, layout: str = "contiguous", *, causal: bool = False, documents: Documents = None
) -> list[list[bool]]:
    """Which ranks need the K/V of each source: all of them; with documents those whose queries see some of its keys.

    `readers(...)[source][rank]`; every rank computes the same.
    """
    one_of("layout", layout, LAYOUTS)
    if documents is None:
        return [[True] * size] * size
    edges = tuple(documents)
    return [[bool(_tiles(r, s, size, length, layout, causal, edges)) for r in range(size)] for s in range(size)]


def journeys(size: int, length: int, layout: str = "contiguous", **dealt: Any) -> list[int]:
    """How many hops the K/V of each rank make, to the last of its `readers`, whose arguments these are.

    >>> journeys(4, 3, causal=True, documents=(0, 2, 8, 12))  # token 2, on rank 0, is seen by ranks 1 and 2
    [2, 1, 1, 0]
    """
    found = readers(size, length, layout, **dealt)
    return [max(hop for hop in range(size) if found[s][(s + hop) % size]) for s in range(size)]
