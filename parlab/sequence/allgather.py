"""Attention with gathered keys and values: each rank gets the K/V of all, a few heads at a time, and attends its rows.

No transfer is hidden behind work. But K/V heads are few, any mask is simple, and K/V are whole for a few heads only.

Invariant: after each portion of heads, their queries have met all keys that they see, and the other heads none.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot, wide_zeros
from parlab.sequence.attend import (
    GRADIENTS,
    KV,
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
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.exchange import swap_with_all
from parlab.sequence.layouts import Documents
from parlab.sequence.tiles import ShardedMask, readers, sharded_mask, tiles_between
from parlab.sequence.two_levels import TwoLevelGather
from parlab.world import Comm
from parlab.world.groups import checked_group


def allgather_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`.

    K/V, two heads at a time, go straight to each rank that needs them: without documents, to all. With
    `ranks_per_node`, how many consecutive ranks share a node, they go to all, in two levels (`TwoLevelGather`).
    """
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout, documents)
    label = call_label("all-gather", mask, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    out, lse = no_keys_yet(comm, q)
    kv_exchange = gather_exchange(comm, mask, label, ranks_per_node)
    for h, g in a_few_at_a_time(q.shape[1], k.shape[1]):
        few = k[:, g, ...], v[:, g, ...]  # twice [B, 2, S/P, D]
        gathered = kv_exchange.gather(few)  # of every source; P − 1 `sendrecv` in `swap_with_all`
        for source, kv in gathered.items():
            tiles = tiles_between(comm.rank, source, mask)
            attend(comm, tiles, q[:, h, ...], kv, (out[:, h, ...], lse[:, h, ...]), scale=scale)
        del gathered, kv  # no longer held when the next heads come
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


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
    documents: Documents = None,
    ranks_per_node: int | None = None,
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, and `ranks_per_node`.

    K/V are gathered again. Their gradients, on each rank those of all tokens, are reduce-scattered: they go straight
    home and are summed there.
    """
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout, documents)
    label = call_label("all-gather backward", mask, ranks_per_node=ranks_per_node, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    dq, dk, dv = no_gradient_yet(comm, q), wide_zeros(k), wide_zeros(v)
    comm.hold(GRADIENTS, dk, dv)
    kv_exchange = gather_exchange(comm, mask, label, ranks_per_node)
    for h, g in a_few_at_a_time(q.shape[1], k.shape[1]):
        few = k[:, g, ...], v[:, g, ...]  # twice [B, 2, S/P, D]
        few_dout, few_q, few_lse, few_delta, few_dq = [x[:, h, ...] for x in (dout, q, lse, delta, dq)]
        gathered = kv_exchange.gather(few)  # of every source
        shares: dict[int, KV] = {}  # this rank's part of the gradients of each source
        for source, kv in gathered.items():
            tiles = tiles_between(comm.rank, source, mask)
            shares[source] = attend_backward(comm, tiles, few_dout, few_q, kv, few_lse, few_delta, few_dq, scale=scale)
            comm.hold(GRADIENTS, *shares[source])
        del gathered, kv  # no longer held when the gradients come
        kv_exchange.scatter_sum(shares, (dk[:, g, ...], dv[:, g, ...]))
        del shares
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


class GatherExchange:
    """K/V to the ranks that read them, and their gradients home, each straight. `reads[source][rank]`: who reads."""

    def __init__(self, comm: Comm, reads: list[list[bool]], label: str) -> None:
        self.comm, self.label = comm, label
        self.reads_ours = reads[comm.rank]  # by rank
        self.we_read = [source[comm.rank] for source in reads]  # by source

    def gather(self, few: KV) -> dict[int, KV]:
        """Give `few` to each rank that reads them, and take as many from each whose K/V this one reads: by source."""
        gives = [few if reads else None for reads in self.reads_ours]
        forms = [few if read else None for read in self.we_read]
        return dict(swap_with_all(self.comm, gives, forms, self.label))

    def scatter_sum(self, shares: dict[int, KV], mine: KV) -> None:
        """Send each source the share of its gradients, and add to `mine` those that come from its readers."""
        gives = [shares.get(source) for source in range(self.comm.size)]
        forms = [mine if reads else None for reads in self.reads_ours]
        for _, share in swap_with_all(self.comm, gives, forms, self.label):
            add_to(mine, share)
            del share  # no longer held when the next one comes


def gather_exchange(
    comm: Comm, mask: ShardedMask, label: str, ranks_per_node: int | None
) -> GatherExchange | TwoLevelGather:
    """The exchange of K/V in one level, or told the ranks of a node in two."""
    if ranks_per_node is None:
        return GatherExchange(comm, readers(mask), label)
    return TwoLevelGather(comm, label, ranks_per_node)


def a_few_at_a_time(H: int, G: int) -> list[tuple[slice, slice]]:
    """Slices of query heads and of the K/V heads that they read, at most two of these at a time."""
    stops = [(g, min(g + 2, G)) for g in range(0, G, 2)]
    return [(slice(start * H // G, stop * H // G), slice(start, stop)) for start, stop in stops]


def allgather_cost(
    shape: AttentionShape,
    size: int,
    rank: int = 0,
    *,
    ranks_per_node: int | None = None,
    backward: bool = False,
    **how: Any,
) -> RankCost:
    """The messages, bytes and held bytes of `rank`: it sends its K/V to each rank that reads them, P − 1 without
    documents, in ⌈G/2⌉ messages each; backward also dK/dV to each rank whose K/V it reads. `how`: causal, layout
    and documents, as `allgather_attention`. With `ranks_per_node` (g, in k nodes) k + g − 2 messages carry as much.

    >>> allgather_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4)[:2]
    (3, 786432)
    """
    c = shape.shard_length(size, rank)
    reads = readers(sharded_mask(size, c, **how))
    our_readers, our_sources = sum(reads[rank]) - 1, sum(source[rank] for source in reads) - 1  # how many other ranks
    there, home = our_readers, our_sources  # messages with K/V, and with dK/dV
    in_largest = min(our_readers, 1)  # how many sources' gradients the largest message home has
    if ranks_per_node is not None:
        nodes = size // checked_group("ranks_per_node", ranks_per_node, size)
        our_readers = our_sources = size - 1
        there = home = nodes + ranks_per_node - 2
        in_largest = nodes if ranks_per_node > 1 else in_largest
    few = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G)]
    token = shape.token(backward=backward)
    kv, dkv = (few[0] * nbytes // shape.G for nbytes in (token.kv, token.dkv))  # of the first heads
    held = token.own + token.sums + token.dkv + (our_sources + 1) * dkv + max(our_sources * kv, in_largest * dkv)
    messages = (there + home * backward) * len(few)
    return RankCost(messages, c * (our_readers * token.kv + our_sources * backward * token.dkv), c * held)
