"""The time of attention across ranks, by formula: the makespan of the simulated clock without a run, in picoseconds.

Causal, forward, with zigzag shards where there is a ring. Ring and Ulysses are the two ends of one formula: U of P
ranks share the heads, U = 1 is the ring and U = P is Ulysses. Ranks can exchange in several ways; each method has the
fastest of its own:

    flat          a rank sends to the next ranks in their order, over whatever link leads there
    grid          straight too, but no step mixes links inside a node with links between nodes, as in
                  `Comm.all_to_all` with algorithm="grid"; `ulysses_attention` itself has the other two
    two levels    between the nodes once for all ranks of a node, and inside the nodes
    early, late   two levels of the double ring: when in a turn the K/V for the next node leave

What a step of attention costs beside its hop and its pairs, the call of a kernel and the merge of its output, is not on
the clock. The argument `step` is its price: how many times the least that it can cost (`step_time`). The private
functions take the product, in picoseconds, as `charge`.

The formulas are exact, but for the clock's rounding, where S and P divide as the method asks, the ranks fill whole
nodes or only one, and a group of U ranks fills nodes or divides one: then the slowest link sets the pace of each step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from parlab.arguments import amount, instance, one_of, positive, whole
from parlab.sequence.allgather import a_few_at_a_time
from parlab.sequence.costs import AttentionShape, pair_flops, unmasked_pairs
from parlab.sequence.double_ring import EARLY, LATE
from parlab.world import Cluster, Link
from parlab.world.cluster import picoseconds
from parlab.world.groups import checked_group

METHODS = ("ring", "double ring", "Ulysses", "USP", "all-gather")
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
    shape: AttentionShape, size: int, cluster: Cluster, kernel: float = 1.0, *, step: float = 0.0
) -> dict[str, MethodTime]:
    """The time of each of `METHODS` that gives all ranks equally many heads, with the fastest of its
    exchanges; of USP with its best U (1 < U < P). Several nodes are needed for the double ring: in one it is the ring.

    `kernel` is the fraction of the device's peak that attention reaches (`Cluster.reaching`). Each step of attention
    after the first costs `step` times `step_time`: rings have P steps, USP P/U, Ulysses and all-gather one.

    >>> shape = AttentionShape(S=4096, H=8, G=2, D=64, itemsize=2)
    >>> sorted(method_times(shape, 16, Cluster.uniform(1e-6, 1e9)))  # Ulysses has a head for 8 ranks at most
    ['USP', 'all-gather', 'ring']
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    positive("kernel", kernel)
    amount("step", step)
    shape.shard_length(size)
    cluster = cluster.reaching(kernel)
    charge = _charge(step, shape, size, cluster)
    mixed = [u for u in range(2, size) if size % u == 0 and _in_nodes(u, cluster)]
    group_sizes = {"ring": [1], "Ulysses": [size], "USP": mixed}  # U, those to be timed
    found: dict[str, list[MethodTime]] = {name: [] for name in METHODS}
    for name, sizes in group_sizes.items():
        for u in sizes:
            if _even(shape, u):
                for way in _ways(shape, u, size, cluster):
                    time = _usp_time(shape, size, cluster, u, way, charge)
                    found[name].append(MethodTime(time, way, u))
    has_nodes = _several_nodes(size, cluster)
    found["double ring"] = [_double_ring_time(shape, size, cluster, charge)] if has_nodes else []
    ways = (FLAT, TWO_LEVELS) if has_nodes else (FLAT,)
    found["all-gather"] = [MethodTime(_allgather_time(shape, size, cluster, way), way) for way in ways]
    return {name: min(found[name]) for name in METHODS if found[name]}


