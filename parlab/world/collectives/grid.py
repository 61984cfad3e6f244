"""The all-to-all on a grid of nodes × places: each piece goes straight to its owner, and no step mixes the links.

In each step all ranks send to other nodes, or none does. Any number of nodes and places will do.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Cost


def grid_all_to_all(comm: Any, pieces: list[Array], ranks_per_node: int) -> list[Array]:
    """The i-th piece goes to rank i; returns the pieces that came, by source.

    In step (d, e) each rank sends to the rank d nodes and e places after it: all to other nodes, or none.
    """
    nodes, places = comm.size // ranks_per_node, ranks_per_node
    node, place = divmod(comm.rank, ranks_per_node)
    received = list(pieces)
    received[comm.rank] = namespace(pieces[0]).asarray(pieces[comm.rank], copy=True)
    for d in range(nodes):
        for e in range(places):
            if (d, e) == (0, 0):
                continue
            dst = (node + d) % nodes * places + (place + e) % places
            src = (node - d) % nodes * places + (place - e) % places
            received[src] = comm.sendrecv(pieces[dst], dst, src)
    return received


def grid_all_to_all_cost(size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """(g − 1)(α + bβ) + (P − g)(α' + bβ'), b bytes a piece."""
    near, far = ranks_per_node - 1, size - ranks_per_node
    time = near * intra.picoseconds(piece_nbytes) + far * inter.picoseconds(piece_nbytes)
    return Cost([size - 1] * size, [(size - 1) * piece_nbytes] * size, time, [far * piece_nbytes] * size)
