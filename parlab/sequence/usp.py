"""Unified sequence parallelism: Ulysses inside groups of ranks, a ring of such groups outside.

The all-to-alls stay where links are fast; the ring takes as many ranks as heads cannot.

Source: Fang, Zhao 2024, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

from parlab.arrays import Array
from parlab.sequence.attend import agreed, backward_rows, grid, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.double_ring import double_ring_cost
from parlab.sequence.heads import head_shares, to_heads, to_sequence
from parlab.sequence.ring import attend_around, attend_around_backward
from parlab.sequence.ulysses import heads_of_ranks, ulysses_cost
from parlab.world import Comm


def usp_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ulysses: int,
    causal: bool = False,
    layout: str = "contiguous",
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and `ulysses`:
    how many consecutive ranks (U) share the heads. It divides P; U = P is Ulysses, U = 1 the ring.

    The layout is contiguous or zigzag. A group's tokens, in order, are the same layout's shard for a ring of P/U.

    Raises:
        ValueError: shapes, a layout or a group that do not fit, before any message.
        MismatchError: another rank was told another layout, `causal` or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> out, lse = run(usp_attention, 4, pieces, pieces, pieces, ulysses=2, causal=True).results[3]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 3 owns tokens 6 and 7
    [7, 8]
    """
    label, dealt = agreed(comm, "USP", q, k, v, scale, causal, _joinable(layout), ulysses=ulysses)
    group, ring = grid(comm, "ulysses", ulysses)
    shares = head_shares(q.shape[1], k.shape[1], ulysses)
    q, k, v = to_heads(group, shares, [q], [k, v], layout, label)  # [B, H/U or G/U, U·S/P, D]
    out, lse = attend_around(ring, q, k, v, label, dealt, scale, shares[group.rank].pairs)  # [B, H/U, U·S/P, D]
    del q, k, v
    out, lse = to_sequence(group, shares, [out, lse], [], layout, label)  # [B, H, S/P, D], [B, H, S/P]
    return out, lse


def usp_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    ulysses: int,
    causal: bool = False,
    layout: str = "contiguous",
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`, and `ulysses`.

    Raises: as the forward.
    """
    label, dealt = agreed(comm, "USP backward", q, k, v, scale, causal, _joinable(layout), ulysses=ulysses)
    rows = backward_rows(comm, dout, q, out, lse)
    group, ring = grid(comm, "ulysses", ulysses)
    shares = head_shares(q.shape[1], k.shape[1], ulysses)
    *heads, k_heads, v_heads = to_heads(group, shares, rows, [k, v], layout, label)  # [B, H/U or G/U, U·S/P, ...]
    pairs = shares[group.rank].pairs
    dq, dk, dv = attend_around_backward(ring, heads, k_heads, v_heads, label, dealt, scale, pairs)
    del heads, k_heads, v_heads
    dq, dk, dv = to_sequence(group, shares, [dq], [dk, dv], layout, label)  # [B, H or G, S/P, D]
    return narrowed((dq, dk, dv), (q, k, v))


def usp_cost(shape: AttentionShape, size: int, rank: int = 0, *, ulysses: int, backward: bool = False) -> RankCost:
    """What `rank` sends and holds: Ulysses on U ranks with their part of the sequence, a ring of P/U with its heads.

    >>> shape = AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4)
    >>> usp_cost(shape, 4, ulysses=4)[:2] == ulysses_cost(shape, 4)[:2], usp_cost(shape, 4, ulysses=1)[:2]
    (True, (3, 3145728))
    """
    group, ring = replace(shape, S=shape.S * ulysses // size), size // ulysses
    inner = ulysses_cost(group, ulysses, rank % ulysses, backward=backward)
    mine = replace(heads_of_ranks(shape, ulysses)[rank % ulysses], S=shape.S)
    outer = double_ring_cost(mine, ring, backward=backward)
    one = group.S // ulysses * shape.own(backward=backward)
    held = max(
        inner.held,
        one + outer.held + group.S * ((mine.rows(backward=backward) + mine.kv) - mine.own(backward=backward)),
    )
    return RankCost(inner.messages + outer.messages, inner.nbytes + outer.nbytes, held)


def _joinable(layout: str) -> str:
    """The layout, or a refusal: the shards of a group must make one of the ring outside."""
    if layout == "striped":
        raise ValueError("layout='striped': a group's tokens would be no stripe; use contiguous or zigzag")
    return layout
