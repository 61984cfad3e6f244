"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

The double ring turns a ring inside each node, while the K/V of the next turn come from the node before. A plain ring
crosses the slow link between two nodes in every hop; here that link has a whole turn of the inner ring's time for each
transfer, and all ranks of a node use their links to the next at once.

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and blocks merged by their log-sum-exp. Double ring: Gu et al. 2024, "LoongTrain:
Efficient Training of Long-Sequence LLMs with Head-Context Parallelism", section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parlab.arguments import checked
from parlab.arrays import Array, namespace
from parlab.nn.attention import wide_zeros
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import ALL, Call, Heads, Pair, Queries, Scale, add_to, backward_of, grid
from parlab.sequence.costs import AttentionShape, RankCost, Token, checked_group
from parlab.sequence.layouts import Documents, RingSchedule, RingStep, journeys
from parlab.world import Comm, Request

Visit = Callable[[int, Array, Array], Pair | None]  # of the K/V of a rank; backward it returns their gradients
Hop = tuple[Request | None, Request | None]  # out, in


@checked(RULES)
def ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Documents = None,
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; every rank of `comm` calls it.

    Backward the K/V go around once more. Behind them travel their gradients, to which each rank adds its share, and
    which need one hop more than the K/V to come home: (P − 1) + P = 2P − 1 hops.

    Args:
        q: `[B, H, S/P, D]`, this rank's queries.
        k, v: `[B, G, S/P, D]`, where G divides H.
        causal: a token sees itself and earlier ones only.
        layout: contiguous, zigzag or striped: how the sequence was dealt out (`parlab.sequence.shard`).
        documents: starts of the packed documents, and the end, [0, ..., S]: no token sees another document's. K/V
            then travel no further than to the last rank that needs them (`journeys`).
        scale: 1/√D when None.

    Returns out `[B, H, S/P, D]` in q's dtype, lse `[B, H, S/P]` in float32 or wider. ValueError: shapes, a layout or
    documents that do not fit, before any message. MismatchError: another rank was told something else.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4, "zigzag"))
    >>> out, lse = run(ring_attention, 4, pieces, pieces, pieces, causal=True, layout="zigzag").results[0]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 0 owns tokens 0 and 7, which see 1 and 8 keys
    [1, 8]
    """
    call = Call("ring", comm, q, k, v, scale, causal=causal, layout=layout, documents=documents)
    return call.results(*attend_around(call, comm, call.rows, k, v))


ring_attention_backward = backward_of(ring_attention)


@checked(RULES)
def double_ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ranks_per_node: int | None = None,
    causal: bool = False,
    layout: str = "contiguous",
    scale: Scale = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and
    `ranks_per_node`: how many consecutive ranks share a node. It divides P; None: all do.

    Backward, in each turn, dK/dV of one node's K/V are summed over this node, and over the nodes on their way home.
    """
    inside = comm.size if ranks_per_node is None else ranks_per_node
    call = Call("double ring", comm, q, k, v, scale, causal=causal, layout=layout, ranks_per_node=inside)
    node, between = grid(comm, "ranks_per_node", inside)
    queries = Queries(call, call.rows, comm)

    def turn(home: int, k: Array, v: Array) -> Pair | None:  # K/V of all ranks of the node `home`
        return around(node, k, v, lambda local, k, v: queries.meet(home * node.size + local, k, v), call)

    gradients = around(between, k, v, turn, call)  # the next node's are posted before a turn
    return call.results(queries.done(gradients), gradients)


double_ring_attention_backward = backward_of(double_ring_attention)


def attend_around(
    call: Call, ring: Comm | None, rows: Sequence[Array], k: Array, v: Array, heads: Heads = ALL
) -> tuple[list[Array], Pair | None]:
    """The sums of queries that attend the K/V of each rank of the ring, if there is one, and backward dk and dv."""
    queries = Queries(call, rows, ring)
    visit = partial(queries.meet, heads=heads)
    if ring is None:
        gradients = visit(0, k, v)
    else:
        gradients = around(ring, k, v, visit, call, journeys(ring.size, k.shape[2], **call.dealt))
    return queries.done(gradients), gradients


