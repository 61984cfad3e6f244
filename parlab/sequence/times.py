"""The time of attention across ranks, by formula: the makespan of the simulated clock without a run, in picoseconds.

Causal, forward, with zigzag shards where there is a ring. Three formulas give the times of five methods:

    ring, USP, Ulysses    `usp_time`: U ranks share the heads, U = 1 is the ring and U = P is Ulysses
    double ring           `double_ring_time`
    all-gather            `allgather_time`

They are made of three parts. `_work` is the time to attend some pairs. In `_ring_time` each hop hides behind the tile
that is attended meanwhile. In `_exchange_time` nothing is attended, and the messages go one of three ways:

    flat          a rank sends to the next ranks in their order, over whatever link leads there
    grid          straight too, but no step mixes links inside a node with links between nodes, as in
                  `Comm.all_to_all` with algorithm="grid"; `ulysses_attention` itself has the other two
    two levels    between the nodes once for all ranks of a node, and inside the nodes

A step of attention costs more than its hop and its pairs: the call of a kernel, and the merge of its output. These are
not on the clock. `step_cost` is their time, which each step after the first pays: a ring pays it P − 1 times, USP
P/U − 1 times, Ulysses and all-gather never. `least_step_cost` is the least that it can be.

The formulas are exact, but for the clock's rounding, where S and P divide as the method asks, the ranks fill whole
nodes or only one, and a group of U ranks fills nodes or divides one: then the slowest link sets the pace of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from parlab.arguments import instance, one_of, whole
from parlab.sequence.allgather import a_few_at_a_time
from parlab.sequence.costs import AttentionShape, pair_flops, unmasked_pairs
from parlab.sequence.double_ring import EARLY, LATE
from parlab.world import Cluster, Link
from parlab.world.cluster import picoseconds
from parlab.world.groups import checked_group

FLAT, GRID, TWO_LEVELS = "flat", "grid", "two levels"
WAYS = FLAT, GRID, TWO_LEVELS
FLASH_ATTENTION_3 = 0.65  # of an H100's peak: 648 of 989 TFLOP/s forward, 16-bit, D 128, 16k tokens, no mask (figure 5)
CALL = 8e-6  # seconds: of a call beyond the latency of its message, as NCCL counts it (8.4 µs, src/graph/tuning.cc)
MERGED = 10  # bytes of memory traffic for a number of out: reads the old one (4) and the new one (2), writes one (4)


class MethodTime(NamedTuple):
    """The time of a method, the way to exchange with which it takes that long, and how many ranks share the heads."""

    picoseconds: int
    way: str
    ulysses: int = 1


def method_times(
    shape: AttentionShape, size: int, cluster: Cluster, kernel: float = 1.0, *, step_cost: int = 0
) -> dict[str, MethodTime]:
    """The time of each method that gives all ranks equally many heads, with the fastest of its exchanges; of USP with
    its best U (1 < U < P). The double ring needs several nodes: in one it is the ring.

    Args:
        kernel: the fraction of the device's peak that attention reaches (`Cluster.reaching`).
        step_cost: picoseconds that each step after the first costs beside its hop and its pairs.

    >>> shape = AttentionShape(S=4096, H=8, G=2, D=64, itemsize=2)
    >>> sorted(method_times(shape, 16, Cluster.uniform(1e-6, 1e9)))  # Ulysses has a head for 8 ranks at most
    ['USP', 'all-gather', 'ring']
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    whole("step_cost", step_cost, least=0)
    cluster = cluster.reaching(kernel)
    g, in_nodes = cluster.ranks_per_node, _fill_nodes(size, cluster)
    groups = [U for U in range(2, size) if size % U == 0 and (g % U == 0 or U % g == 0)]  # divide a node, or fill nodes
    gathers = [FLAT, TWO_LEVELS] if in_nodes else [FLAT]

    def usp_times(sizes: Sequence[int]) -> list[MethodTime]:
        """With groups of each of these sizes whose ranks can share the heads evenly, by each way."""
        return [
            MethodTime(usp_time(shape, size, cluster, ulysses=U, way=way, step_cost=step_cost), way, U)
            for U in sizes
            if _even(shape, U)
            for way in _ways(shape, U, cluster)
        ]

    times = {
        "ring": usp_times([1]),
        "double ring": [double_ring_time(shape, size, cluster, step_cost)] if in_nodes else [],
        "Ulysses": usp_times([size]),
        "USP": usp_times(groups),
        "all-gather": [allgather_time(shape, size, cluster, way) for way in gathers],
    }
    return {name: min(found) for name, found in times.items() if found}


