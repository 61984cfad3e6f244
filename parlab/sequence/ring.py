"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

Invariant: at step t (from 0), rank r attends the K/V of rank s = (r − t) mod P, while these go on to the right and
those of rank s − 1 come from the left. After P − 1 hops each query has met all keys.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and tiles merged by their log-sum-exp.
"""

from __future__ import annotations

from parlab.arrays import Array
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot
from parlab.sequence.attend import (
    GRADIENTS,
    SUMS,
    Scale,
    attend,
    attend_backward,
    call_label,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
)
from parlab.sequence.costs import AttentionShape, RankCost, TokenBytes
from parlab.sequence.homeward import Homeward
from parlab.sequence.layouts import Documents
from parlab.sequence.packed_ring import packed_ring_attention, packed_ring_cost
from parlab.sequence.tiles import kv_hops, sharded_mask, tiles_between
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring


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
            then travel no further than to the last rank that needs them (`packed_ring_attention`).
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
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout, documents)
    if documents is not None:
        return packed_ring_attention(comm, q, k, v, mask, scale)
    label = call_label("ring", mask, scale=scale)  # all arguments: a rank that was called with others is refused
    comm.hold("q, k, v", q, k, v)
    out, lse = no_keys_yet(comm, q)
    kv = k, v  # twice [B, G, S/P, D], at first our own
    for step in range(comm.size):
        source = (comm.rank - step) % comm.size  # the rank whose K/V these are
        last = step == comm.size - 1
        if not last:
            leaving = comm.isend(kv, comm.right, label=label)
            arriving = comm.irecv(comm.left, kv, label=label)
        tiles = tiles_between(comm.rank, source, mask)
        attend(comm, tiles, q, kv, (out, lse), scale=scale)  # each merged into out and lse
        if not last:
            kv = arriving.wait()
            leaving.wait()
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


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
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout, documents)
    label = call_label("ring backward", mask, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    dq = no_gradient_yet(comm, q)
    hops = kv_hops(mask)  # P − 1 of each, or fewer with documents
    homeward = Homeward(comm, (k, v), label, hops)
    for source, kv in around_ring(comm, (k, v), label, hops):  # twice [B, G, S/P, D]; None: stopped before this rank
        share = None
        if kv is not None:
            tiles = tiles_between(comm.rank, source, mask)
            share = attend_backward(comm, tiles, dout, q, kv, lse, delta, dq, scale=scale)
        homeward.pass_on(share)
        del kv, share  # no longer held when the next hop begins
    dk, dv = homeward.wait()
    comm.hold(GRADIENTS, dk, dv)  # as they are summed, until they are returned
    dq = narrowed(dq, q)  # the wide sum is freed, and no longer held
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


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
    c, token = shape.shard_length(size, rank), shape.token(backward=backward)
    mask = sharded_mask(size, c, causal, layout, documents)
    if documents is not None:
        return packed_ring_cost(token, rank, mask, backward=backward)
    return plain_ring_cost(token, c, size, backward=backward)


def plain_ring_cost(token: TokenBytes, c: int, size: int, *, backward: bool = False) -> RankCost:
    """`ring_cost` of shards of c tokens without documents: P − 1 hops of K/V, and backward P of dK/dV.

    Beside its own arrays and sums a rank holds two pairs of K/V: one is attended, one arrives. Backward it holds two
    pairs of dK/dV as well: one is added to, one arrives.
    """
    hops, home = size - 1, size if backward and size > 1 else 0
    held = token.own + token.sums + min(hops, 2) * token.kv + min(size, 2) * token.dkv
    return RankCost(hops + home, c * (hops * token.kv + home * token.dkv), c * held)
