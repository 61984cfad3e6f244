"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and tiles merged by their log-sum-exp.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array
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
from parlab.sequence.layouts import Documents
from parlab.sequence.ring_schedule import journeys, tiles
from parlab.sequence.travel import Homeward, travel
from parlab.world import Comm


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
    label, deal = begin(comm, "ring", q, k, v, causal=causal, layout=layout, documents=documents, scale=scale)
    out, lse = no_keys_yet(comm, q)
    hops = journeys(comm.size, k.shape[2], deal)
    for source, kv in travel(comm, (k, v), label, hops):  # twice [B, G, S/P, D], the K/V of rank `source`
        if kv is not None:
            work = tiles(comm.rank, source, comm.size, k.shape[2], deal)  # how the mask cuts queries × keys
            attend(comm, work, q, kv, (out, lse), scale=scale)  # merged by their lse
        del kv  # no longer held when the next hop begins
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
    told: Any = {"causal": causal, "layout": layout, "documents": documents, "scale": scale}
    label, deal, delta = begin_backward(comm, "ring", dout, q, k, v, out, lse, **told)
    dq = no_gradient_yet(comm, q)
    hops = journeys(comm.size, k.shape[2], deal)
    home = Homeward(comm, (k, v), label, hops)
    for source, kv in travel(comm, (k, v), label, hops):  # twice [B, G, S/P, D], the K/V of rank `source`
        work = tiles(comm.rank, source, comm.size, k.shape[2], deal)
        home.add(attend_backward(comm, work, dout, q, kv, lse, delta, dq, scale=scale) if kv else None)
        del kv  # no longer held when the next hop begins
    dk, dv = home.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)
