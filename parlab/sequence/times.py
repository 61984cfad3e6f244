"""The time of attention across ranks, by formula: the makespan of the simulated clock without a run, in picoseconds.

Forward, causal, with zigzag shards where there is a ring. Ring and Ulysses are the two ends of one formula: U of P
ranks share the heads, U = 1 is the ring and U = P is Ulysses.

The formulas are exact, but for the clock's rounding, where S and P divide as the method asks, the ranks fill whole
nodes or only one, and a group of U ranks fills nodes or divides one: then the slowest link sets the pace of each step.
"""

from __future__ import annotations

from dataclasses import replace

from parlab.arguments import checked
from parlab.sequence.allgather import a_few_at_a_time
from parlab.sequence.arguments import RULES
from parlab.sequence.costs import AttentionShape, checked_group, pair_flops, unmasked_pairs
from parlab.world import Cluster, Link
from parlab.world.cluster import picoseconds

METHODS = ("ring", "Ulysses", "USP", "all-gather")


@checked(RULES)
def usp_time(shape: AttentionShape, size: int, cluster: Cluster, *, ulysses: int) -> int:
    """The time of `usp_attention`.

        (U − 1)(there + back) + max(own, hop) + (P/U − 2) max(half, hop) + half

    `there` is the time of a message with q, k and v of a rank's heads, `back` of one with out and lse. A hop brings the
    K/V of a whole group of C = S·U/P tokens while the K/V that came before are attended: first the group's own, C(C +
    1)/2 pairs, then those of each other group, C²/2 pairs.

    Raises:
        ValueError: a rank would get other heads than its neighbours: U must divide H, and U and G one the other.
    """
    checked_group("ulysses", ulysses, size)
    if not _even(shape, ulysses):
        raise ValueError(f"ulysses={ulysses}: must divide H={shape.H}, and divide G={shape.G} or be a multiple of it")
    mine = replace(shape, H=shape.H // ulysses, G=max(shape.G // ulysses, 1))
    token, c = mine.token(backward=False), shape.shard(size)
    C, ring = c * ulysses, size // ulysses
    inside, hop = _link(cluster, ulysses), _link(cluster, size).picoseconds(C * token.kv)
    exchanges = inside.picoseconds(c * (token.rows + token.kv)) + inside.picoseconds(c * token.result)
    own, half = _attend(mine, C * (C + 1) // 2, cluster), _attend(mine, C * C // 2, cluster)
    turn = own if ring == 1 else max(own, hop) + (ring - 2) * max(half, hop) + half
    return (ulysses - 1) * exchanges + turn


@checked(RULES)
def best_ulysses(shape: AttentionShape, size: int, cluster: Cluster) -> int | None:
    """The U between the ring and Ulysses (1 < U < P) with which USP is fastest. None: there is no such U."""
    node = cluster.ranks_per_node
    between = [u for u in range(2, size) if size % u == 0 and _even(shape, u) and (node % u == 0 or u % node == 0)]
    return min(between, key=lambda u: usp_time(shape, size, cluster, ulysses=u), default=None)


@checked(RULES)
def method_times(shape: AttentionShape, size: int, cluster: Cluster) -> dict[str, int]:
    """The time of each of `METHODS` that gives all ranks equally many heads; of USP with its `best_ulysses`.

    >>> shape = AttentionShape(S=4096, H=8, G=2, D=64, itemsize=2)
    >>> sorted(method_times(shape, 16, Cluster.uniform(1e-6, 1e9)))  # Ulysses has a head for 8 ranks at most
    ['USP', 'all-gather', 'ring']
    """
    shape.shard(size)
    groups = {"ring": 1, "Ulysses": size, "USP": best_ulysses(shape, size, cluster)}
    even = {name: u for name, u in groups.items() if u is not None and _even(shape, u)}
    times = {name: usp_time(shape, size, cluster, ulysses=u) for name, u in even.items()}
    return times | {"all-gather": _allgather_time(shape, size, cluster)}


def _allgather_time(shape: AttentionShape, size: int, cluster: Cluster) -> int:
    """The time of `allgather_attention` with zigzag shards: no message is hidden behind work."""
    kv, link = shape.shard(size) * shape.token(backward=False).kv, _link(cluster, size)
    heads = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G)]  # of each turn
    turns = [link.picoseconds(kv * few // shape.G) for few in heads]
    return (size - 1) * sum(turns) + _attend(shape, unmasked_pairs(shape.S, size, "zigzag")[0], cluster)


def _even(shape: AttentionShape, ulysses: int) -> bool:
    return shape.H % ulysses == 0 and (shape.G % ulysses == 0 or ulysses % shape.G == 0)


def _link(cluster: Cluster, ranks: int) -> Link:
    """The slowest link among so many consecutive ranks."""
    return cluster.intra if ranks <= cluster.ranks_per_node else cluster.inter


def _attend(shape: AttentionShape, pairs: int, cluster: Cluster) -> int:
    """The time to attend so many pairs, all heads."""
    return picoseconds(cluster.device_of(0).seconds(pair_flops(pairs, shape.B, shape.H, shape.D), 0))