def least_step_cost(shape: AttentionShape, size: int, cluster: Cluster) -> int:
    """The least picoseconds that a step of attention costs beside its hop and its pairs: 8 µs for its call, and the
    merge of its output, 10 bytes for each number of S/P rows, at the speed of the memory.

    Computed traffic, not a measurement: what a merge reads is there already, it is one kernel, and no number passes
    twice. With zigzag shards the last rank merges all its rows in each step, and the first one half of them; groups of
    USP have U times the rows of H/U heads.

    >>> prompt = AttentionShape(S=131072, H=32, G=8, D=128, itemsize=2)
    >>> least_step_cost(prompt, 16, Cluster.uniform(0, 1e9, memory_bandwidth=3.35e12)) / 1e6  # µs
    108.162484
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    merged = shape.B * shape.H * shape.shard_length(size) * shape.D * MERGED
    return picoseconds(CALL) + picoseconds(cluster.device.seconds(0, merged))


def usp_time(
    shape: AttentionShape, size: int, cluster: Cluster, *, ulysses: int, way: str = FLAT, step_cost: int = 0
) -> int:
    """The time of `usp_attention`, whose groups of U ranks exchange flat, in a grid or in two levels.

        there + ring + back,   ring = max(own, hop) + (P/U − 2) max(other, hop) + other

    `there` is the all-to-all with q, k and v of a rank's heads, `back` the one with out and lse. A hop brings the K/V
    of a whole group of C = S·U/P tokens while the K/V that came before are attended: first the group's `own`,
    C(C + 1)/2 pairs, then those of each `other` group, C²/2 pairs and the cost of a step. With U = 1, the ring, nothing
    goes there and back; with U = P, Ulysses, there is no other group, and the ring takes as long as `own`.

    Source of the method: Fang, Zhao 2024, "USP", algorithm 1.

    Raises:
        ValueError: a rank would get other heads than its neighbours: U must divide H, and U and G one the other.
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    whole("ulysses", ulysses)
    one_of("way", way, WAYS)
    whole("step_cost", step_cost, least=0)
    checked_group("ulysses", ulysses, size)
    if not _even(shape, ulysses):
        raise ValueError(f"ulysses={ulysses}: must divide H={shape.H}, and divide G={shape.G} or be a multiple of it")
    if way not in _ways(shape, ulysses, cluster):
        raise ValueError(f"way={way!r}: groups of {ulysses} ranks fill no nodes of {cluster.ranks_per_node} evenly")
    c = shape.shard_length(size)
    C = ulysses * c
    own_heads = _heads_of(shape, ulysses)
    to_rank = to_node = own_heads.token(backward=False)
    if way == TWO_LEVELS:  # to a node go the heads of all its ranks, a K/V head that several of them read once
        to_node = _heads_of(shape, ulysses // cluster.ranks_per_node).token(backward=False)
    there = _exchange_time(
        way, ulysses, c * (to_rank.queries + to_rank.kv), c * (to_node.queries + to_node.kv), cluster
    )
    back = _exchange_time(way, ulysses, c * to_rank.result, c * to_node.result, cluster)
    own = _work(own_heads, C * (C + 1) // 2, cluster)
    other = _work(own_heads, C * C // 2, cluster) + step_cost
    hop = _slowest(size, cluster).picoseconds(C * to_rank.kv)
    return there + _ring_time([own] + (size // ulysses - 1) * [other], hop) + back


def double_ring_time(shape: AttentionShape, size: int, cluster: Cluster, step_cost: int) -> MethodTime:
    """The time of `double_ring_attention` on k nodes of g ranks: k turns of the ring inside a node.

        turn(own) + (k − 2) turn(other) + ring(other),   turn(first) = max(ring(first), crossing)

    `ring` is the inner ring's time, whose first tile is the rank's own or one of another node. In each turn but the
    last, the K/V of the next one cross between the nodes. With a port for each level they leave early, and the whole
    turn hides them. With one port for both they leave late, behind the last hop: the last two tiles hide both.

    Source of the method: Gu et al. 2024, "LoongTrain", section 4.
    """
    c, g = shape.shard_length(size), cluster.ranks_per_node
    kv = c * shape.token(backward=False).kv
    hop, between = cluster.intra.picoseconds(kv), cluster.inter.picoseconds(kv)
    own = _work(shape, c * (c + 1) // 2, cluster)
    other = _work(shape, c * c // 2, cluster) + step_cost
    late = cluster.ports == 1

    def turn_time(tiles: list[int]) -> int:
        until_last_hop = sum(max(tile, hop) for tile in tiles[:-2])
        crossing = until_last_hop + hop + between if late else between
        return max(_ring_time(tiles, hop), crossing)

    first, further = [own] + (g - 1) * [other], g * [other]  # the tiles of a turn
    time = turn_time(first) + (size // g - 2) * turn_time(further) + _ring_time(further, hop)
    return MethodTime(time, LATE if late else EARLY)


def allgather_time(shape: AttentionShape, size: int, cluster: Cluster, way: str) -> MethodTime:
    """The time of `allgather_attention`, which hides nothing.

        Σ exchange(K/V of two heads) + work

    Source of the method: Llama 3 (2024), section 3.3.2.
    """
    kv = shape.shard_length(size) * shape.token(backward=False).kv
    heads = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G)]  # 2, 2, ...
    pieces = [kv * few // shape.G for few in heads]
    gathered = sum(_exchange_time(way, size, piece, piece, cluster) for piece in pieces)
    work = _work(shape, unmasked_pairs(shape.S, size, "zigzag")[0], cluster)  # all ranks have as many pairs
    return MethodTime(gathered + work, way)


def _work(shape: AttentionShape, pairs: int, cluster: Cluster) -> int:
    """The time to attend so many pairs, all heads."""
    flops = pair_flops(pairs, shape.B, shape.H, shape.D)
    return picoseconds(cluster.device.seconds(flops, 0))


def _ring_time(tiles: list[int], hop: int) -> int:
    """The time of a ring whose tiles take so long. Beside each but the last, the next K/V come."""
    return sum(max(tile, hop) for tile in tiles[:-1]) + tiles[-1]


def _exchange_time(way: str, ranks: int, to_rank: int, to_node: int, cluster: Cluster) -> int:
    """The time in which each of so many ranks, on k nodes of g, sends every other a piece of `to_rank` bytes:

    flat          ranks − 1 messages over the slowest link
    grid          g − 1 inside the node, and ranks − g between nodes
    two levels    k − 1 between nodes, of `to_node` bytes each, and g − 1 inside the node, of k pieces each
    """
    g, k = cluster.ranks_per_node, ranks // cluster.ranks_per_node
    inside, between = cluster.intra.picoseconds, cluster.inter.picoseconds
    if way == FLAT:
        return (ranks - 1) * _slowest(ranks, cluster).picoseconds(to_rank)
    if way == GRID:
        return (g - 1) * inside(to_rank) + (ranks - g) * between(to_rank)
    return (k - 1) * between(to_node) + (g - 1) * inside(k * to_rank)


def _slowest(ranks: int, cluster: Cluster) -> Link:
    """The slowest link among so many consecutive ranks."""
    return cluster.intra if ranks <= cluster.ranks_per_node else cluster.inter


def _ways(shape: AttentionShape, ranks: int, cluster: Cluster) -> list[str]:
    """How so many ranks can exchange heads. Two levels are timed where all nodes get equally many."""
    if not _fill_nodes(ranks, cluster):
        return [FLAT]
    return [FLAT, GRID, TWO_LEVELS] if _even(shape, ranks // cluster.ranks_per_node) else [FLAT, GRID]


def _fill_nodes(ranks: int, cluster: Cluster) -> bool:
    """Whether the ranks fill several nodes, of two ranks or more."""
    return 1 < cluster.ranks_per_node < ranks and ranks % cluster.ranks_per_node == 0


def _even(shape: AttentionShape, parts: int) -> bool:
    """Whether each of so many parts gets as many heads: whole K/V heads, or one that equally many parts read."""
    return shape.H % parts == 0 and (shape.G % parts == 0 or parts % shape.G == 0)


def _heads_of(shape: AttentionShape, parts: int) -> AttentionShape:
    """The shape with the heads of one of so many parts."""
    return replace(shape, H=shape.H // parts, G=max(shape.G // parts, 1))
