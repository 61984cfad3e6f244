"""Attention with gathered keys and values: each rank gets the K/V of all, a few heads at a time, and attends its rows.

Nothing is hidden behind anything. But K/V heads are few, any mask is simple, and K/V are whole for a few heads only.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2.
"""

from __future__ import annotations

from typing import Any

from parlab.arguments import checked, whole
from parlab.arrays import Array
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import Call, Pair, Queries, Scale, add_to, backward_of, exchange
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.layouts import Documents, readers
from parlab.world import Comm


@checked(RULES)
def allgather_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    kv_heads: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and `kv_heads`:
    how many K/V heads are gathered at a time; None: 2, or 1 if there is one only.

    K/V go straight to each rank that has a block with them: without documents, to all. Backward they are gathered
    again; their gradients, on each rank those of all tokens, are reduce-scattered: straight home, and summed there.
    """
    dealt = {"causal": causal, "layout": layout, "documents": documents}
    call = Call("all-gather", comm, q, k, v, scale, **dealt, kv_heads=kv_heads)
    queries, known = Queries(call, call.rows, comm), readers(comm.size, k.shape[2], **call.dealt)
    needed, needs = known[comm.rank], [source[comm.rank] for source in known]  # by whom, and whose K/V
    gradients = queries.attend([], k, v)  # backward: [B, G, S/P, D]
    comm.hold(call.made, *(gradients or ()))

    def turn(h: slice, g: slice) -> None:
        ours = k[:, g, ...], v[:, g, ...]  # [B, kv_heads, S/P, D]
        gives, forms = [ours if reads else None for reads in needed], [ours if reads else None for reads in needs]
        gathered: dict[int, Pair] = dict(exchange(comm, gives, forms, call.label))
        shares: list[Pair | None] = [None] * comm.size  # what this rank gives to the gradients of each
        for source, pair in gathered.items():
            shares[source] = queries.meet(source, *pair, [(h, slice(None))])
            comm.hold(call.made, *(shares[source] or ()))
        del gathered, pair  # before gradients come
        if gradients is not None:
            mine = gradients[0][:, g, ...], gradients[1][:, g, ...]
            for _, share in exchange(comm, shares, [mine if reads else None for reads in needed], call.label):
                add_to(mine, share)
                del share  # before the next one comes

    for h, g in a_few_at_a_time(call.q.shape[1], k.shape[1], kv_heads):
        turn(h, g)
    return call.results(queries.done(gradients), gradients)


allgather_attention_backward = backward_of(allgather_attention)


def a_few_at_a_time(H: int, G: int, kv_heads: int | None = None) -> list[tuple[slice, slice]]:
    """Query heads and the K/V heads that they read, `kv_heads` or fewer of these at a time."""
    kv_heads = min(2, G) if kv_heads is None else kv_heads
    if not 1 <= whole("kv_heads", kv_heads) <= G:
        raise ValueError(f"kv_heads={kv_heads}: gather 1 to {G} key/value heads at a time")
    starts = range(0, G, kv_heads)
    return [(slice(g * H // G, min(g + kv_heads, G) * H // G), slice(g, min(g + kv_heads, G))) for g in starts]


@checked(RULES)
def allgather_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, kv_heads: int | None = None, backward: bool = False, **how: Any
) -> RankCost:
    """What `rank` sends and holds: its K/V to each rank that reads them, P − 1 without documents, G/kv_heads messages
    each; backward as many with dK/dV, to each rank whose K/V it has. `how` the tokens are dealt: as `ring_cost`.

    >>> allgather_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4)[:2]
    (3, 786432)
    """
    c = shape.shard(size, rank)
    reads = readers(size, c, **how)
    goes, comes = sum(reads[rank]) - 1, sum(source[rank] for source in reads) - 1
    few = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G, kv_heads)]
    token = shape.token(backward=backward)
    kv, dkv = (few[0] * nbytes // shape.G for nbytes in (token.kv, token.dkv))  # of the heads of one turn
    held = token.own + token.sums + token.dkv + (comes + 1) * dkv + max(comes * kv, min(goes, 1) * dkv)
    back = comes * backward
    return RankCost((goes + back) * len(few), c * (goes * token.kv + back * token.dkv), c * held)
