"""Ring attention: each rank keeps its queries, and the keys and values travel around the ring.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", algorithm 1, with the
layouts of `parlab.sequence.layouts` and blocks merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.attention import accumulator_dtype
from parlab.sequence.attend import ALL, Heads, Pair, Queries, QueryGradients, add_to, agreed, backward_rows, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.schedule import RingSchedule, journeys
from parlab.world import Comm, Request

Hop = tuple[Request | None, Request | None]  # out, in


def ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it.

    Args:
        comm: the ring; every rank of it calls this.
        q: `[B, H, S/P, D]`, this rank's queries.
        k, v: `[B, G, S/P, D]`, where G divides H.
        causal: a token sees itself and earlier ones only.
        layout: contiguous, zigzag or striped: how the sequence was dealt out (`parlab.sequence.shard`).
        documents: starts of the packed documents, and the end, [0, ..., S]: no token sees another document's. K/V
            then travel no further than to the last rank that needs them (`journeys`).
        scale: 1/√D when None.

    Returns:
        out `[B, H, S/P, D]` in q's dtype, lse `[B, H, S/P]` in float32 or wider.

    Raises:
        ValueError: shapes, a layout or documents that do not fit, before any message.
        MismatchError: another rank was told another layout, `causal`, documents or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4, "zigzag"))
    >>> out, lse = run(ring_attention, 4, pieces, pieces, pieces, causal=True, layout="zigzag").results[0]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 0 owns tokens 0 and 7, which see 1 and 8 keys
    [1, 8]
    """
    label, dealt = agreed(comm, "ring", q, k, v, scale, causal, layout, documents)
    return attend_around(comm, q, k, v, label, dealt, scale)


