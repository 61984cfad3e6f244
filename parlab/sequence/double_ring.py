"""Double ring: K/V go around the ring of a node, while those for the next turn come from the node before.

A plain ring crosses the slow link between two nodes in every hop. Here that link has a whole turn of the inner ring's
time for each transfer, and all ranks of a node use their links to the next at once.

Source: Gu et al. 2024, "LoongTrain: Efficient Training of Long-Sequence LLMs with Head-Context Parallelism", section 4.
"""

from __future__ import annotations

from parlab.arrays import Array
from parlab.sequence.attend import Pair, Queries, QueryGradients, agreed, backward_rows, grid, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.ring import around, around_backward
from parlab.sequence.schedule import RingSchedule
from parlab.world import Comm


def double_ring_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    ranks_per_node: int | None = None,
    causal: bool = False,
    layout: str = "contiguous",
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's shards of it; arguments as `ring_attention`, and
    `ranks_per_node`: how many consecutive ranks share a node; it divides P. None: all do, and the inner ring is all.

    Raises:
        ValueError: shapes, a layout or a node that do not fit, before any message.
        MismatchError: another rank was told another layout, `causal` or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> out, lse = run(double_ring_attention, 4, pieces, pieces, pieces, ranks_per_node=2, causal=True).results[3]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # rank 3 owns tokens 6 and 7
    [7, 8]
    """
    ranks_per_node = comm.size if ranks_per_node is None else ranks_per_node
    label, dealt = agreed(comm, "double ring", q, k, v, scale, causal, layout, ranks_per_node=ranks_per_node)
    node, between = grid(comm, "ranks_per_node", ranks_per_node)
    queries = Queries(comm, q, scale)
    schedule = RingSchedule(comm.rank, comm.size)

    def turn(home: int, k: Array, v: Array) -> None:
        def visit(local: int, k: Array, v: Array) -> None:
            queries.attend(schedule.blocks(home * node.size + local, q.shape[2], **dealt), k, v)

        around(node, k, v, visit, label)  # K/V of all ranks of the node `home`

    around(between, k, v, turn, label)  # the next node's are posted before a turn
    return queries.done()


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
    causal: bool = False,
    layout: str = "contiguous",
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`, and `ranks_per_node`.

    In each turn dK/dV of one node's K/V are summed over this node, and then over the nodes on their way home.

    Raises: as the forward.
    """
    ranks_per_node = comm.size if ranks_per_node is None else ranks_per_node
    label, dealt = agreed(comm, "double ring backward", q, k, v, scale, causal, layout, ranks_per_node=ranks_per_node)
    rows = backward_rows(comm, dout, q, out, lse)
    node, between = grid(comm, "ranks_per_node", ranks_per_node)
    queries = QueryGradients(comm, rows, scale)
    schedule = RingSchedule(comm.rank, comm.size)

    def turn(home: int, k: Array, v: Array) -> Pair:
        def visit(local: int, k: Array, v: Array) -> Pair:
            return queries.attend(schedule.blocks(home * node.size + local, q.shape[2], **dealt), k, v)

        return around_backward(node, k, v, visit, label)

    return narrowed(queries.done(*around_backward(between, k, v, turn, label)), (q, k, v))


def double_ring_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, ranks_per_node: int | None = None, backward: bool = False
) -> RankCost:
    """What every `rank` sends and holds: forward as much as in a plain ring, but between nodes only once a turn.

    P/n turns of n − 1 hops and P/n − 1 between nodes of n ranks: P − 1. Backward each turn brings dK/dV back to
    where it began, n hops, and P/n more bring them home.

    >>> double_ring_cost(AttentionShape(S=1024, H=8, G=2, D=64, itemsize=4), 4, ranks_per_node=2)[:2]
    (3, 786432)
    """
    inside = ranks_per_node or size
    nodes = size // inside
    c = shape.S // size
    held = c * (shape.own(backward=backward) + shape.sums(backward=backward))
    kv = sum(min(ring - 1, 2) + (ring > 1) for ring in (nodes, inside))  # of each ring: attended, arriving, leaving
    if not backward:
        return RankCost(size - 1, c * (size - 1) * shape.kv, held + c * kv * shape.kv)
    back = (nodes * inside if inside > 1 else 0) + (nodes if nodes > 1 else 0)
    kv -= nodes == 2 and inside > 1  # the second turn holds most, and no K/V leave the node
    dkv = 3 * (inside > 1) + 3 * (nodes > 1) or 1  # added to, arriving, leaving
    held += c * (kv * shape.kv + dkv * shape.dkv)
    return RankCost(size - 1 + back, c * ((size - 1) * shape.kv + back * shape.dkv), held)