def step_time(shape: AttentionShape, size: int, cluster: Cluster) -> int:
    """The least that a step of attention costs beside its hop and its pairs: 8 µs for its call, and the merge of its
    output, 10 bytes for each number of S/P rows, at the speed of the memory. Computed traffic, not a measurement: what
    a merge reads is there already, it is one kernel, and no number passes twice. With zigzag shards the last rank
    merges all its rows in each step, and the first one half of them; groups of USP have U times the rows of H/U heads.

    >>> prompt = AttentionShape(S=131072, H=32, G=8, D=128, itemsize=2)
    >>> step_time(prompt, 16, Cluster.uniform(0, 1e9, memory_bandwidth=3.35e12)) / 1e6  # µs
    108.162484
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    merged = shape.B * shape.H * shape.shard_length(size) * shape.D * MERGED
    return picoseconds(CALL) + picoseconds(cluster.device_of(0).seconds(0, merged))


def usp_time(
    shape: AttentionShape, size: int, cluster: Cluster, *, ulysses: int, way: str = FLAT, step: float = 0.0
) -> int:
    """The time of `usp_attention`, whose groups of U ranks exchange flat, in a grid or in two levels.

        there + back + max(own, hop) + (P/U − 2) max(half, hop) + half

    `there` is the all-to-all with q, k and v of a rank's heads, `back` the one with out and lse. A hop brings the K/V
    of a whole group of C = S·U/P tokens while the K/V that came before are attended: first the group's own, C(C + 1)/2
    pairs, then those of each other group, C²/2 pairs, to which `step` adds the call and the merge.

    Raises:
        ValueError: a rank would get other heads than its neighbours: U must divide H, and U and G one the other.
    """
    whole("size", size)
    instance("cluster", cluster, Cluster)
    whole("ulysses", ulysses)
    one_of("way", way, WAYS)
    amount("step", step)
    checked_group("ulysses", ulysses, size)
    if not _even(shape, ulysses):
        raise ValueError(f"ulysses={ulysses}: must divide H={shape.H}, and divide G={shape.G} or be a multiple of it")
    if way not in _ways(shape, ulysses, size, cluster):
        raise ValueError(f"way={way!r}: groups of {ulysses} ranks fill no nodes of {cluster.ranks_per_node} evenly")
    return _usp_time(shape, size, cluster, ulysses, way, _charge(step, shape, size, cluster))


def _usp_time(shape: AttentionShape, size: int, cluster: Cluster, ulysses: int, way: str, charge: int) -> int:
    """`usp_time` of checked arguments, with the time that a step costs as `charge`."""
    mine = _heads_of(shape, ulysses)
    C, ring = shape.shard_length(size) * ulysses, size // ulysses
    hop = _link(cluster, size).picoseconds(C * mine.token(backward=False).kv)
    own = _attend(mine, C * (C + 1) // 2, cluster)
    half = _attend(mine, C * C // 2, cluster) + charge
    ring_time = own if ring == 1 else max(own, hop) + (ring - 2) * max(half, hop) + half
    return _exchanges(shape, size, cluster, ulysses, way) + ring_time


def _exchanges(shape: AttentionShape, size: int, cluster: Cluster, ulysses: int, way: str) -> int:
    """The time of both all-to-alls of a group: there with q, k and v, and back with out and lse."""
    c, token = shape.shard_length(size), _heads_of(shape, ulysses).token(backward=False)
    pieces = c * (token.rows + token.kv), c * token.result
    if way == FLAT:
        return (ulysses - 1) * sum(map(_link(cluster, ulysses).picoseconds, pieces))
    places, intra, inter = cluster.ranks_per_node, cluster.intra, cluster.inter
    if way == GRID:
        inside = (places - 1) * sum(map(intra.picoseconds, pieces))
        return inside + (ulysses - places) * sum(map(inter.picoseconds, pieces))
    nodes = ulysses // places
    node = _heads_of(shape, nodes).token(backward=False)  # a K/V head that several ranks of the node read: once
    inside = (places - 1) * sum(intra.picoseconds(nodes * piece) for piece in pieces)
    return inside + (nodes - 1) * sum(map(inter.picoseconds, (c * (node.rows + node.kv), c * node.result)))


def _charge(step: float, shape: AttentionShape, size: int, cluster: Cluster) -> int:
    """The charge for a step after the first: `step` times the least."""
    return round(step * step_time(shape, size, cluster)) if step else 0


def _double_ring_time(shape: AttentionShape, size: int, cluster: Cluster, charge: int) -> MethodTime:
    """The time of `double_ring_attention`: a turn of the inner ring for each node, while the K/V of the next turn come.

    With a port for each level these leave early, and the whole turn hides them. With one port for both they leave late:
    the last two tiles hide them and the last hop.
    """
    c, places, one_port = shape.shard_length(size), cluster.ranks_per_node, cluster.ports == 1
    kv = c * shape.token(backward=False).kv
    hop, between = cluster.intra.picoseconds(kv), cluster.inter.picoseconds(kv)
    own = _attend(shape, c * (c + 1) // 2, cluster)
    half = _attend(shape, c * c // 2, cluster) + charge
    time, turns = 0, size // places
    for turn in range(turns):
        first = own if turn == 0 else half
        hops = [max(first, hop)] + [max(half, hop)] * (places - 2)  # each beside a tile
        attended = sum(hops) + half
        crossed = sum(hops[:-1]) + hop + between if one_port else between
        time += attended if turn == turns - 1 else max(attended, crossed)
    return MethodTime(time, LATE if one_port else EARLY)


def _allgather_time(shape: AttentionShape, size: int, cluster: Cluster, way: str) -> int:
    """The time of `allgather_attention` with zigzag shards: no message is hidden behind work."""
    heads = [keys.stop - keys.start for _, keys in a_few_at_a_time(shape.H, shape.G)]  # of each portion
    portions = [shape.shard_length(size) * shape.token(backward=False).kv * few // shape.G for few in heads]
    work = _attend(shape, unmasked_pairs(shape.S, size, "zigzag")[0], cluster)
    if way == FLAT:
        return (size - 1) * sum(map(_link(cluster, size).picoseconds, portions)) + work
    places, nodes = cluster.ranks_per_node, size // cluster.ranks_per_node
    inside = (places - 1) * sum(cluster.intra.picoseconds(nodes * kv) for kv in portions)
    return (nodes - 1) * sum(map(cluster.inter.picoseconds, portions)) + inside + work


def _ways(shape: AttentionShape, ulysses: int, size: int, cluster: Cluster) -> list[str]:
    """How a group of U ranks can exchange. Two levels are timed where all nodes get equally many heads."""
    if not (_several_nodes(size, cluster) and _several_nodes(ulysses, cluster)):
        return [FLAT]
    even = _even(shape, ulysses // cluster.ranks_per_node)
    return [FLAT, GRID, TWO_LEVELS] if even else [FLAT, GRID]


def _several_nodes(ranks: int, cluster: Cluster) -> bool:
    """Whether the ranks fill several nodes, of two ranks or more."""
    return 1 < cluster.ranks_per_node < ranks and ranks % cluster.ranks_per_node == 0


def _in_nodes(ulysses: int, cluster: Cluster) -> bool:
    """Whether a group of U ranks divides a node or fills nodes."""
    return cluster.ranks_per_node % ulysses == 0 or ulysses % cluster.ranks_per_node == 0


def _even(shape: AttentionShape, parts: int) -> bool:
    """Whether each of so many parts gets as many heads: whole K/V heads, or one that equally many parts read."""
    return shape.H % parts == 0 and (shape.G % parts == 0 or parts % shape.G == 0)


def _heads_of(shape: AttentionShape, parts: int) -> AttentionShape:
    """The shape with the heads of one of so many parts."""
    return replace(shape, H=shape.H // parts, G=max(shape.G // parts, 1))


def _link(cluster: Cluster, ranks: int) -> Link:
    """The slowest link among so many consecutive ranks."""
    return cluster.intra if ranks <= cluster.ranks_per_node else cluster.inter


def _attend(shape: AttentionShape, pairs: int, cluster: Cluster) -> int:
    """The time to attend so many pairs, all heads."""
    flops = pair_flops(pairs, shape.B, shape.H, shape.D)
    return picoseconds(cluster.device_of(0).seconds(flops, 0))
