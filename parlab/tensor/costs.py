"""The closed forms of tensor parallelism: messages, bytes and seconds.

B batch, S sequence, t ranks. Every collective is a ring: an all-reduce of n bytes sends 2n(t − 1)/t from each rank in
2(t − 1) messages; an all-gather or a reduce-scatter half of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.arguments import flag, instance, one_of, whole
from parlab.nn.config import LlamaConfig
from parlab.tensor.arguments import check_on_paper
from parlab.tensor.slices import check_sizes, kv_shared_by
from parlab.world import Cluster, Link
from parlab.world.cluster import picoseconds
from parlab.world.collectives import (
    Cost,
    piece_sizes,
    ring_all_gather_cost,
    ring_all_reduce_cost,
    ring_reduce_scatter_cost,
)


class Collective(NamedTuple):
    """One call.

    Attributes:
        name: all_reduce, all_gather or reduce_scatter.
        what: a name for the array that travels.
        elements: of the whole array that is reduced or gathered.
        itemsize: bytes of each.
        ranks: of the group: t, or those that share a key/value head.
    """

    name: str
    what: str
    elements: int
    itemsize: int
    ranks: int


class Traffic(NamedTuple):
    """The messages and the bytes that each rank sends: two lists, an item for each rank."""

    messages: list[int]
    nbytes: list[int]


def block_collectives(
    config: LlamaConfig,
    B: int,
    S: int,
    size: int,
    itemsize: int,
    *,
    backward: bool = False,
    sequence_parallel: bool = False,
) -> list[Collective]:
    """The collectives of one decoder block.

    Two all-reduces of B·S·E forward and two backward. With sequence parallelism each forward one is an all-gather and a
    reduce-scatter; backward there are two more all-gathers, which bring the inputs of the column layers again, and the
    two norms' gradients are summed. Backward, where G < t, dW of k and v are summed over their t/G owners.

    Source: Shoeybi et al. 2019, figure 4; Korthikanti et al. 2022, figures 5 and 6.

    >>> config = LlamaConfig(vocab_size=32, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
    ...                      num_attention_heads=16, num_key_value_heads=4)
    >>> found = block_collectives(config, B=1, S=1024, size=2, itemsize=4)
    >>> [call.name for call in found], found[0].elements * 4 // 2**20  # MiB
    (['all_reduce', 'all_reduce'], 4)
    """
    check_on_paper(config, sequence_parallel, B=B, S=S, size=size, itemsize=itemsize)
    flag("backward", backward)
    E, D, activation = config.hidden_size, config.head_dim, B * S * config.hidden_size

    def call(name: str, what: str, elements: int, ranks: int = size) -> Collective:
        return Collective(name, what, elements, itemsize, ranks)

    found = []
    for part in ("mlp", "attention") if backward else ("attention", "mlp"):
        if not sequence_parallel:
            found.append(call("all_reduce", f"{part}: dx" if backward else f"{part}: y", activation))
        elif backward:
            found.append(call("all_gather", f"{part}: dy", activation))
            found.append(call("all_gather", f"{part}: x again", activation))
            found.append(call("reduce_scatter", f"{part}: dx", activation))
            found.append(call("all_reduce", f"{part} norm: dW", E))
        else:
            found.append(call("all_gather", f"{part}: x", activation))
            found.append(call("reduce_scatter", f"{part}: y", activation))
    shared_by = kv_shared_by(config.num_key_value_heads, size)
    if backward and shared_by > 1:
        found += [call("all_reduce", f"attention: dW of {name}", E * D, shared_by) for name in "kv"]
    return found


ANY_LINK = Link(0, 1)  # messages and bytes do not depend on it


def traffic(collectives: Sequence[Collective], size: int) -> Traffic:
    """The messages and bytes that each of `size` ranks sends in these calls, uneven pieces of a ring included.

    >>> traffic([Collective("all_reduce", "y", 8, 4, 2)], size=2)
    Traffic(messages=[2, 2], nbytes=[32, 32])
    """
    if not isinstance(collectives, Sequence) or not all(isinstance(call, Collective) for call in collectives):
        raise ValueError(f"collectives={collectives!r:.60}: must be a list of Collective")
    whole("size", size, 1)
    total = Traffic([0] * size, [0] * size)
    for call in collectives:
        cost = _cost(call, ANY_LINK)
        for rank in range(size):
            total.messages[rank] += cost.messages[rank % call.ranks]
            total.nbytes[rank] += cost.nbytes[rank % call.ranks]
    return total


def _cost(call: Collective, link: Link) -> Cost:
    if call.name == "all_reduce":
        return ring_all_reduce_cost(call.ranks, call.elements, call.itemsize, link)
    pieces = [call.itemsize * piece for piece in piece_sizes(call.elements, call.ranks)]
    return ring_all_gather_cost(pieces, link) if call.name == "all_gather" else ring_reduce_scatter_cost(pieces, link)


class Time(NamedTuple):
    """Picoseconds of one pass through a block, computing and sending one after the other."""

    compute: int
    messages: int


def block_time(
    config: LlamaConfig,
    B: int,
    S: int,
    size: int,
    itemsize: int,
    cluster: Cluster,
    *,
    backward: bool = False,
    sequence_parallel: bool = False,
    algorithm: str = "ring",
) -> Time:
    """How long one decoder block takes on the simulated clock without overlap; rank 0 is the first of its node.

    Norms and residuals take no time on this clock. A ring that leaves a node keeps the pace of its slowest link.

    Args:
        algorithm: ring, as `ParallelRegion` sends; or rings, one through each network card of whole nodes, as NCCL has
            them: together they pass `ranks_per_node` times what a card does, or what a rank sends inside its node, if
            that is less.

    Raises:
        ValueError: heads or columns do not divide among the ranks, another algorithm, or rings for ranks that do not
            fill their nodes.

    >>> from parlab.world import CLASSROOM
    >>> config = LlamaConfig(vocab_size=32, hidden_size=1024, intermediate_size=4096, num_hidden_layers=1,
    ...                      num_attention_heads=16)
    >>> alone, inside, across = (block_time(config, 1, 1024, t, 4, CLASSROOM) for t in (1, 8, 16))
    >>> alone.compute == 8 * inside.compute, alone.messages, across.messages > 10 * inside.messages
    (True, 0, True)
    """
    options = {"backward": backward, "sequence_parallel": sequence_parallel}
    calls = block_collectives(config, B, S, size, itemsize, **options)  # refuses bad arguments
    instance("cluster", cluster, Cluster)
    one_of("algorithm", algorithm, ("ring", "rings"))
    check_sizes(config, size)
    node = cluster.ranks_per_node
    if algorithm == "rings" and size > node and size % node:
        raise ValueError(f"size={size!r}: a ring through each card needs whole nodes of {node} ranks")
    E, D = config.hidden_size, config.head_dim
    query_columns = config.num_attention_heads * D // size
    key_columns = config.num_key_value_heads * kv_shared_by(config.num_key_value_heads, size) * D // size
    attention = 2 * B * S * E * (2 * query_columns + 2 * key_columns)  # q and o, k and v
    mlp = 2 * B * S * E * 3 * config.intermediate_size // size
    core = B * (S * (S + 1) // 2) * query_columns  # multiplications of one causal product; 2 FLOPs each
    forward = [attention + 4 * core, mlp]  # the core has two products forward, and five backward
    for_input, for_weights = [attention + 10 * core, mlp], [attention, mlp]  # timed apart
    works = for_input + for_weights if backward else forward
    compute = sum(picoseconds(cluster.device.seconds(flops, 0)) for flops in works)
    return Time(compute, sum(_time_of_call(call, size, cluster, algorithm) for call in calls))


def _time_of_call(call: Collective, size: int, cluster: Cluster, algorithm: str) -> int:
    """Picoseconds of one call; its groups are of consecutive ranks."""
    node = cluster.ranks_per_node
    firsts = range(0, size, call.ranks)
    if all(first // node == (first + call.ranks - 1) // node for first in firsts):
        return _cost(call, cluster.intra).picoseconds
    if algorithm == "rings" and call.ranks == size:
        together = min(cluster.intra.bandwidth, node * cluster.inter.bandwidth)
        return _cost(call, Link(max(cluster.intra.latency, cluster.inter.latency), together)).picoseconds
    return max(_cost(call, link).picoseconds for link in (cluster.intra, cluster.inter))
