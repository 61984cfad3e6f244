"""The double ring: a ring inside each node, while the K/V of the next turn come from the node before.

A plain ring crosses the slow link between two nodes in every hop. Here that link has a whole turn of the inner ring's
time for each transfer, and all ranks of a node use their links to the next node at once.

Invariant, with g ranks a node: in turn t (from 0), node n attends the K/V of node (n − t) mod P/g; in step s of the
turn, the rank at place i of the node attends those of place (i − s) mod g.

When should the K/V for the next node leave? Early, behind the first hop of the turn, where each level has a port of its
own, as in the paper: the whole turn hides them. Late, behind the last hop, where both levels share one port: every hop
that is posted after them would wait until they have passed.

Source: Gu et al. 2024, "LoongTrain: Efficient Training of Long-Sequence LLMs with Head-Context Parallelism", section 4.
"""

from __future__ import annotations

from parlab.arguments import one_of
from parlab.arrays import Array
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot
from parlab.sequence.attend import (
    GRADIENTS,
    KV,
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
from parlab.sequence.homeward import Homeward
from parlab.sequence.ring import plain_ring_cost
from parlab.sequence.tiles import sharded_mask, tiles_between
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring
from parlab.world.groups import checked_group, grid

EARLY = "early"  # with the first hop of a turn inside the node
LATE = "late"  # with the last


def double_ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ranks_per_node: int | None = None,
    crossing: str = EARLY,
    causal: bool = False,
    layout: str = "contiguous",
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and
    `ranks_per_node`: how many consecutive ranks share a node. It divides P; None: all do. `crossing`: the K/V for the
    next node leave early or late in each turn.
    """
    one_of("crossing", crossing, (EARLY, LATE))
    per_node = comm.size if ranks_per_node is None else checked_group("ranks_per_node", ranks_per_node, comm.size)
    check_inputs(q, k, v, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout)
    label = call_label("double ring", mask, ranks_per_node=per_node, crossing=crossing, scale=scale)
    comm.hold("q, k, v", q, k, v)
    inside, between = grid(comm, per_node)
    out, lse = no_keys_yet(comm, q)
    crossing_step = _crossing_step(inside.size, crossing)
    from_node = k, v  # twice [B, G, S/P, D], at first our own; in each turn those of our place in `source_node`
    for turn in range(between.size):
        source_node = (between.rank - turn) % between.size
        last = turn == between.size - 1
        for place, kv in around_ring(inside, from_node, label):  # of this place of the source node
            step = (inside.rank - place) % inside.size  # of the turn, from 0
            if step == crossing_step and not last:
                leaving = between.isend(from_node, between.right, label=label)
                arriving = between.irecv(between.left, from_node, label=label)
            tiles = tiles_between(comm.rank, source_node * per_node + place, mask)
            attend(comm, tiles, q, kv, (out, lse), scale=scale)
            del kv  # no longer held when the next hop begins
        if not last:
            from_node = arriving.wait()
            leaving.wait()
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


def double_ring_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    ranks_per_node: int | None = None,
    crossing: str = EARLY,
    causal: bool = False,
    layout: str = "contiguous",
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, and `ranks_per_node`.

    In each turn dK/dV of one node's K/V are summed over this node, and over the nodes on their way home: they leave
    this node when K/V next cross, one turn behind theirs.
    """
    one_of("crossing", crossing, (EARLY, LATE))
    per_node = comm.size if ranks_per_node is None else checked_group("ranks_per_node", ranks_per_node, comm.size)
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    mask = sharded_mask(comm.size, k.shape[2], causal, layout)
    label = call_label("double ring backward", mask, ranks_per_node=per_node, crossing=crossing, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    inside, between = grid(comm, per_node)
    dq = no_gradient_yet(comm, q)
    crossing_step = _crossing_step(inside.size, crossing)
    to_our_node = Homeward(between, (k, v), label)
    node_share: KV | None = None  # dK/dV of the turn before, summed over our node
    from_node = k, v
    for turn in range(between.size):
        source_node = (between.rank - turn) % between.size
        last = turn == between.size - 1
        to_our_place = Homeward(inside, (k, v), label)
        for place, kv in around_ring(inside, from_node, label):
            step = (inside.rank - place) % inside.size  # of the turn, from 0
            if step == crossing_step and node_share is not None:
                to_our_node.pass_on(node_share)
                node_share = None
            if step == crossing_step and not last:
                leaving = between.isend(from_node, between.right, label=label)
                arriving = between.irecv(between.left, from_node, label=label)
            tiles = tiles_between(comm.rank, source_node * per_node + place, mask)
            to_our_place.pass_on(attend_backward(comm, tiles, dout, q, kv, lse, delta, dq, scale=scale))
            del kv  # no longer held when the next hop begins
        node_share = to_our_place.wait()
        if not last:
            from_node = arriving.wait()
            leaving.wait()
    assert node_share is not None
    to_our_node.pass_on(node_share)
    del node_share
    dk, dv = to_our_node.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


def _crossing_step(ranks_per_node: int, crossing: str) -> int:
    """The step of a turn in which the transfers between nodes are posted: that of its first hop, or of its last."""
    return 0 if crossing == EARLY else max(ranks_per_node - 2, 0)


def double_ring_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, ranks_per_node: int | None = None, backward: bool = False
) -> RankCost:
    """The messages, bytes and held bytes of every `rank`: with n ranks a node, a ring of n in each of P/n turns, and a
    ring of P/n between nodes.

    Forward n − 1 hops a turn and P/n − 1 between nodes, P − 1 in all. Backward dK/dV make n more a turn, and P/n more.

    >>> double_ring_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4, ranks_per_node=2)[:2]
    (3, 786432)
    """
    token, c = shape.token(backward=backward), shape.shard_length(size, rank)
    per_node = checked_group("ranks_per_node", size if ranks_per_node is None else ranks_per_node, size)
    turns = size // per_node
    inner, outer = (plain_ring_cost(token, c, ring, backward=backward) for ring in (per_node, turns))
    twice = token.own + token.sums  # in both rings
    if 1 in (per_node, turns):
        twice += token.dkv  # the share of a ring of one rank is what the other ring adds to
    messages, nbytes = turns * inner.messages + outer.messages, turns * inner.nbytes + outer.nbytes
    return RankCost(messages, nbytes, inner.held + outer.held - c * twice)
