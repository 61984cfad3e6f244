"""Which rank owns which tokens, in each layout.

In causal attention a late token sees more keys than an early one. So equal numbers of tokens are not always equal work.
`contiguous` gives each rank neighbours. `zigzag` cuts 2P chunks and gives rank r the chunks r and 2P − 1 − r, one early
and one late. `striped` gives rank r the tokens r, r + P, r + 2P, ... Where several documents are packed into one
sequence, zigzag deals out each document by itself. `documents` are their starts, and the end: [0, ..., S].

Invariant: each token belongs to one rank, each rank has S/P of them, and a shard's tokens stand in ascending order.

Sources: Liu et al. 2023, "Ring Attention", algorithm 1; striped: Brandon et al. 2023, "Striped Attention", section 3;
zigzag: Llama 3 (2024), section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parlab.arguments import checked_axis, one_of, whole
from parlab.arrays import Array, namespace
from parlab.sequence.arguments import list_like
from parlab.world.units import several

Documents = Sequence[int] | None

LAYOUTS = ("contiguous", "zigzag", "striped")


def positions(S: int, size: int, layout: str = "contiguous", documents: Documents = None) -> list[list[int]]:
    """The token positions of each rank's shard, in its order, for rotary embeddings and masks: S/P for each of P ranks.

    Raises:
        ValueError: S, or a document in zigzag, does not divide; there is no such layout; documents that do not rise
            from 0 to S.

    >>> [positions(8, 2, layout)[0] for layout in LAYOUTS]  # of rank 0
    [[0, 1, 2, 3], [0, 1, 6, 7], [0, 2, 4, 6]]
    >>> positions(12, 2, "zigzag", documents=[0, 8, 12])
    [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    """
    whole("S", S)
    whole("size", size)
    edges = checked_sequence(S, size, layout, documents)
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


def shard(x: Array, size: int, layout: str = "contiguous", axis: int = -2, documents: Documents = None) -> list[Array]:
    """The shards of `x` along its sequence axis, one a rank, each a copy: `[..., S, D]` -> P times `[..., S/P, D]`.

    Rank r gets the tokens at its `positions`, whose errors these are.
    """
    xp = namespace(x)
    owned = positions(x.shape[checked_axis(axis, "axis", x)], size, layout, documents)
    return [xp.take(x, xp.asarray(indices, device=x.device), axis=axis) for indices in owned]


def unshard(shards: Sequence[Array], layout: str = "contiguous", axis: int = -2, documents: Documents = None) -> Array:
    """The whole array again, its tokens in their order: the inverse of `shard`, for shards of one shape."""
    shapes = {tuple(piece.shape) for piece in shards}
    if len(shapes) != 1:
        raise ValueError(f"shards have the shapes {sorted(shapes)}: all must have the same, and there must be one")
    xp, size = namespace(*shards), len(shards)
    owned = positions(size * shards[0].shape[checked_axis(axis, "axis", shards[0])], size, layout, documents)
    order = xp.asarray([position for indices in owned for position in indices], device=shards[0].device)  # [S]
    return xp.take(xp.concat(list(shards), axis=axis), xp.argsort(order), axis=axis)


def checked_sequence(S: int, size: int, layout: str = "contiguous", documents: Documents = None) -> tuple[int, ...]:
    """The starts of the documents, and the end; (0, S) when None. ValueError: as `positions`."""
    one_of("layout", layout, LAYOUTS)
    chunks, zigzag = f"{2 * size} chunks, two for each of {several(size, 'rank')}", layout == "zigzag"
    if size < 1:
        raise ValueError(f"size={size}: there must be at least 1 rank")
    if S < 1:
        raise ValueError(f"sequence length {S}: there must be at least 1 token")
    if S % size:
        shards = f"{size} shards: use a multiple of {size} (zigzag needs {2 * size})"
        raise ValueError(f"sequence length {S} does not divide into {shards}")
    if documents is None and zigzag and S % (2 * size):
        raise ValueError(f"sequence length {S} does not divide into {chunks}: use a multiple of {2 * size} with zigzag")
    if documents is None:
        return 0, S
    edges = edges_of(documents)
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != S or any(start >= stop for start, stop in pairwise(edges)):
        raise ValueError(f"documents={list(edges)}: must rise from 0 to the sequence length {S}, each start once")
    for number, (start, stop) in enumerate(pairwise(edges)):
        if zigzag and (missing := -(stop - start) % (2 * size)):
            found = f"document {number} has {stop - start} tokens, which do not divide into {chunks}"
            pad = f"pad it with {missing} to {stop - start + missing}, or use another layout"
            raise ValueError(f"documents={list(edges)}: {found}: {pad}")
    return edges


def edges_of(documents: Sequence[int]) -> tuple[int, ...]:
    """The documents' edges as whole numbers; ValueError: they are none."""
    return tuple(whole(f"documents[{number}]", edge) for number, edge in enumerate(list_like("documents", documents)))
