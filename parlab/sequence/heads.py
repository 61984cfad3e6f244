"""From shards of the sequence to heads over all of it, and back: the two all-to-alls of Ulysses.

Shapes: `B` batch, `S` sequence, `H` query heads, `G` key/value heads, `D` head size, `P` ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlab.arrays import Array, namespace
from parlab.sequence.attend import ALL, Heads, add_to, exchange
from parlab.world import Comm
from parlab.world.collectives import block_sizes, blocks_of

Places = list[tuple[slice, slice]]  # where tokens stand in a shard, and where in the whole


@dataclass(frozen=True)
class HeadShare:
    """The heads of one rank: its query heads, the K/V heads that they read, and, counted from the first of each, which
    of the one read which of the other (`attend`).
    """

    queries: slice
    keys: slice
    pairs: Heads


def head_shares(H: int, G: int, size: int) -> list[HeadShare]:
    """Each rank's heads: H/P query heads, the first (H mod P) ranks one more, and the K/V heads that those read.

    Raises:
        ValueError: more ranks than query heads.

    >>> [(share.queries, share.keys) for share in head_shares(H=6, G=2, size=2)]
    [(slice(0, 3, None), slice(0, 1, None)), (slice(3, 6, None), slice(1, 2, None))]
    >>> head_shares(H=4, G=2, size=3)[0].pairs  # 2 query heads of K/V head 0
    [(slice(None, None, None), slice(None, None, None))]
    """
    if size > H:
        raise ValueError(f"{size} ranks share {H} query heads: a rank needs at least one, so use at most {H} ranks")
    shares, group = [], H // G
    for queries in blocks_of(block_sizes(H, size)):
        keys = slice(queries.start // group, (queries.stop - 1) // group + 1)
        reads = [
            slice(max(g * group, queries.start) - queries.start, min((g + 1) * group, queries.stop) - queries.start)
            for g in range(keys.start, keys.stop)
        ]
        even = len({part.stop - part.start for part in reads}) == 1
        pairs = ALL if even else [(part, slice(number, number + 1)) for number, part in enumerate(reads)]
        shares.append(HeadShare(queries, keys, pairs))
    return shares


def places(size: int, length: int, layout: str = "contiguous") -> list[Places]:
    """Where the tokens of each rank's shard stand in the whole, when that is put in order again."""
    if layout == "contiguous":
        return [[(slice(0, length), slice(rank * length, (rank + 1) * length))] for rank in range(size)]
    half, chunks = length // 2, 2 * size
    early, late = slice(0, half), slice(half, length)
    in_whole = blocks_of([half] * chunks)
    return [[(early, in_whole[rank]), (late, in_whole[chunks - 1 - rank])] for rank in range(size)]


def to_heads(
    comm: Comm, shares: list[HeadShare], of_queries: Sequence[Array], of_keys: Sequence[Array], layout: str, label: str
) -> list[Array]:
    """`[B, heads, S/P, ...]`, all heads of a shard -> `[B, heads/P, S, ...]`, a few heads of all tokens in their order.

    Args:
        comm: the group.
        shares: `head_shares`.
        of_queries: arrays of query heads.
        of_keys: arrays of K/V heads.
        layout: contiguous or zigzag: how the tokens were dealt out.
        label: see `exchange`.
    """

    def give(dst: int) -> list[Array]:
        parts = [x[:, shares[dst].queries, ...] for x in of_queries]
        return parts + [x[:, shares[dst].keys, ...] for x in of_keys]

    def take(src: int, pieces: list[Array]) -> None:
        for x, piece in zip(whole, pieces, strict=True):
            for here, there in in_order[src]:
                x[:, :, there, ...] = piece[:, :, here, ...]

    form = give(comm.rank)
    xp, length = namespace(*form), form[0].shape[2]
    in_order = places(comm.size, length, layout)
    sizes = [(*x.shape[:2], length * comm.size, *x.shape[3:]) for x in form]
    whole = [xp.empty(size, dtype=x.dtype, device=x.device) for size, x in zip(sizes, form, strict=True)]
    comm.hold("heads", *whole)
    exchange(comm, give, lambda src: form, take, label)
    return whole


def to_sequence(
    comm: Comm, shares: list[HeadShare], of_queries: Sequence[Array], of_keys: Sequence[Array], layout: str, label: str
) -> list[Array]:
    """`[B, heads/P, S, ...]` -> `[B, heads, S/P, ...]`: the way back. What comes for a K/V head from several ranks, its
    gradients, is summed. Arguments as `to_heads`.
    """
    every = [*of_queries, *of_keys]
    xp, length = namespace(*every), every[0].shape[2] // comm.size
    in_order = places(comm.size, length, layout)
    numbers = [shares[-1].queries.stop] * len(of_queries) + [shares[-1].keys.stop] * len(of_keys)
    sizes = [(x.shape[0], number, length, *x.shape[3:]) for x, number in zip(every, numbers, strict=True)]
    mine = [xp.zeros(size, dtype=x.dtype, device=x.device) for size, x in zip(sizes, every, strict=True)]
    comm.hold("heads", *mine)

    def give(dst: int) -> list[list[Array]]:
        return [[x[:, :, there, ...] for _, there in in_order[dst]] for x in every]

    def form(src: int) -> list[list[Array]]:
        heads = [shares[src].queries] * len(of_queries) + [shares[src].keys] * len(of_keys)
        return [[x[:, h, here, ...] for here, _ in in_order[src]] for x, h in zip(mine, heads, strict=True)]

    def take(src: int, pieces: list[list[Array]]) -> None:
        for rows, parts in zip(form(src), pieces, strict=True):
            add_to(rows, parts)  # views of `mine`; a query head comes once, and finds 0 there

    exchange(comm, give, form, take, label)
    return mine
