"""Ulysses: an all-to-all turns shards of the sequence into heads, each rank attends its heads over all of it, and back.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parlab.arrays import Array
from parlab.sequence.attend import Queries, QueryGradients, agreed, backward_rows, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.heads import head_shares, to_heads, to_sequence
from parlab.sequence.schedule import RingSchedule
from parlab.world import Comm


def ulysses_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    documents: Sequence[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's contiguous shards of it; arguments as `ring_attention`.

    Where P does not divide H the first ranks attend one head more: so every P up to H is of use, and the slowest rank
    has ⌈H/P⌉ heads. A K/V head goes to each rank that has one of its query heads, and to no other (`head_shares`).

    Raises:
        ValueError: shapes or documents that do not fit, or more ranks than query heads, before any message.
        MismatchError: another rank was told other documents, `causal` or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 2))
    >>> out, lse = run(ulysses_attention, 2, pieces, pieces, pieces, causal=True).results[1]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 1 owns tokens 4 to 7
    [5, 6, 7, 8]
    """
    label, dealt = agreed(comm, "Ulysses", q, k, v, scale, causal, documents=documents)
    shares = head_shares(q.shape[1], k.shape[1], comm.size)
    q, k, v = to_heads(comm, shares, [q], [k, v], "contiguous", label)  # [B, H/P or G/P, S, D]
    queries = Queries(comm, q, scale)
    queries.attend(RingSchedule(0, 1).blocks(0, q.shape[2], **dealt), k, v, shares[comm.rank].pairs)
    out, lse = queries.done()  # [B, H/P, S, D], [B, H/P, S]
    del q, k, v, queries
    out, lse = to_sequence(comm, shares, [out, lse], [], "contiguous", label)  # [B, H, S/P, D], [B, H, S/P]
    return out, lse


def ulysses_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    documents: Sequence[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`.

    All that is needed becomes heads once more: q, k and v too, which the authors' code keeps as heads from the forward
    on. The gradients of a K/V head that went to several ranks are summed at home.

    Raises: as the forward.
    """
    label, dealt = agreed(comm, "Ulysses backward", q, k, v, scale, causal, documents=documents)
    rows = backward_rows(comm, dout, q, out, lse)
    shares = head_shares(q.shape[1], k.shape[1], comm.size)
    *heads, k_heads, v_heads = to_heads(comm, shares, rows, [k, v], "contiguous", label)  # [B, H/P or G/P, S, ...]
    queries = QueryGradients(comm, heads, scale)
    blocks = RingSchedule(0, 1).blocks(0, k_heads.shape[2], **dealt)
    dq, dk, dv = queries.done(*queries.attend(blocks, k_heads, v_heads, shares[comm.rank].pairs))
    del heads, k_heads, v_heads, queries
    dq, dk, dv = to_sequence(comm, shares, [dq], [dk, dv], "contiguous", label)  # [B, H or G, S/P, D]
    return narrowed((dq, dk, dv), (q, k, v))


def ulysses_cost(shape: AttentionShape, size: int, rank: int = 0, *, backward: bool = False) -> RankCost:
    """What `rank` sends and holds: two all-to-alls of P − 1 messages each, there and back.

    Forward, H = G, of all ranks' heads alike: q, k, v and out, 4·S·E·(P − 1)/P² elements (E = H·D), and lse. Backward
    dout, q, k, v, lse and delta go, and dq, dk, dv come back; dk and dv in 4 bytes or more an element.

    >>> shape = AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4)
    >>> ulysses_cost(shape, 4).nbytes == 4 * (4 * 1024 * 512 * 3 // 16 + 1024 * 8 * 3 // 16)
    True
    """
    ranks = heads_of_ranks(shape, size)
    there = [heads.rows(backward=backward) + heads.kv for heads in ranks]  # bytes of a token
    back = [heads.q + (heads.dkv if backward else heads.lse) for heads in ranks]
    c, mine = shape.S // size, ranks[rank]
    nbytes = c * (sum(there) - there[rank] + (size - 1) * back[rank])
    sums = mine.sums(backward=backward) + (mine.dkv if backward else 0)
    coming = max(back[:rank] + back[rank + 1 :], default=0)
    home = shape.S * back[rank] + c * (shape.q + (shape.dkv if backward else shape.lse) + coming)
    heads_held = shape.S * there[rank] + max(c * there[rank] if size > 1 else 0, shape.S * sums)
    return RankCost(2 * (size - 1), nbytes, c * shape.own(backward=backward) + max(heads_held, home))


def heads_of_ranks(shape: AttentionShape, size: int) -> list[AttentionShape]:
    """The same attention with each rank's share of the heads."""
    shares = head_shares(shape.H, shape.G, size)
    return [
        replace(shape, H=share.queries.stop - share.queries.start, G=share.keys.stop - share.keys.start)
        for share in shares
    ]
