"""Attention with gathered keys and values: each rank gets the K/V of all, a few heads at a time, and attends its rows.

No transfer is hidden behind work. But K/V heads are few, any mask is simple, and K/V are whole for a few heads only.

Invariant: after each portion of heads, their queries have met all keys that they see, and the other heads none.

Sources: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2; two levels: Karonis et al., "Exploiting hierarchy
in parallel computer networks to optimize collective operation performance" (IPDPS 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
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
from parlab.sequence.layouts import Documents
from parlab.sequence.tiles import readers, sharded_mask, tiles_between
from parlab.world import Comm
from parlab.world.collectives.walks import partners
from parlab.world.groups import checked_group, grid


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
    `ranks_per_node`, how many consecutive ranks share a node, they go to all, in two levels (`gather_in_two_levels`).
    """
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout, documents)
    label = call_label("all-gather", mask, ranks_per_node=ranks_per_node, scale=scale)
    comm.hold("q, k, v", q, k, v)
    out, lse = no_keys_yet(comm, q)
    readers_of = readers(mask)  # by source
    node_groups = None if ranks_per_node is None else grid(comm, ranks_per_node)  # inside, between
    for h, g in a_few_at_a_time(q.shape[1], k.shape[1]):
        few = k[:, g, ...], v[:, g, ...]  # twice [B, 2, S/P, D]
        if node_groups is None:
            gathered = gather(comm, few, readers_of, label)
        else:
            gathered = gather_in_two_levels(*node_groups, few, label)
        for source, kv in gathered.items():
            tiles = tiles_between(comm.rank, source, mask)
            attend(comm, tiles, q[:, h, ...], kv, (out[:, h, ...], lse[:, h, ...]), scale=scale)
        del gathered, kv  # no longer held when the next heads come
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


def gather(comm: Comm, few: Any, readers_of: list[Sequence[int]], label: str) -> dict[int, Any]:
    """Give `few` to each rank that reads our K/V, and take as many from each source whose K/V we read: by source."""
    gathered = {comm.rank: few}
    for dst, src in partners(comm):
        gives, takes = dst in readers_of[comm.rank], comm.rank in readers_of[src]  # without documents always both
        if gives and takes:
            gathered[src] = comm.sendrecv(few, dst, src, label=label)
        elif gives:
            comm.send(few, dst, label=label)
        elif takes:
            gathered[src] = comm.recv(src, few, label=label)
    return gathered


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
    readers_of = readers(mask)  # by source
    node_groups = None if ranks_per_node is None else grid(comm, ranks_per_node)  # inside, between
    for h, g in a_few_at_a_time(q.shape[1], k.shape[1]):
        few = k[:, g, ...], v[:, g, ...]  # twice [B, 2, S/P, D]
        few_dout, few_q, few_lse, few_delta, few_dq = [x[:, h, ...] for x in (dout, q, lse, delta, dq)]
        if node_groups is None:
            gathered = gather(comm, few, readers_of, label)
        else:
            gathered = gather_in_two_levels(*node_groups, few, label)
        shares: dict[int, KV] = {}  # this rank's part of the gradients of each source
        for source, kv in gathered.items():
            tiles = tiles_between(comm.rank, source, mask)
            shares[source] = attend_backward(comm, tiles, few_dout, few_q, kv, few_lse, few_delta, few_dq, scale=scale)
            comm.hold(GRADIENTS, *shares[source])
        del gathered, kv  # no longer held when the gradients come
        own = dk[:, g, ...], dv[:, g, ...]  # of these heads of our tokens: twice [B, 2, S/P, D]
        if node_groups is None:
            scatter_sum(comm, shares, own, readers_of, label)
        else:
            scatter_sum_in_two_levels(*node_groups, shares, own, label)
        del shares
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


def scatter_sum(comm: Comm, shares: dict[int, KV], total: KV, readers_of: list[Sequence[int]], label: str) -> None:
    """Send each source our share of its gradients; add to `total` our own share, and those that our readers send."""
    add_to(total, shares[comm.rank])
    for dst, src in partners(comm):
        gives, takes = comm.rank in readers_of[dst], src in readers_of[comm.rank]
        if gives and takes:
            add_to(total, comm.sendrecv(shares[dst], dst, src, total, label=label))
        elif gives:
            comm.send(shares[dst], dst, label=label)
        elif takes:
            add_to(total, comm.recv(src, total, label=label))


def gather_in_two_levels(inside: Comm, between: Comm, few: KV, label: str) -> dict[int, KV]:
    """`gather` to all ranks, but our K/V enter each other node once: between nodes they go to the ranks of our place.

    Rank r is at place r mod g of node r // g, with g ranks a node. After level 1 it has the K/V of its place, of all
    nodes: in nodes 0, 1 and 2, 3 rank 0 has those of 0 and 2, which it then gives to rank 1.
    """
    g, nodes = inside.size, range(between.size)
    of_our_place = gather(between, few, all_read(between), label)  # by node
    column = [of_our_place[node] for node in nodes]
    of_all_places = gather(inside, column, all_read(inside), label)  # by place, then by node
    rank, size = between.rank * g + inside.rank, g * len(nodes)
    sources = [(rank - step) % size for step in range(size)]  # in the order of `gather`
    return {source: of_all_places[source % g][source // g] for source in sources}


def scatter_sum_in_two_levels(inside: Comm, between: Comm, shares: dict[int, KV], total: KV, label: str) -> None:
    """`scatter_sum`, but of each source a node sends one sum: inside the node its ranks' shares are summed first.

    After level 1 a rank has its node's sums for the sources of its place, of all nodes: in nodes 0, 1 and 2, 3 rank 0
    has those for 0 and 2, and gives the one for 2 to rank 2.
    """
    g, nodes = inside.size, range(between.size)
    by_place = [[shares[node * g + place] for node in nodes] for place in range(g)]
    sums = by_place[inside.rank]  # at first our own shares
    for dst, src in partners(inside):
        came = inside.sendrecv(by_place[dst], dst, src, sums, label=label)
        for node in nodes:
            add_to(sums[node], came[node])
        del came  # no longer held when the next ones come
    scatter_sum(between, dict(enumerate(sums)), total, all_read(between), label)


def all_read(comm: Comm) -> list[Sequence[int]]:
    """The `readers` of each rank, where all read the K/V of all."""
    return [range(comm.size)] * comm.size


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
    readers_of = readers(sharded_mask(size, c, **how))
    our_readers, our_sources = len(readers_of[rank]) - 1, sum(rank in ranks for ranks in readers_of) - 1  # without us
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
