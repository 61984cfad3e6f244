"""The all-to-all on a grid of nodes × places: each piece goes straight to its owner, and no step mixes the links.

In each step all ranks send to other nodes, or none does. Any number of nodes and places will do.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Cost
from parlab.world.collectives.walks import partners


def grid_all_to_all(comm: Any, pieces: list[Array], ranks_per_node: int) -> list[Array]:
    """The i-th piece goes to rank i; returns the pieces that came, by source.

    In step (d, e) each rank sends to the rank d nodes and e places after it: all to other nodes, or none.
    """
    received = list(pieces)
    received[comm.rank] = namespace(pieces[0]).asarray(pieces[comm.rank], copy=True)
    for dst, src in partners(comm, ranks_per_node):
        received[src] = comm.sendrecv(pieces[dst], dst, src)
    return received


def grid_all_to_all_cost(size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """(g − 1)(α + bβ) + (P − g)(α' + bβ'), b bytes a piece."""
    near, far = ranks_per_node - 1, size - ranks_per_node
    time = near * intra.picoseconds(piece_nbytes) + far * inter.picoseconds(piece_nbytes)
    return Cost([size - 1] * size, [(size - 1) * piece_nbytes] * size, time, [far * piece_nbytes] * size)
