"""Ulysses: an all-to-all turns shards into heads, each rank attends its heads over all tokens, and another turns back.

H = 4 heads, P = 2 ranks, S = 4 tokens; each piece is `[heads, tokens]`, and `to_tokens` sends the same ones back:

                  before               `to_heads` sends              between
        rank 0    [0 to 3, 0 and 1]    [2 and 3, 0 and 1] to 1       [0 and 1, 0 to 3]
        rank 1    [0 to 3, 2 and 3]    [0 and 1, 2 and 3] to 0       [2 and 3, 0 to 3]

Invariant: between the two all-to-alls, a rank has all tokens of its query heads and of the K/V heads that these read;
before and after them, all heads of its tokens.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arrays import Array, namespace
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot
from parlab.sequence.attend import (
    GRADIENTS,
    SUMS,
    Scale,
    add_to,
    attend,
    attend_backward,
    call_label,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
    put,
)
from parlab.sequence.heads import HeadLevel, pieces_by_heads, pieces_by_tokens, reads_on_rank
from parlab.sequence.layouts import Documents
from parlab.sequence.tiles import sharded_mask, tiles_between
from parlab.sequence.two_levels import head_levels, ranks_inside
from parlab.world import Comm
from parlab.world.collectives.walks import partners


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
    `ring_attention`, and `ranks_per_node`: so many consecutive ranks share a node, and exchange in two levels.

    Where P does not divide H the first ranks attend one head more: so every P up to H is of use, and the slowest rank
    has ⌈H/P⌉ heads. A K/V head goes to each rank that has one of its query heads, and to no other (`heads_of_ranks`).
    """
    per_node = ranks_inside(comm.size, ranks_per_node, comm.size)  # None: all-to-alls in one level
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(1, comm.size * k.shape[2], causal, documents=documents)  # of one shard, the whole sequence
    label = call_label("Ulysses", mask, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    H, G = q.shape[1], k.shape[1]
    levels = head_levels(comm, H, G, ranks_per_node=per_node)  # one all-to-all; two for ranks in nodes
    reads = reads_on_rank(H, G, comm.size, comm.rank)  # our query heads by K/V head
    for level in levels:
        q, k, v = to_heads(level, [q], [k, v], label)  # [B, H/P, S, D], twice [B, G/P, S, D]
    out, lse = no_keys_yet(comm, q)
    tiles = tiles_between(0, 0, mask)
    attend(comm, tiles, q, (k, v), (out, lse), scale=scale, heads=reads)
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    del q, k, v  # the heads are no longer held when the results come
    for level in reversed(levels):
        out, lse = to_tokens(level, [out, lse], [], label)  # [B, H, S/P, D], [B, H, S/P]
    return out, lse


def to_heads(level: HeadLevel, queries: Sequence[Array], keys: Sequence[Array], label: str) -> list[Array]:
    """All heads of this rank's tokens -> its heads of all tokens: `[B, H, S/P, ...]` -> `[B, H/P, S, ...]`.

    `queries` are arrays of query heads, `keys` of K/V heads; the results stand in the same order.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> x = 10 * np.arange(4)[None, :, None] + np.arange(4)  # [B, H, S], of numbers 10 · head + token
    >>> def program(comm, x):
    ...     (level,) = head_levels(comm, H=4, G=4, ranks_per_node=None)
    ...     return to_heads(level, [x], [], "example")
    >>> run(program, 2, per_rank([x[:, :, :2], x[:, :, 2:]])).results[1][0].tolist()  # heads 2 and 3 of all tokens
    [[[20, 21, 22, 23], [30, 31, 32, 33]]]
    """
    comm, shards = level.comm, [*queries, *keys]
    heads = level.heads_by_array(len(queries), len(keys))  # [rank][array]
    ours, S = heads[comm.rank], comm.size * shards[0].shape[2]
    wholes = [_zeros(x, own.stop - own.start, S) for x, own in zip(shards, ours, strict=True)]
    comm.hold("heads", *wholes)
    gives = pieces_by_heads(shards, heads, len(level.chunks[comm.rank]))  # to each rank, its heads of our tokens
    takes = pieces_by_tokens(wholes, level.chunks)  # from each rank, our heads of its tokens
    put(takes[comm.rank], gives[comm.rank])
    for dst, src in partners(comm):
        came = comm.sendrecv(gives[dst], dst, src, takes[src], label=label)
        put(takes[src], came)
        del came  # no longer held when the next one comes
    return wholes


def to_tokens(level: HeadLevel, queries: Sequence[Array], keys: Sequence[Array], label: str) -> list[Array]:
    """The inverse of `to_heads`. What several ranks have for one K/V head, their gradients, is summed."""
    comm, wholes = level.comm, [*queries, *keys]
    heads = level.heads_by_array(len(queries), len(keys))  # [rank][array]
    all_heads = [of_last.stop for of_last in heads[-1]]  # of each array: up to the last rank's
    c = wholes[0].shape[2] // comm.size
    shards = [_zeros(x, H, c) for x, H in zip(wholes, all_heads, strict=True)]
    comm.hold("heads", *shards)
    gives = pieces_by_tokens(wholes, level.chunks)  # to each rank, our heads of its tokens
    takes = pieces_by_heads(shards, heads, len(level.chunks[comm.rank]))  # from each rank, its heads of our tokens
    add_to(takes[comm.rank], gives[comm.rank])
    for dst, src in partners(comm):
        came = comm.sendrecv(gives[dst], dst, src, takes[src], label=label)
        add_to(takes[src], came)
        del came  # no longer held when the next one comes
    return shards


def _zeros(like: Array, heads: int, tokens: int) -> Array:
    shape = like.shape[0], heads, tokens, *like.shape[3:]
    return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)


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
    per_node = ranks_inside(comm.size, ranks_per_node, comm.size)
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(1, comm.size * k.shape[2], causal, documents=documents)  # of one shard, the whole sequence
    label = call_label("Ulysses backward", mask, ranks_per_node=ranks_per_node, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    H, G = q.shape[1], k.shape[1]
    levels = head_levels(comm, H, G, ranks_per_node=per_node)
    reads = reads_on_rank(H, G, comm.size, comm.rank)  # our query heads by K/V head
    queries = [q, dout, lse, delta]
    for level in levels:
        *queries, k, v = to_heads(level, queries, [k, v], label)
    q, dout, all_lse, all_delta = queries  # twice [B, H/P, S, D]; twice [B, H/P, S]
    dq = no_gradient_yet(comm, q)
    tiles = tiles_between(0, 0, mask)
    dk, dv = attend_backward(comm, tiles, dout, q, (k, v), all_lse, all_delta, dq, scale=scale, heads=reads)
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    del queries, q, dout, all_lse, all_delta, k, v  # the heads are no longer held when the gradients come
    for level in reversed(levels):
        dq, dk, dv = to_tokens(level, [dq], [dk, dv], label)  # [B, H, S/P, D], twice [B, G, S/P, D]
    return dq, narrowed(dk, dq), narrowed(dv, dq)  # q, k and v share a dtype
