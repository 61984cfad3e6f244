"""USP, unified sequence parallelism: Ulysses inside groups of ranks, and a ring of such groups outside.

The all-to-alls stay where links are fast, and the ring takes as many ranks as heads cannot.

Invariant: between the two all-to-alls, the U ranks of a group have the queries of the group's U·S/P tokens, each rank
some heads of them. At step t of the ring (from 0), group g attends the K/V of group (g − t) mod P/U.

Source: Fang, Zhao 2024, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", algorithm 1.
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
from parlab.sequence.heads import reads_on_rank
from parlab.sequence.homeward import Homeward
from parlab.sequence.tiles import sharded_mask, tiles_between
from parlab.sequence.two_levels import head_levels, ranks_inside
from parlab.sequence.ulysses import to_heads, to_tokens
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring
from parlab.world.groups import checked_group, grid


def usp_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ulysses: int,
    causal: bool = False,
    layout: str = "contiguous",
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and `ulysses`:
    how many consecutive ranks (U) share the heads. It divides P; U = P is Ulysses, U = 1 the ring. `ranks_per_node`:
    how many consecutive ranks share a node. Groups that fill several nodes then make their all-to-alls in two levels
    (`head_levels`). None: each rank of a group sends to each.

    Contiguous or zigzag: a group's tokens, sorted, form one shard of the same layout on a ring of P/U.
    """
    refuse_stripes(layout)
    checked_group("ulysses", ulysses, comm.size)
    per_node = ranks_inside(ulysses, ranks_per_node, comm.size)  # None: all-to-alls in one level
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout)
    label = call_label("USP", mask, ulysses=ulysses, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    group, ring = grid(comm, ulysses, name="ulysses")
    H, G = q.shape[1], k.shape[1]
    levels = head_levels(group, H, G, layout, ranks_per_node=per_node)
    reads = reads_on_rank(H, G, group.size, group.rank)  # our query heads by K/V head
    for level in levels:
        q, k, v = to_heads(level, [q], [k, v], label)  # [B, H/U, U·S/P, D], twice [B, G/U, U·S/P, D]
    mask = mask._replace(size=ring.size, length=k.shape[2])  # the tokens of a group are one shard on the ring of groups
    out, lse = no_keys_yet(comm, q)
    for source, kv in around_ring(ring, (k, v), label):
        tiles = tiles_between(ring.rank, source, mask)
        attend(comm, tiles, q, kv, (out, lse), scale=scale, heads=reads)
        del kv  # no longer held when the next hop begins
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    del q, k, v  # the heads are no longer held when the results come
    for level in reversed(levels):
        out, lse = to_tokens(level, [out, lse], [], label)  # [B, H, S/P, D], [B, H, S/P]
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
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, `ulysses` and `ranks_per_node`."""
    refuse_stripes(layout)
    checked_group("ulysses", ulysses, comm.size)
    per_node = ranks_inside(ulysses, ranks_per_node, comm.size)
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout)
    label = call_label("USP backward", mask, ulysses=ulysses, ranks_per_node=ranks_per_node, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    group, ring = grid(comm, ulysses, name="ulysses")
    H, G = q.shape[1], k.shape[1]
    levels = head_levels(group, H, G, layout, ranks_per_node=per_node)
    reads = reads_on_rank(H, G, group.size, group.rank)  # our query heads by K/V head
    queries = [q, dout, lse, delta]
    for level in levels:
        *queries, k, v = to_heads(level, queries, [k, v], label)
    q, dout, all_lse, all_delta = queries  # twice [B, H/U, U·S/P, D]; twice [B, H/U, U·S/P]
    mask = mask._replace(size=ring.size, length=k.shape[2])  # the tokens of a group are one shard on the ring of groups
    dq, homeward = no_gradient_yet(comm, q), Homeward(ring, (k, v), label)
    for source, kv in around_ring(ring, (k, v), label):
        tiles = tiles_between(ring.rank, source, mask)
        homeward.pass_on(attend_backward(comm, tiles, dout, q, kv, all_lse, all_delta, dq, scale=scale, heads=reads))
        del kv  # no longer held when the next hop begins
    dk, dv = homeward.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    del queries, q, dout, all_lse, all_delta, k, v  # the heads are no longer held when the gradients come
    for level in reversed(levels):
        dq, dk, dv = to_tokens(level, [dq], [dk, dv], label)  # [B, H, S/P, D], twice [B, G, S/P, D]
    return dq, narrowed(dk, dq), narrowed(dv, dq)


def refuse_stripes(layout: str) -> None:
    """ValueError for the striped layout, in which the tokens of a group of ranks are not in order."""
    if layout == "striped":
        raise ValueError("layout='striped': a group's tokens would be no stripe; use contiguous or zigzag")