def around(comm: Comm, k: Array, v: Array, visit: Visit, call: Call, travel: list[int] | None = None) -> Pair | None:
    """The K/V of all ranks come past this one, by so many hops as `travel` says of each, P − 1 unless told otherwise:
    `visit(source, k, v)`, while the next ones travel.

    Invariant: when hop t starts (from 0), rank r holds the K/V of rank s = (r − t) mod P, and has visited those of the
    ranks r, r − 1, ..., s + 1. Backward `visit` returns this rank's share of dK/dV, and ours come home, summed: when
    hop t starts, those of s, summed over the ranks s, s + 1, ..., r − 1, are on their way from r − 1. The last rank to
    hold the K/V adds the last share and sends dK/dV home: if they went all around, that is one hop more to the right.
    """
    form = None  # of dK/dV, without their memory: one zero, seen everywhere
    if call.backward:
        form = tuple(namespace(x).broadcast_to(wide_zeros(x[:1, :1, :1, :1]), x.shape) for x in (k, v))
    travel = travel or [comm.size - 1] * comm.size
    source, own = comm.rank, travel[comm.rank]
    held, mine = (k, v), None
    returning: Hop = (None, None)  # the dK/dV of `source`, on their way to us
    home: Hop = (None, None)  # ... and ours
    last = RingStep(comm.size - 1, comm.right, comm.left, kv_source=comm.rank)  # no K/V travel any more
    for step, hop in enumerate((*RingSchedule(comm.rank, comm.size).steps, last)):
        goes, comes = travel[source] > step, travel[hop.kv_source] > step
        coming = (k, v) if comes else None
        arriving = post(comm, held if goes else None, hop.send_to, coming, hop.recv_from, call.label)
        share = None if held is None else visit(source, *held)
        if call.backward:
            gradients = arrived(returning)  # the shares of the ranks that held this K/V before us
            if step == 0:
                gradients = share
                if comm.size > 1:  # else it is one block's result, and the caller's
                    comm.hold("dq, dk, dv", gradients)
                mine = gradients if own == 0 else None
            elif share is not None:
                add_to(gradients, share)
            outgoing, next_stop = gradients if travel[source] else None, comm.right if goes else source
            returning = post(comm, outgoing, next_stop, form if comes else None, comm.left, call.label)
            if step == own > 0:
                home = post(comm, None, comm.rank, form, (comm.rank + own) % comm.size, call.label)
            del share, gradients, outgoing  # or they would still be held while the next share is made
        held, source = arrived(arriving), hop.kv_source
    arrived(returning)
    return arrived(home) if own else mine


def post(comm: Comm, x: Pair | None, dst: int, form: Pair | None, src: int, label: str) -> Hop:
    """As `swap`, without waiting for either."""
    sending = None if x is None else comm.isend(x, dst, label=label)
    return sending, None if form is None else comm.irecv(src, form, label=label)


def arrived(hop: Hop) -> Any:
    """What came; None: nothing."""
    sending, receiving = hop
    came = None if receiving is None else receiving.wait()  # first: what is needed gives a wait its name
    if sending is not None:
        sending.wait()
    return came


@checked(RULES)
def ring_cost(shape: AttentionShape, size: int, rank: int = 0, *, backward: bool = False, **dealt: Any) -> RankCost:
    """What `rank` sends and holds: K/V of rank s make `journeys[s]` hops, dK/dV one more. It holds what it attends
    and what arrives. `dealt`: causal, layout and documents, as `ring_attention`.

    >>> shape = AttentionShape(S=12, H=1, G=1, D=1, itemsize=8)
    >>> [ring_cost(shape, 3, rank, causal=True, documents=[0, 6, 12])[:2] for rank in range(3)]  # cut inside rank 1
    [(1, 64), (1, 64), (0, 0)]
    """
    c = shape.shard(size, rank)
    return ring_bytes(shape.token(backward=backward), c, journeys(size, c, **dealt), rank, backward=backward)


def ring_bytes(token: Token, c: int, travel: list[int], rank: int = 0, *, backward: bool) -> RankCost:
    """`ring_cost` of shards of `c` tokens whose K/V make so many hops."""
    size = len(travel)
    left = [travel[(rank - step) % size] - step for step in range(size)]  # hops still to make by what is here
    here, goes = [hops >= 0 for hops in left], [hops > 0 for hops in left]
    comes = [*here[1:], False]
    kv = [(step > 0 and here[step]) + comes[step] for step in range(size)]  # attended, if not our own, and arriving
    home = [step >= max(travel[rank], 1) for step in range(size)]  # our dK/dV: arriving, or never gone
    leaves = [here[step] and travel[(rank - step) % size] > 0 for step in range(size)]
    dkv = [here[step] + comes[step] + home[step] for step in range(size)]  # added to, arriving, and ours
    most = max(dkv[step] * token.dkv + max(kv[step : step + 2]) * token.kv for step in range(size))
    back = sum(leaves) if backward else 0
    nbytes = sum(goes) * token.kv + back * token.dkv
    return RankCost(sum(goes) + back, c * nbytes, c * (token.own + token.sums + most))


@checked(RULES)
def double_ring_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, ranks_per_node: int | None = None, backward: bool = False
) -> RankCost:
    """What every `rank` sends and holds: a ring of n in each of P/n turns, and a ring of P/n between nodes of n ranks.
    Forward n − 1 hops a turn and P/n − 1 between nodes, P − 1 in all; backward n more a turn, and P/n, for dK/dV.

    >>> double_ring_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4, ranks_per_node=2)[:2]
    (3, 786432)
    """
    token, c = shape.token(backward=backward), shape.shard(size, rank)
    inside = checked_group("ranks_per_node", size if ranks_per_node is None else ranks_per_node, size)
    turns = size // inside
    inner, outer = (ring_bytes(token, c, [ring - 1] * ring, backward=backward) for ring in (inside, turns))
    twice = token.own + token.sums  # in both rings
    if 1 in (inside, turns):
        twice += token.dkv  # the share of a ring of one rank is what the other ring adds to
    messages, nbytes = turns * inner.messages + outer.messages, turns * inner.nbytes + outer.nbytes
    return RankCost(messages, nbytes, inner.held + outer.held - c * twice)
