"""Ulysses: an all-to-all turns shards of the sequence into heads, each rank attends its heads over all of it, and back.

USP, unified sequence parallelism, does so inside groups of ranks, with a ring of such groups outside: the all-to-alls
stay where links are fast, and the ring takes as many ranks as heads cannot.

Sources: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1; Fang, Zhao 2024, "USP: A Unified Sequence Parallelism
Approach for Long Context Generative AI", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from parlab.arguments import checked
from parlab.arrays import Array, namespace
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import ALL, Call, Heads, Scale, add_to, backward_of, exchange, grid
from parlab.sequence.costs import AttentionShape, RankCost, checked_group
from parlab.sequence.layouts import Documents, positions
from parlab.sequence.ring import attend_around, ring_bytes
from parlab.world import Comm
from parlab.world.collectives import block_sizes, blocks_of


@checked(RULES)
def ulysses_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, causal: bool = False, documents: Documents = None, scale: Scale = None
) -> tuple[Array, Array]:
    """Attention over the whole sequence, some heads on every rank, from this rank's contiguous shards; arguments as
    `ring_attention`.

    Where P does not divide H the first ranks attend one head more: so every P up to H is of use, and the slowest rank
    has ⌈H/P⌉ heads. A K/V head goes to each rank that has one of its query heads, and to no other (`head_shares`); its
    gradients are summed at home. Backward q, k and v become heads once more; the authors' code keeps them from before.
    """
    return _in_heads(Call("Ulysses", comm, q, k, v, scale, causal=causal, documents=documents), comm, None)


ulysses_attention_backward = backward_of(ulysses_attention)


@checked(RULES)
def usp_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ulysses: int,
    causal: bool = False,
    layout: str = "contiguous",
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and `ulysses`:
    how many consecutive ranks (U) share the heads. It divides P; U = P is Ulysses, U = 1 the ring.

    Contiguous or zigzag: a group's tokens, in order, are the same layout's shard for a ring of P/U.
    """
    if layout == "striped":
        raise ValueError("layout='striped': a group's tokens would be no stripe; use contiguous or zigzag")
    call = Call("USP", comm, q, k, v, scale, causal=causal, layout=layout, ulysses=ulysses)
    return _in_heads(call, *grid(comm, "ulysses", ulysses))


usp_attention_backward = backward_of(usp_attention)


def _in_heads(call: Call, group: Comm, ring: Comm | None) -> Any:
    """All-to-all in the group, attention around the ring, if there is one, and all-to-all back."""
    shares = head_shares(call.q.shape[1], call.k.shape[1], group.size)
    rows, (k, v) = all_to_all(group, call, call.rows, [call.k, call.v], shares)  # [B, H/U or G/U, U·S/P, ...]
    sums, gradients = attend_around(call, ring, rows, k, v, shares[group.rank].pairs)
    del rows, k, v
    return call.results(*all_to_all(group, call, sums, gradients or (), shares, home=True))


class HeadShare(NamedTuple):
    """The heads of one rank: its query heads, and the K/V heads that they read."""

    queries: slice
    keys: slice
    pairs: Heads  # counted from the first of each: which of the one read which of the other


