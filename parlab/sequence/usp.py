"""Unified sequence parallelism: Ulysses inside groups of ranks, a ring of such groups outside.

The all-to-alls stay where links are fast; the ring takes as many ranks as heads cannot.

Source: Fang, Zhao 2024, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.attention import accumulator_dtype, check_gradient, row_dot
from parlab.sequence.attend import agreement, attend, attend_backward, checked, grid, narrowed, nothing_attended
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.double_ring import double_ring_cost
from parlab.sequence.heads import head_shares, to_heads, to_sequence
from parlab.sequence.ring import Pair, around, around_backward
from parlab.sequence.schedule import RingSchedule
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
    group, ring = _checked(comm, q, k, v, scale, layout, ulysses)
    shares = head_shares(q.shape[1], k.shape[1], ulysses)
    label = agreement("USP", causal=causal, layout=layout, ulysses=ulysses, scale=scale)
    comm.hold("q, k, v", q, k, v)
    part = to_heads(group, shares, [q], [k, v], layout, label)  # [B, H/U, U·S/P, D], twice [B, G/U, U·S/P, D]
    out, lse = nothing_attended(part[0])  # [B, H/U, U·S/P, D], [B, H/U, U·S/P]
    comm.hold("out, lse", out, lse)
    schedule, heads = RingSchedule(ring.rank, ring.size), shares[group.rank].pairs

    def visit(source: int, k: Array, v: Array) -> None:
        blocks = schedule.blocks(source, out.shape[2], layout, causal=causal)
        attend(comm, blocks, part[0], k, v, out, lse, scale=scale, heads=heads)

    around(ring, part[1], part[2], visit, label)
    part.clear()
    (out,) = narrowed([out], [q])
    comm.hold("out, lse", out)
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
    group, ring = _checked(comm, q, k, v, scale, layout, ulysses)
    check_gradient(dout, q, out, lse)
    shares = head_shares(q.shape[1], k.shape[1], ulysses)
    label = agreement("USP back", causal=causal, layout=layout, ulysses=ulysses, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    part = to_heads(group, shares, [dout, q, lse, delta], [k, v], layout, label)  # [B, H/U or G/U, U·S/P, ...]
    dq = namespace(q).zeros(part[1].shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H/U, U·S/P, D]
    comm.hold("dq, dk, dv", dq)
    schedule, heads = RingSchedule(ring.rank, ring.size), shares[group.rank].pairs

    def visit(source: int, k: Array, v: Array) -> Pair:
        blocks = schedule.blocks(source, dq.shape[2], layout, causal=causal)
        dout, q, lse, delta = part[:4]
        return attend_backward(comm, blocks, dout, q, k, v, lse, delta, dq, scale=scale, heads=heads)

    dk, dv = around_backward(ring, part[4], part[5], visit, label)  # [B, G/U, U·S/P, D]
    comm.hold("dq, dk, dv", dk, dv)
    part.clear()
    (dq,) = narrowed([dq], [q])
    comm.hold("dq, dk, dv", dq)
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


def _checked(
    comm: Comm, q: Array, k: Array, v: Array, scale: float | None, layout: str, ulysses: int
) -> tuple[Any, Any]:
    """The group of this rank and its ring through all groups, or a refusal."""
    checked(comm, q, k, v, scale, layout)
    if layout == "striped":
        raise ValueError("layout='striped': a group's tokens would be no stripe; use contiguous or zigzag")
    return grid(comm, "ulysses", ulysses)
