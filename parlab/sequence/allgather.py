"""Attention with gathered keys and values: each rank gets the K/V of all, a few heads at a time, and attends its rows.

Nothing is hidden behind anything. But K/V heads are few, any mask is simple, and K/V are whole for a few heads only.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arguments import whole
from parlab.arrays import Array
from parlab.sequence.attend import Pair, Queries, QueryGradients, add_to, agreed, backward_rows, exchange, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.schedule import RingSchedule, readers
from parlab.world import Comm

EVERY = slice(None)


def allgather_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
    kv_heads: int | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and `kv_heads`:
    how many K/V heads are gathered at a time; None: 2, or 1 if there is one only.

    K/V go straight to each rank that has a block with them: without documents, to all.

    Raises:
        ValueError: shapes, a layout or documents that do not fit, before any message.
        MismatchError: another rank was told another layout, `causal`, documents, `kv_heads` or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 2, "zigzag"))
    >>> out, lse = run(allgather_attention, 2, pieces, pieces, pieces, causal=True, layout="zigzag").results[1]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 1 owns tokens 2 to 5
    [3, 4, 5, 6]
    """
    label, dealt = agreed(comm, "all-gather", q, k, v, scale, causal, layout, documents, kv_heads=kv_heads)
    heads = a_few_at_a_time(q.shape[1], k.shape[1], kv_heads)
    ring, length, reads = RingSchedule(comm.rank, comm.size), q.shape[2], readers(comm.size, q.shape[2], **dealt)
    queries = Queries(comm, q, scale)
    for h, g in heads:
        gathered = _gather(comm, (k[:, g, ...], v[:, g, ...]), reads, label)  # [B, kv_heads, S/P, D]
        for source, pair in gathered.items():
            queries.attend(ring.blocks(source, length, **dealt), *pair, [(h, EVERY)])
        del gathered, pair  # before the next ones come
    return queries.done()


def allgather_attention_backward(
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
    documents: Sequence[int] | None = None,
    kv_heads: int | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`.

    K/V are gathered again. Their gradients, on each rank those of all tokens, are reduce-scattered: they go straight
    home and are summed there, in float32 or wider.

    Raises: as the forward.
    """
    label, dealt = agreed(comm, "all-gather backward", q, k, v, scale, causal, layout, documents, kv_heads=kv_heads)
    rows = backward_rows(comm, dout, q, out, lse)
    heads = a_few_at_a_time(q.shape[1], k.shape[1], kv_heads)
    ring, length, reads = RingSchedule(comm.rank, comm.size), q.shape[2], readers(comm.size, q.shape[2], **dealt)
    queries = QueryGradients(comm, rows, scale)
    dk, dv = queries.attend([], k, v)  # [B, G, S/P, D]
    comm.hold("dq, dk, dv", dk, dv)
    for h, g in heads:
        gathered = _gather(comm, (k[:, g, ...], v[:, g, ...]), reads, label)
        shares: dict[int, Pair] = {}  # what this rank gives to the gradients of each: [B, kv_heads, S/P, D]
        for source, pair in gathered.items():
            shares[source] = queries.attend(ring.blocks(source, length, **dealt), *pair, [(h, EVERY)])
            comm.hold("dq, dk, dv", shares[source])
        del gathered, pair
        _reduce_scatter(comm, shares, (dk[:, g, ...], dv[:, g, ...]), reads, label)
        del shares
    return narrowed(queries.done(dk, dv), (q, k, v))


def _gather(comm: Comm, pair: Pair, reads: list[list[bool]], label: str) -> dict[int, Pair]:
    """The K/V of every rank that this one needs; ours is `pair`."""
    gathered: dict[int, Pair] = {}
    exchange(
        comm,
        give=lambda dst: pair if reads[comm.rank][dst] else None,
        like=lambda src: pair if reads[src][comm.rank] else None,
        take=gathered.__setitem__,
        label=label,
    )
    return gathered


def _reduce_scatter(comm: Comm, shares: dict[int, Pair], mine: Pair, reads: list[list[bool]], label: str) -> None:
    """Each rank's share goes to it; the sum of what comes is added to `mine`."""
    exchange(
        comm,
        give=shares.get,
        like=lambda src: mine if reads[comm.rank][src] else None,
        take=lambda src, share: add_to(mine, share),
        label=label,
    )


def a_few_at_a_time(H: int, G: int, kv_heads: int | None = None) -> list[tuple[slice, slice]]:
    """Query heads and the K/V heads that they read, `kv_heads` or fewer of these at a time."""
    kv_heads = min(2, G) if kv_heads is None else kv_heads
    if not 1 <= whole("kv_heads", kv_heads) <= G:
        raise ValueError(f"kv_heads={kv_heads}: gather 1 to {G} key/value heads at a time")
    starts = range(0, G, kv_heads)
    return [(slice(g * H // G, min(g + kv_heads, G) * H // G), slice(g, min(g + kv_heads, G))) for g in starts]


def allgather_cost(
    shape: AttentionShape,
    size: int,
    rank: int = 0,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
    kv_heads: int | None = None,
    backward: bool = False,
) -> RankCost:
    """What `rank` sends and holds: its K/V to each rank that reads them, P − 1 without documents, G/kv_heads messages
    each; backward as many with dK/dV, to each rank whose K/V it has.

    >>> allgather_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4)[:2]
    (3, 786432)
    """
    edges = None if documents is None else tuple(documents)
    reads = readers(size, shape.S // size, layout, causal=causal, documents=edges)
    goes, comes = sum(reads[rank]) - 1, sum(source[rank] for source in reads) - 1
    few = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G, kv_heads)]
    turns, c = len(few), shape.S // size
    held = c * (shape.own(backward=backward) + shape.sums(backward=backward))
    kv, dkv = (c * few[0] * nbytes // shape.G for nbytes in (shape.kv, shape.dkv))  # of the heads of one turn
    if not backward:
        return RankCost(goes * turns, goes * c * shape.kv, held + comes * kv)
    held += c * shape.dkv + (comes + 1) * dkv + max(comes * kv, min(goes, 1) * dkv)
    return RankCost((goes + comes) * turns, c * (goes * shape.kv + comes * shape.dkv), held)
