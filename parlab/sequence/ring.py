"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and blocks merged by their log-sum-exp.
"""

from __future__ import annotations

from parlab.arrays import Array, namespace
from parlab.nn.attention import (
    accumulator_dtype,
    attend_block,
    attend_block_backward,
    check_gradient,
    check_inputs,
    merge,
    row_dot,
)
from parlab.sequence.costs import attention_flops
from parlab.sequence.layouts import check_layout
from parlab.sequence.schedule import Block, RingSchedule
from parlab.world import Comm, Request

Hop = tuple[Request, Request]  # to the right, from the left


def ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it.

    Invariant: when hop t starts (from 0), rank r holds the K/V of rank (r − t) mod P, and `(out, lse)` over the K/V of
    the ranks r, r − 1, ..., r − t + 1. After P − 1 hops and the last block it has seen all.

    Args:
        comm: the ring; every rank of it calls this.
        q: `[B, H, S/P, D]`, this rank's queries.
        k, v: `[B, G, S/P, D]`, where G divides H.
        causal: a token sees itself and earlier ones only.
        layout: contiguous, zigzag or striped: how the sequence was dealt out (`parlab.sequence.shard`).
        scale: 1/√D when None.

    Returns:
        out `[B, H, S/P, D]` in q's dtype, lse `[B, H, S/P]` in float32 or wider.

    Raises:
        ValueError: shapes or a layout that do not fit, before any message.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4, "zigzag"))
    >>> out, lse = run(ring_attention, 4, pieces, pieces, pieces, causal=True, layout="zigzag").results[0]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 0 owns tokens 0 and 7, which see 1 and 8 keys
    [1, 8]
    """
    _check(comm, q, k, v, layout, scale)
    xp = namespace(q)
    ring = RingSchedule(comm.rank, comm.size)
    out = xp.zeros(q.shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H, S/P, D]
    lse = xp.full(q.shape[:-1], -xp.inf, dtype=out.dtype, device=q.device)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("out, lse", out, lse)
    source = comm.rank
    for hop in (*ring.steps, None):  # None: with the last block no K/V travels
        if hop is not None:
            arriving = comm.isend((k, v), hop.send_to), comm.irecv(hop.recv_from, like=(k, v))
        block = ring.block(source, q.shape[2], layout, causal=causal)
        if block is not None:
            _attend(comm, block, q, k, v, out, lse, scale)
        if hop is not None:
            k, v = _arrived(arriving)
            source = hop.kv_source
    return xp.astype(out, q.dtype, copy=False), lse


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
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards, from `dout`, the gradient of a loss with respect to its `out`.

    The K/V go around once more. Behind them travel their gradients, to which each rank adds its share, and which need
    one hop more than the K/V to come home: (P − 1) + P = 2P − 1 hops.

    Invariant: when K/V hop t starts (from 0), rank r holds the K/V of rank s = (r − t) mod P, and their dK/dV, summed
    over the ranks s, s + 1, ..., r − 1, are on their way from r − 1. Rank s − 1 adds the last share, and home they go.

    Args:
        comm: the ring; every rank of it calls this.
        dout: `[B, H, S/P, D]`.
        q, k, v, causal, layout, scale: as in the forward.
        out, lse: what the forward returned.

    Returns:
        dq `[B, H, S/P, D]`, dk and dv `[B, G, S/P, D]`, in the dtypes of q, k and v; sums are made, and travel, in
        float32 or wider.

    Raises:
        ValueError: shapes or a layout that do not fit, before any message.
    """
    _check(comm, q, k, v, layout, scale)
    check_gradient(dout, q, out, lse)
    xp = namespace(q)
    ring = RingSchedule(comm.rank, comm.size)
    delta = row_dot(dout, out)  # [B, H, S/P]
    dq = xp.zeros(q.shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H, S/P, D]
    dk, dv = (xp.zeros(k.shape, dtype=dq.dtype, device=k.device) for _ in range(2))  # [B, G, S/P, D], of `source`
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    comm.hold("dq, dk, dv", dq, dk, dv)
    source = comm.rank
    returning: Hop | None = None  # the dK/dV of `source`, on their way to us
    for hop in (*ring.steps, None):  # None: with the last block no K/V travels
        if hop is not None:
            arriving = comm.isend((k, v), hop.send_to), comm.irecv(hop.recv_from, like=(k, v))
        block = ring.block(source, q.shape[2], layout, causal=causal)
        if block is not None:
            share = _share(comm, block, dout, q, k, v, lse, delta, scale)
        if returning is not None:
            dk, dv = _arrived(returning)  # the shares of the ranks that held this K/V before us
        if block is not None:
            dq[:, :, block.queries, :] += share[0]
            dk[:, :, block.keys, :] += share[1]
            dv[:, :, block.keys, :] += share[2]
            del share  # or it would still be held while the next one is made
        if comm.size > 1:
            returning = comm.isend((dk, dv), comm.right), comm.irecv(comm.left, like=(dk, dv))
        if hop is not None:
            k, v = _arrived(arriving)
            source = hop.kv_source
    if returning is not None:
        dk, dv = _arrived(returning)  # the extra hop: our own, from the rank that held our K/V last
    return xp.astype(dq, q.dtype, copy=False), xp.astype(dk, k.dtype, copy=False), xp.astype(dv, v.dtype, copy=False)


def _attend(
    comm: Comm, block: Block, q: Array, k: Array, v: Array, out: Array, lse: Array, scale: float | None
) -> None:
    """Merge this block's attention into the rows of `out` and `lse` that see it."""
    rows, columns = block.queries, block.keys
    with comm.compute("attend", flops=attention_flops(block.pairs, *_sizes(q))):
        part = attend_block(
            q[:, :, rows, :], k[:, :, columns, :], v[:, :, columns, :], diagonal=block.diagonal, scale=scale
        )
        out[:, :, rows, :], lse[:, :, rows] = merge(out[:, :, rows, :], lse[:, :, rows], *part)


def _share(
    comm: Comm,
    block: Block,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    lse: Array,
    delta: Array,
    scale: float | None,
) -> tuple[Array, Array, Array]:
    """What this block adds to dq of its queries and to dk and dv of its keys."""
    rows, columns = block.queries, block.keys
    with comm.compute("attend backward", flops=attention_flops(block.pairs, *_sizes(q), backward=True)):
        return attend_block_backward(
            dout[:, :, rows, :],
            q[:, :, rows, :],
            k[:, :, columns, :],
            v[:, :, columns, :],
            lse[:, :, rows],
            delta[:, :, rows],
            diagonal=block.diagonal,
            scale=scale,
        )


def _arrived(hop: Hop) -> tuple[Array, Array]:
    sending, receiving = hop
    sending.wait()
    return receiving.wait()


def _sizes(q: Array) -> tuple[int, int, int]:
    B, H, _, D = q.shape
    return B, H, D


def _check(comm: Comm, q: Array, k: Array, v: Array, layout: str, scale: float | None) -> None:
    check_inputs(q, k, v, causal=True, scale=scale)  # causal or not, shards have as many keys as queries
    check_layout(q.shape[2] * comm.size, comm.size, layout)