def head_shares(H: int, G: int, size: int) -> list[HeadShare]:
    """Each rank's heads: H/P query heads, the first (H mod P) ranks one more; ValueError: more ranks than heads."""
    if size > H:
        raise ValueError(f"{size} ranks share {H} query heads: a rank needs at least one, so use at most {H} ranks")
    shares, group = [], H // G
    for queries in blocks_of(block_sizes(H, size)):
        first, last = queries.start, queries.stop
        keys = slice(first // group, (last - 1) // group + 1)
        edges = [first, *range((keys.start + 1) * group, last, group), last]  # between the readers of one and the next
        reads = [slice(start - first, stop - first) for start, stop in pairwise(edges)]
        even = len({part.stop - part.start for part in reads}) == 1
        pairs = ALL if even else [(part, slice(number, number + 1)) for number, part in enumerate(reads)]
        shares.append(HeadShare(queries, keys, pairs))
    return shares


def places(size: int, length: int, layout: str) -> list[list[tuple[slice, slice]]]:
    """Where the tokens of each rank stand in its shard, and where in the whole, when that is put in order again."""
    chunks = 2 if layout == "zigzag" else 1  # a rank
    where = blocks_of([length // chunks] * chunks * size)
    dealt = positions(chunks * size, size, layout)
    return [[(where[number], where[chunk]) for number, chunk in enumerate(owned)] for owned in dealt]


def all_to_all(
    comm: Comm, call: Call, queries: Sequence[Array], keys: Sequence[Array], shares: list[HeadShare], home: bool = False
) -> tuple[list[Array], list[Array]]:
    """All heads of a shard, `[B, heads, S/P, ...]` -> a few heads of all tokens in their order, `[B, heads/P, S, ...]`,
    or `home` again, where what comes for a K/V head from several ranks is summed.
    """
    arrays, ranks = [*queries, *keys], range(comm.size)
    heads = [[share.queries for share in shares]] * len(queries) + [[share.keys for share in shares]] * len(keys)
    length = arrays[0].shape[2] // (comm.size if home else 1)  # of a shard
    tokens = places(comm.size, length, call.dealt["layout"])

    def by_heads(shards: Sequence[Array], rank: int) -> list[Array]:
        return [x[:, h[rank], here, ...] for x, h in zip(shards, heads, strict=True) for here, _ in tokens[rank]]

    def by_tokens(wholes: Sequence[Array], rank: int) -> list[Array]:
        return [x[:, :, there, ...] for x in wholes for _, there in tokens[rank]]

    made = []
    for x, h in zip(arrays, heads, strict=True):
        own = h[comm.rank]
        number, rows = (h[-1].stop, length) if home else (own.stop - own.start, length * comm.size)
        shape = x.shape[0], number, rows, *x.shape[3:]
        made.append(namespace(x).zeros(shape, dtype=x.dtype, device=x.device))
    comm.hold("heads", *made)
    source, target = (by_tokens, by_heads) if home else (by_heads, by_tokens)
    gives, forms = [source(arrays, rank) for rank in ranks], [target(made, rank) for rank in ranks]
    for src, pieces in exchange(comm, gives, forms, call.label):
        add_to(forms[src], pieces)  # a query head comes once, and finds 0 there
        del pieces  # before the next ones come
    return made[: len(queries)], made[len(queries) :]


@checked(RULES)
def ulysses_cost(shape: AttentionShape, size: int, rank: int = 0, *, backward: bool = False) -> RankCost:
    """What `rank` sends and holds: two all-to-alls of P − 1 messages each. Forward, where P divides H = G: q, k, v and
    out, 4·S·E·(P − 1)/P² elements (E = H·D), and lse. Backward dout, q, k, v, lse and delta go, and dq, dk, dv come.
    """
    return usp_cost(shape, size, rank, ulysses=size, backward=backward)


@checked(RULES)
def usp_cost(shape: AttentionShape, size: int, rank: int = 0, *, ulysses: int, backward: bool = False) -> RankCost:
    """What `rank` sends and holds: Ulysses on U ranks with their part of the sequence, a ring of P/U with its heads.

    >>> shape = AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4)
    >>> usp_cost(shape, 4, ulysses=1)[:2], usp_cost(shape, 4, ulysses=2)[:2]
    ((3, 3145728), (3, 2101248))
    """
    c, place = shape.shard(size, rank), rank % checked_group("ulysses", ulysses, size)
    tokens = c * ulysses  # of the group
    shares = [(share.queries, share.keys) for share in head_shares(shape.H, shape.G, ulysses)]
    heads = [{"H": queries.stop - queries.start, "G": keys.stop - keys.start} for queries, keys in shares]
    every, whole = [shape.token(backward=backward, **of_rank) for of_rank in heads], shape.token(backward=backward)
    mine, others = every[place], every[:place] + every[place + 1 :]
    ring = ring_bytes(mine, tokens, [size // ulysses - 1] * (size // ulysses), backward=backward)
    there = mine.rows + mine.kv
    coming = tokens * there + (c * there if others else 0)
    attending = tokens * (there - mine.own) + ring.held
    home = tokens * mine.result + c * (whole.result + max((token.result for token in others), default=0))
    nbytes = c * (sum(token.rows + token.kv for token in others) + len(others) * mine.result)
    return RankCost(2 * len(others) + ring.messages, nbytes + ring.nbytes, c * whole.own + max(coming, attending, home))
