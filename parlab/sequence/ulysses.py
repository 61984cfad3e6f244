"""Ulysses: an all-to-all turns shards into heads, each rank attends its heads over all tokens, and another turns back.

    to_heads     all H heads of S/P tokens -> H/P heads of all S tokens; if H = P, rank r sends each rank j head j of
                 its tokens, and gets head r of theirs
    attend       as one rank would with a whole sequence; no message
    to_tokens    H/P heads of all S tokens -> all H heads of S/P tokens

`to_heads` and `to_tokens` are the methods of `parlab.sequence.heads.HeadExchange`, where their messages stand.

Invariant: between the two all-to-alls, a rank has all tokens of its query heads and of the K/V heads that these read;
before and after them, all heads of its tokens.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
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
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.layouts import Documents
from parlab.sequence.tiles import sharded_mask, tiles_between
from parlab.sequence.two_levels import head_exchange, ranks_inside
from parlab.sequence.usp import usp_cost
from parlab.world import Comm


def ulysses_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    documents: Documents = None,
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, some heads on every rank, from this rank's contiguous shards; arguments as
    `ring_attention`, and `ranks_per_node`: how many consecutive ranks share a node; the all-to-alls are then made in
    two levels (`TwoLevelExchange`). None: each rank sends to each.

    Where P does not divide H the first ranks attend one head more: so every P up to H is of use, and the slowest rank
    has ⌈H/P⌉ heads. A K/V head goes to each rank that has one of its query heads, and to no other (`head_shares`).
    """
    in_node = ranks_inside(comm.size, ranks_per_node, comm.size)
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(1, comm.size * k.shape[2], causal, documents=documents)  # of one shard, the whole sequence
    label = call_label("Ulysses", mask, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    exchange = head_exchange(comm, q, k, label, ranks_per_node=in_node)
    (q,), (k, v) = exchange.to_heads([q], [k, v])  # [B, H/P, S, D], twice [B, G/P, S, D]
    out, lse = no_keys_yet(comm, q)
    tiles = tiles_between(0, 0, mask)
    attend(comm, tiles, q, (k, v), (out, lse), scale=scale, heads=exchange.heads)
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    del q, k, v  # the heads are no longer held when the results come
    (out, lse), _ = exchange.to_tokens([out, lse], [])  # [B, H, S/P, D], [B, H, S/P]
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
    documents: Documents = None,
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, and `ranks_per_node` as the forward.

    q, k and v become heads once more; the authors' code keeps them from the forward. The gradients of a K/V head that
    several ranks read are summed at home.
    """
    in_node = ranks_inside(comm.size, ranks_per_node, comm.size)
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(1, comm.size * k.shape[2], causal, documents=documents)  # of one shard, the whole sequence
    label = call_label("Ulysses backward", mask, ranks_per_node=ranks_per_node, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    exchange = head_exchange(comm, q, k, label, ranks_per_node=in_node)
    rows, (k, v) = exchange.to_heads([q, dout, lse, delta], [k, v])
    q, dout, row_lse, row_delta = rows  # twice [B, H/P, S, D]; twice [B, H/P, S]
    dq = no_gradient_yet(comm, q)
    tiles = tiles_between(0, 0, mask)
    dk, dv = attend_backward(comm, tiles, dout, q, (k, v), row_lse, row_delta, dq, scale=scale, heads=exchange.heads)
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    del rows, q, dout, row_lse, row_delta, k, v  # the heads are no longer held when the gradients come
    (dq,), (dk, dv) = exchange.to_tokens([dq], [dk, dv])  # [B, H, S/P, D], twice [B, G, S/P, D]
    return dq, narrowed(dk, dq), narrowed(dv, dq)  # q, k and v share a dtype


def ulysses_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, ranks_per_node: int | None = None, backward: bool = False
) -> RankCost:
    """The messages, bytes and held bytes of `rank`: two all-to-alls of P − 1 messages each, or in two levels k + g − 2.
    It is USP with all ranks in one group.

    Forward, where P divides H = G: q, k, v and out, 4·S·E·(P − 1)/P² elements (E = H·D), and lse. Backward q, dout,
    lse, delta, k and v become heads, and dq, dk and dv come home.
    """
    return usp_cost(shape, size, rank, ulysses=size, ranks_per_node=ranks_per_node, backward=backward)
