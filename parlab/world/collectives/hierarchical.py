"""The hierarchical all-reduce: reduce inside each node first, so that only 1/g of the data crosses between nodes.

Who holds what, with g ranks a node: after the reduce-scatter inside, the l-th rank of a node has the node's sum of
block l; after the ring between the l-th ranks of all nodes it has the whole sum; the all-gather inside spreads it.

Source: Jia et al., "Highly scalable deep learning training system with mixed-precision" (2018), section 3.2.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Combine, Cost, Subset, block_sizes, blocks_of, flat_copy
from parlab.world.collectives.ring import (
    ring_all_gather,
    ring_all_gather_cost,
    ring_all_reduce,
    ring_all_reduce_cost,
    ring_reduce_scatter,
    ring_reduce_scatter_cost,
)


def hierarchical_all_reduce(comm: Any, x: Array, combine: Combine, ranks_per_node: int) -> Array:
    """Ranks 0 .. g − 1 are the first node, and so on."""
    node, local = divmod(comm.rank, ranks_per_node)
    inside = Subset(comm, range(node * ranks_per_node, (node + 1) * ranks_per_node))
    between = Subset(comm, range(local, comm.size, ranks_per_node))
    total = flat_copy(x)  # [n]
    blocks = blocks_of(block_sizes(total.shape[0], ranks_per_node))
    ring_reduce_scatter(inside, total, blocks, combine)
    total[blocks[local]] = ring_all_reduce(between, total[blocks[local]], combine)
    ring_all_gather(inside, total, blocks)
    return namespace(x).reshape(total, x.shape)


def hierarchical_all_reduce_cost(
    size: int, length: int, itemsize: int, ranks_per_node: int, intra: Link, inter: Link
) -> Cost:
    """2(g − 1)(α + nβ/g) inside, and 2(k − 1)(α' + nβ'/gk) between k nodes of g ranks."""
    lengths = block_sizes(length, ranks_per_node)
    nbytes = [itemsize * block for block in lengths]
    nodes = size // ranks_per_node
    down, up = ring_reduce_scatter_cost(nbytes, intra), ring_all_gather_cost(nbytes, intra)
    across = [ring_all_reduce_cost(nodes, block, itemsize, inter) for block in lengths]
    places = [divmod(rank, ranks_per_node) for rank in range(size)]
    return Cost(
        [down.messages[local] + across[local].messages[node] + up.messages[local] for node, local in places],
        [down.nbytes[local] + across[local].nbytes[node] + up.nbytes[local] for node, local in places],
        down.picoseconds + across[0].picoseconds + up.picoseconds,
    )
