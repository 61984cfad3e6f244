"""The pairwise all-to-all: N − 1 rounds, in each of which every rank sends to one rank and receives from another."""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Cost, may_be_native


@may_be_native
def pairwise_all_to_all(comm: Any, pieces: list[Array]) -> list[Array]:
    """The i-th piece goes to rank i; returns what came from each rank. In round d the partners are d apart."""
    received = list(pieces)
    received[comm.rank] = namespace(pieces[0]).asarray(pieces[comm.rank], copy=True)
    for distance in range(1, comm.size):
        dst, src = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        received[src] = comm.sendrecv(pieces[dst], dst, src)
    return received


def pairwise_all_to_all_cost(size: int, piece_nbytes: int, link: Link) -> Cost:
    """(N − 1)(α + nβ/N), n the bytes of one rank's array."""
    rounds = size - 1
    return Cost([rounds] * size, [rounds * piece_nbytes] * size, rounds * link.picoseconds(piece_nbytes))