def ring_attention_backward(
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
    documents: Sequence[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards, from `dout`, the gradient of a loss with respect to its `out`.

    The K/V go around once more. Behind them travel their gradients, to which each rank adds its share, and which need
    one hop more than the K/V to come home: (P − 1) + P = 2P − 1 hops.

    Args:
        comm: the ring; every rank of it calls this.
        dout: `[B, H, S/P, D]`.
        q, k, v, causal, layout, documents, scale: as in the forward.
        out, lse: what the forward returned.

    Returns:
        dq `[B, H, S/P, D]`, dk and dv `[B, G, S/P, D]`, in the dtypes of q, k and v; sums are made, and travel, in
        float32 or wider.

    Raises: as the forward.
    """
    label, dealt = agreed(comm, "ring backward", q, k, v, scale, causal, layout, documents)
    rows = backward_rows(comm, dout, q, out, lse)
    return narrowed(attend_around_backward(comm, rows, k, v, label, dealt, scale), (q, k, v))


def attend_around(
    ring: Comm, q: Array, k: Array, v: Array, label: str, dealt: dict[str, Any], scale: float | None, heads: Heads = ALL
) -> tuple[Array, Array]:
    """`(out, lse)`: the queries stay, and attend the K/V of each rank as they come past."""
    queries = Queries(ring, q, scale)
    schedule = RingSchedule(ring.rank, ring.size)

    def visit(source: int, k: Array, v: Array) -> None:
        queries.attend(schedule.blocks(source, q.shape[2], **dealt), k, v, heads)

    around(ring, k, v, visit, label, journeys(ring.size, q.shape[2], **dealt))
    return queries.done()


def attend_around_backward(
    ring: Comm,
    rows: Sequence[Array],
    k: Array,
    v: Array,
    label: str,
    dealt: dict[str, Any],
    scale: float | None,
    heads: Heads = ALL,
) -> tuple[Array, Array, Array]:
    """`(dq, dk, dv)`, the last two in float32 or wider, of `backward_rows`."""
    queries = QueryGradients(ring, rows, scale)
    schedule, length = RingSchedule(ring.rank, ring.size), k.shape[2]

    def visit(source: int, k: Array, v: Array) -> Pair:
        return queries.attend(schedule.blocks(source, length, **dealt), k, v, heads)

    return queries.done(*around_backward(ring, k, v, visit, label, journeys(ring.size, length, **dealt)))


def around(
    comm: Comm,
    k: Array,
    v: Array,
    visit: Callable[[int, Array, Array], None],
    label: str,
    travel: Sequence[int] | None = None,
) -> None:
    """The K/V of all ranks come past this one: `visit(source, k, v)`, while the next ones travel.

    Invariant: when hop t starts (from 0), rank r holds the K/V of rank (r − t) mod P, and has visited those of the
    ranks r, r − 1, ..., r − t + 1. After P − 1 hops and the last visit it has seen all. `travel`: how many hops the
    K/V of each rank make, if not P − 1; the later ones are left out.
    """
    travel = travel or [comm.size - 1] * comm.size
    source = comm.rank
    held: Pair | None = (k, v)
    for hop in (*RingSchedule(comm.rank, comm.size).steps, None):  # None: with the last block no K/V travels
        if hop is not None:
            outgoing = held if travel[source] > hop.step else None
            form = (k, v) if travel[hop.kv_source] > hop.step else None
            arriving = _start(comm, outgoing, hop.send_to, form, hop.recv_from, label)
        if held is not None:
            visit(source, *held)
        if hop is not None:
            held = _arrived(arriving)
            source = hop.kv_source


def around_backward(
    comm: Comm,
    k: Array,
    v: Array,
    visit: Callable[[int, Array, Array], Pair],
    label: str,
    travel: Sequence[int] | None = None,
) -> Pair:
    """The K/V come past once more, `visit` returns this rank's share of their gradients, and ours come home summed.

    Invariant: when K/V hop t starts (from 0), rank r holds the K/V of rank s = (r − t) mod P, and their dK/dV, summed
    over the ranks s, s + 1, ..., r − 1, are on their way from r − 1. The last rank to hold the K/V adds the last share
    and sends dK/dV home: if they went all around, that is one hop more to the right.
    """
    xp = namespace(k)
    travel = travel or [comm.size - 1] * comm.size
    own = travel[comm.rank]
    form = tuple(xp.empty(x.shape, dtype=accumulator_dtype(x), device=x.device) for x in (k, v))  # of dK/dV
    source = comm.rank
    held: Pair | None = (k, v)
    returning: Hop = (None, None)  # the dK/dV of `source`, on their way to us
    home: Hop = (None, None)
    for step, hop in enumerate((*RingSchedule(comm.rank, comm.size).steps, None)):
        coming = hop is not None and travel[hop.kv_source] > step
        if hop is not None:
            outgoing = held if travel[source] > step else None
            arriving = _start(comm, outgoing, hop.send_to, (k, v) if coming else None, hop.recv_from, label)
        share = None if held is None else visit(source, *held)
        gradients = _arrived(returning)  # the shares of the ranks that held this K/V before us
        if step == 0:
            gradients = share
            if comm.size > 1:  # else it is one block's result, and the caller's
                comm.hold("dq, dk, dv", gradients)
        elif share is not None:
            add_to(gradients, share)
        del share  # or it would still be held while the next one is made
        if own == 0 == step:
            mine = gradients
        next_stop = comm.right if travel[source] > step else source
        outgoing = gradients if travel[source] > 0 else None
        returning = _start(comm, outgoing, next_stop, form if coming else None, comm.left, label)
        if step == own > 0:
            home = _start(comm, None, comm.rank, form, (comm.rank + own) % comm.size, label)
        if hop is not None:
            held = _arrived(arriving)
            source = hop.kv_source
    _arrived(returning)
    return _arrived(home) if own else mine


def ring_cost(
    shape: AttentionShape,
    size: int,
    rank: int = 0,
    *,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
    backward: bool = False,
) -> RankCost:
    """What `rank` sends and holds, packed documents too: K/V of rank s make `journeys[s]` hops, dK/dV one more.

    It holds the K/V that it attends, that arrive, and (a copy) that leave, and as much of dK/dV; less where a message
    has passed before the next is posted.

    >>> shape = AttentionShape(S=12, H=1, G=1, D=1, itemsize=8)
    >>> [ring_cost(shape, 3, rank)[:2] for rank in range(3)]
    [(2, 128), (2, 128), (2, 128)]
    >>> [ring_cost(shape, 3, rank, causal=True, documents=[0, 6, 12])[:2] for rank in range(3)]  # cut inside rank 1
    [(1, 64), (1, 64), (0, 0)]
    """
    c, edges = shape.S // size, None if documents is None else tuple(documents)
    travel = journeys(size, c, layout, causal=causal, documents=edges)
    left = [travel[(rank - step) % size] - step for step in range(size)]  # hops still to make by what is here
    here, goes = [hops >= 0 for hops in left], [hops > 0 for hops in left]
    comes = [*here[1:], False]
    kv = [(step > 0 and here[step]) + comes[step] + goes[step] for step in range(size)]  # attended, if not our own, ...
    held = c * (shape.own(backward=backward) + shape.sums(backward=backward))
    if not backward:
        return RankCost(sum(goes), sum(goes) * c * shape.kv, held + max(kv) * c * shape.kv)
    home = [step >= max(travel[rank], 1) for step in range(size)]  # our dK/dV: arriving, or never gone
    leaves = [here[step] and travel[(rank - step) % size] > 0 for step in range(size)]
    dkv = [here[step] + comes[step] + leaves[step] + home[step] for step in range(size)]  # added to, arriving, ...
    most = max(dkv[step] * shape.dkv + max(kv[step : step + 2]) * shape.kv for step in range(size))
    back = sum(leaves)
    return RankCost(sum(goes) + back, c * (sum(goes) * shape.kv + back * shape.dkv), held + c * most)


def _start(comm: Comm, x: Pair | None, dst: int, form: Pair | None, src: int, label: str) -> Hop:
    """Post a message out and one in; None is not sent, or will not come."""
    return (
        None if x is None else comm.isend(x, dst, label=label),
        None if form is None else comm.irecv(src, form, label=label),
    )


def _arrived(hop: Hop) -> Any:
    sending, receiving = hop
    arrived = None if receiving is None else receiving.wait()  # first: what is needed gives a wait its name
    if sending is not None:
        sending.wait()
    return arrived
