"""The cost of ring attention: messages, bytes and held bytes of each rank, around the whole ring or over documents.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", section 3.
"""

from __future__ import annotations

from parlab.sequence.costs import AttentionShape, RankCost, Token
from parlab.sequence.layouts import Documents
from parlab.sequence.ring_schedule import dealt, journeys


def ring_cost(
    shape: AttentionShape,
    size: int,
    rank: int = 0,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    backward: bool = False,
) -> RankCost:
    """The messages, bytes and held bytes of `rank`; causal, layout and documents as `ring_attention`.

    >>> shape = AttentionShape(S=12, H=1, G=1, D=1, itemsize=8)
    >>> ring_cost(shape, 3)[:2]  # two hops of 4 tokens, 16 bytes each
    (2, 128)
    >>> [ring_cost(shape, 3, rank, causal=True, documents=[0, 6, 12])[:2] for rank in range(3)]  # cut inside rank 1
    [(1, 64), (1, 64), (0, 0)]
    """
    deal = dealt(causal, layout, documents)
    c, token = shape.shard(size, rank), shape.token(backward=backward)
    if documents is not None:
        return packed_ring_cost(token, c, journeys(size, c, deal), rank, backward=backward)
    return plain_ring_cost(token, c, size, backward=backward)


def plain_ring_cost(token: Token, c: int, size: int, *, backward: bool = False) -> RankCost:
    """`ring_cost` of shards of c tokens without documents: P − 1 hops of K/V, and backward P of dK/dV.

    Beside its own arrays and sums a rank holds two pairs of K/V: one is attended, one arrives. Backward it holds two
    pairs of dK/dV as well: one is added to, one arrives.
    """
    hops, home = size - 1, size if backward and size > 1 else 0
    held = token.own + token.sums + min(hops, 2) * token.kv + min(size, 2) * token.dkv
    return RankCost(hops + home, c * (hops * token.kv + home * token.dkv), c * held)


def packed_ring_cost(token: Token, c: int, hops: list[int], rank: int, *, backward: bool) -> RankCost:
    """`ring_cost` of shards of c tokens, where the K/V of rank s make `hops[s]` hops, and their dK/dV one more."""
    size = len(hops)
    sources = [(rank - step) % size for step in range(size)]  # the owner of the K/V that may arrive at each step
    here = [hops[source] >= step for step, source in enumerate(sources)]
    goes = [hops[source] > step for step, source in enumerate(sources)]
    comes = [*here[1:], False]
    leaves = [here[step] and hops[source] > 0 for step, source in enumerate(sources)]  # dK/dV
    home = [step >= max(hops[rank], 1) for step in range(size)]  # our own dK/dV: arriving, or never gone
    kv = [(step > 0 and here[step]) + comes[step] for step in range(size)]  # attended, if not our own, and arriving
    dkv = [here[step] + comes[step] + home[step] for step in range(size)]  # added to, arriving, and our own
    most = max(dkv[step] * token.dkv + kv[step] * token.kv for step in range(size))
    back = sum(leaves) if backward else 0
    nbytes = sum(goes) * token.kv + back * token.dkv
    return RankCost(sum(goes) + back, c * nbytes, c * (token.own + token.sums + most))
