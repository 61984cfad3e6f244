"""Ulysses: an all-to-all turns shards into heads, each rank attends its heads over all tokens, and another turns back.

    to_heads     all H heads of S/P tokens -> H/P heads of all S tokens; if H = P, rank r sends each rank j head j of
                 its tokens, and gets head r of theirs
    attend       as one rank would with a whole sequence; no message
    to_tokens    H/P heads of all S tokens -> all H heads of S/P tokens

Their messages stand in `HeadExchange`, below. Ranks in nodes make each all-to-all in two levels (`two_levels`).

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
)
from parlab.sequence.heads import HeadLevel, of_shard, of_whole
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
    `ring_attention`, and `ranks_per_node`: how many consecutive ranks share a node; the all-to-alls are then made in
    two levels (`head_levels`). None: each rank sends to each.

    Where P does not divide H the first ranks attend one head more: so every P up to H is of use, and the slowest rank
    has ⌈H/P⌉ heads. A K/V head goes to each rank that has one of its query heads, and to no other (`head_shares`).
    """
    in_node = ranks_inside(comm.size, ranks_per_node, comm.size)
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(1, comm.size * k.shape[2], causal, documents=documents)  # of one shard, the whole sequence
    label = call_label("Ulysses", mask, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    exchange = HeadExchange(head_levels(comm, q, k, ranks_per_node=in_node), label)
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
    exchange = HeadExchange(head_levels(comm, q, k, ranks_per_node=in_node), label)
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


class HeadExchange:
    """The two all-to-alls: shards of the sequence with all heads -> heads of all tokens, and back.

    H = 4 heads, P = 2 ranks, S = 4 tokens; each piece is `[heads, tokens]`, and `to_tokens` sends the same ones back:

                  before               `to_heads` sends              between
        rank 0    [0 to 3, 0 and 1]    [2 and 3, 0 and 1] to 1       [0 and 1, 0 to 3]
        rank 1    [0 to 3, 2 and 3]    [0 and 1, 2 and 3] to 0       [2 and 3, 0 to 3]

    Each level is an all-to-all of its own (`head_levels`): one among all ranks, or one between nodes and one inside.
    """

    def __init__(self, levels: list[HeadLevel], label: str) -> None:
        self.levels, self.label = levels, label
        last = levels[-1]
        self.heads = last.shares[last.comm.rank].reads  # for `attend`

    def to_heads(self, queries: Sequence[Array], keys: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """All heads of this rank's tokens -> its heads of all tokens: `[B, H, S/P, ...]` -> `[B, H/P, S, ...]`."""
        arrays = [*queries, *keys]
        for level in self.levels:
            ranks, tokens = range(level.comm.size), arrays[0].shape[2]
            heads = [level.heads(rank, len(queries), len(keys)) for rank in ranks]
            ours = heads[level.comm.rank]
            made = [_zeros(x, h.stop - h.start, tokens * len(ranks)) for x, h in zip(arrays, ours, strict=True)]
            level.comm.hold("heads", *made)
            gives = [of_shard(arrays, heads[rank], level.our_runs) for rank in ranks]  # its heads of our tokens
            takes = [of_whole(made, level.runs[rank]) for rank in ranks]  # our heads of its tokens
            self._all_to_all(level.comm, gives, takes)
            arrays = made
        return arrays[: len(queries)], arrays[len(queries) :]

    def to_tokens(self, queries: Sequence[Array], keys: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The inverse of `to_heads`. The values that several ranks have for one K/V head are summed, level by level."""
        arrays = [*queries, *keys]
        for level in reversed(self.levels):
            ranks, tokens = range(level.comm.size), arrays[0].shape[2]
            heads = [level.heads(rank, len(queries), len(keys)) for rank in ranks]
            all_heads = [h.stop for h in heads[-1]]  # how many of each array: where the last rank's end
            made = [_zeros(x, n, tokens // len(ranks)) for x, n in zip(arrays, all_heads, strict=True)]
            level.comm.hold("heads", *made)
            gives = [of_whole(arrays, level.runs[rank]) for rank in ranks]  # our heads of its tokens
            takes = [of_shard(made, heads[rank], level.our_runs) for rank in ranks]  # its heads of our tokens
            self._all_to_all(level.comm, gives, takes)
            arrays = made
        return arrays[: len(queries)], arrays[len(queries) :]

    def _all_to_all(self, comm: Comm, gives: list[list[Array]], takes: list[list[Array]]) -> None:
        """Send `gives[rank]` to each rank, one a step, and add what comes from it to `takes[rank]`, zeros at first."""
        add_to(takes[comm.rank], gives[comm.rank])
        for dst, src in partners(comm):
            came = comm.sendrecv(gives[dst], dst, src, takes[src], label=self.label)
            add_to(takes[src], came)
            del came  # no longer held when the next one comes


def _zeros(like: Array, heads: int, tokens: int) -> Array:
    shape = like.shape[0], heads, tokens, *like.shape[3:]
    return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)
