"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and tiles merged by their log-sum-exp.
"""

from __future__ import annotations

from typing import Any

from parlab.arguments import checked
from parlab.arrays import Array
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import (
    GRADIENTS,
    SUMS,
    Scale,
    attend,
    attend_backward,
    begin,
    begin_backward,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
)
from parlab.sequence.costs import AttentionShape, RankCost, Token
from parlab.sequence.layouts import Documents, RingSchedule, journeys
from parlab.sequence.packed_ring import packed_ring_attention, packed_ring_attention_backward
from parlab.sequence.travel import Homeward, travel
from parlab.world import Comm


@checked(RULES)
def ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it. Every rank of `comm` calls it.

    Args:
        q: `[B, H, S/P, D]`, this rank's queries.
        k, v: `[B, G, S/P, D]`, where G divides H.
        causal: a token sees itself and earlier ones only.
        layout: contiguous, zigzag or striped: how the sequence was dealt out (`parlab.sequence.shard`).
        documents: the starts of the packed documents, and the end, [0, ..., S]: no token sees another document's. K/V
            then travel no further than to the last rank that needs them (`journeys`).
        scale: 1/√D when None.

    Returns:
        out `[B, H, S/P, D]` in q's dtype and lse `[B, H, S/P]` in float32 or wider.

    Raises:
        ValueError: shapes, a layout or documents that do not fit, before any message.
        MismatchError: another rank was told something else.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4, "zigzag"))
    >>> out, lse = run(ring_attention, 4, pieces, pieces, pieces, causal=True, layout="zigzag").results[0]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 0 owns tokens 0 and 7, which see 1 and 8 keys
    [1, 8]
    """
    how: Any = {"causal": causal, "layout": layout, "scale": scale}
    if documents is not None:
        return packed_ring_attention(comm, q, k, v, documents=documents, **how)
    label = begin(comm, "ring", q, k, v, **how)
    out, lse = no_keys_yet(comm, q)
    ring = RingSchedule(comm.rank, comm.size)
    for source, kv in travel(comm, (k, v), label):  # twice [B, G, S/P, D], the K/V of rank `source`
        tiles = ring.tiles(source, k.shape[2], layout, causal=causal)
        attend(comm, tiles, q, kv, (out, lse), scale=scale)  # merged by their lse
        del kv  # no longer held when the next hop begins
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


@checked(RULES)
def ring_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards. Every rank of `comm` calls it.

    The K/V go around once more. Their gradients travel behind them, and need one hop more than the K/V to come home:
    (P − 1) + P = 2P − 1 hops. Sums are made, and travel, in float32 or wider.

    Args:
        dout: `[B, H, S/P, D]`, the gradient of a loss with respect to `out`.
        q, k, v: as given to the forward, and so are causal, layout, documents and scale.
        out, lse: as the forward returned them.

    Returns:
        dq `[B, H, S/P, D]`, dk and dv `[B, G, S/P, D]`, in the dtypes of q, k and v.

    Raises:
        ValueError, MismatchError: as the forward.
    """
    how: Any = {"causal": causal, "layout": layout, "scale": scale}
    if documents is not None:
        return packed_ring_attention_backward(comm, dout, q, k, v, out, lse, documents=documents, **how)
    label, delta = begin_backward(comm, "ring", dout, q, k, v, out, lse, **how)
    dq = no_gradient_yet(comm, q)
    ring, home = RingSchedule(comm.rank, comm.size), Homeward(comm, label)
    for source, kv in travel(comm, (k, v), label):  # twice [B, G, S/P, D], the K/V of rank `source`
        tiles = ring.tiles(source, k.shape[2], layout, causal=causal)
        home.add(attend_backward(comm, tiles, dout, q, kv, lse, delta, dq, scale=scale))  # our share of its dK/dV
        del kv  # no longer held when the next hop begins
    dk, dv = home.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


@checked(RULES)
def ring_cost(shape: AttentionShape, size: int, rank: int = 0, *, backward: bool = False, **dealt: Any) -> RankCost:
    """What `rank` sends and holds: K/V of rank s make `journeys[s]` hops, dK/dV one more. It holds what it attends
    and what arrives. `dealt`: causal, layout and documents, as `ring_attention`.

    >>> shape = AttentionShape(S=12, H=1, G=1, D=1, itemsize=8)
    >>> [ring_cost(shape, 3, rank, causal=True, documents=[0, 6, 12])[:2] for rank in range(3)]  # cut inside rank 1
    [(1, 64), (1, 64), (0, 0)]
    """
    c = shape.shard(size, rank)
    return ring_bytes(shape.token(backward=backward), c, journeys(size, c, **dealt), rank, backward=backward)


def ring_bytes(token: Token, c: int, travel: list[int], rank: int = 0, *, backward: bool) -> RankCost:
    """`ring_cost` of shards of `c` tokens whose K/V make so many hops."""
    size = len(travel)
    left = [travel[(rank - step) % size] - step for step in range(size)]  # hops still to make by what is here
    here, goes = [hops >= 0 for hops in left], [hops > 0 for hops in left]
    comes = [*here[1:], False]
    kv = [(step > 0 and here[step]) + comes[step] for step in range(size)]  # attended, if not our own, and arriving
    home = [step >= max(travel[rank], 1) for step in range(size)]  # our dK/dV: arriving, or never gone
    leaves = [here[step] and travel[(rank - step) % size] > 0 for step in range(size)]
    dkv = [here[step] + comes[step] + home[step] for step in range(size)]  # added to, arriving, and ours
    most = max(dkv[step] * token.dkv + max(kv[step : step + 2]) * token.kv for step in range(size))
    back = sum(leaves) if backward else 0
    nbytes = sum(goes) * token.kv + back * token.dkv
    return RankCost(sum(goes) + back, c * nbytes, c * (token.own + token.sums + most))
