"""Collectives made of shifts: in each step every rank sends to the rank a distance d ahead, and receives from behind.

With d = 1, 2, 3, ... there are P − 1 steps. With d = 1, 2, 4, ... there are ⌈log₂P⌉, for any number of ranks.

Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems" (IEEE TPDS 1997).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Cost, cost_of_steps
from parlab.world.collectives.walks import partners


def pairwise_all_to_all(comm: Any, pieces: list[Array]) -> list[Array]:
    """The i-th piece goes to rank i; returns the pieces that came, by source.

    Invariant: after step d, rank r has the pieces for r from the ranks r, r − 1, ..., r − d (mod P).
    """
    return _piece_by_piece(comm, pieces, partners(comm))


def pairwise_all_to_all_cost(size: int, piece_nbytes: int, link: Link) -> Cost:
    """(P − 1)(α + nβ/P), n the bytes of one rank's array."""
    return cost_of_steps(size, [piece_nbytes] * (size - 1), link)


def grid_all_to_all(comm: Any, pieces: list[Array], ranks_per_node: int) -> list[Array]:
    """The same on a grid of nodes × places, any number of each: no step mixes the links.

    In step (d, e) each rank sends to the rank d nodes and e places after it: all to other nodes, or none.
    """
    return _piece_by_piece(comm, pieces, partners(comm, ranks_per_node))


def grid_all_to_all_cost(size: int, piece_nbytes: int, ranks_per_node: int, intra: Link, inter: Link) -> Cost:
    """(g − 1)(α + bβ) + (P − g)(α' + bβ'), b bytes a piece."""
    near, far = ranks_per_node - 1, size - ranks_per_node
    time = near * intra.picoseconds(piece_nbytes) + far * inter.picoseconds(piece_nbytes)
    return Cost([size - 1] * size, [(size - 1) * piece_nbytes] * size, time)


def _piece_by_piece(comm: Any, pieces: list[Array], steps: Iterable[tuple[int, int]]) -> list[Array]:
    """In each step (dst, src) the piece for dst leaves, and the piece from src comes."""
    received = list(pieces)
    received[comm.rank] = namespace(pieces[0]).asarray(pieces[comm.rank], copy=True)
    for dst, src in steps:
        received[src] = comm.sendrecv(pieces[dst], dst, src)
    return received


def bruck_all_to_all(comm: Any, pieces: list[Array]) -> list[Array]:
    """The i-th piece goes to rank i; returns the pieces that came, by source.

    A piece that must travel i = (dst − src) mod P ranks travels 2ᵏ of them in step k, if bit k of i is set.

    Invariant: after step k, every piece with distance i has travelled i mod 2ᵏ⁺¹ ranks, and stands at number i there.
    """
    xp, size = namespace(pieces[0]), comm.size
    by_distance = xp.stack([pieces[(comm.rank + distance) % size] for distance in range(size)])  # [P, piece]
    step = 1
    while step < size:
        moving = [distance for distance in range(size) if distance & step]
        outgoing = xp.stack([by_distance[distance, ...] for distance in moving])
        incoming = comm.sendrecv(outgoing, (comm.rank + step) % size, (comm.rank - step) % size)
        for number, distance in enumerate(moving):
            by_distance[distance, ...] = incoming[number, ...]
        step *= 2
    return [by_distance[(comm.rank - source) % size, ...] for source in range(size)]


def bruck_all_to_all_cost(size: int, piece_nbytes: int, link: Link) -> Cost:
    """⌈log₂P⌉α + about n/2 · log₂P β: in step k the pieces travel whose distance has bit k set."""
    bits = range((size - 1).bit_length())
    sent = [sum(distance >> bit & 1 for distance in range(size)) * piece_nbytes for bit in bits]
    return cost_of_steps(size, sent, link)


def bruck_all_gather(comm: Any, flat: Array, pieces: list[slice]) -> None:
    """`flat` [n], in equal pieces, in place: rank r's piece r goes to all others.

    Invariant: before the step with distance d, rank r has the pieces r, r + 1, ..., r + d − 1 (mod P).
    """
    xp, size = namespace(flat), comm.size
    own = flat[pieces[comm.rank]]
    held = xp.reshape(own, (1, -1))  # [pieces held, n/P]
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        far, near = (comm.rank + distance) % size, (comm.rank - distance) % size
        held = xp.concat([held, comm.sendrecv(held[:count, :], near, far)], axis=0)
        distance *= 2
    for number in range(size):
        flat[pieces[(comm.rank + number) % size]] = held[number, :]


def bruck_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂P⌉α + (P − 1)/P · nβ, for equal pieces."""
    size, piece = len(nbytes), nbytes[0]
    distances = [1 << step for step in range((size - 1).bit_length())]
    return cost_of_steps(size, [min(distance, size - distance) * piece for distance in distances], link)


def dissemination_barrier(comm: Any) -> None:
    """Return when every rank has entered: ⌈log₂P⌉ empty messages from each.

    Invariant: after step s (from 0), every rank has heard, directly or through others, from the 2ˢ⁺¹ − 1 ranks behind.

    Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (IJPP 1988).
    """
    distance = 1
    while distance < comm.size:
        comm.sendrecv([], (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size)
        distance *= 2


def dissemination_barrier_cost(size: int, link: Link) -> Cost:
    """⌈log₂P⌉α."""
    return cost_of_steps(size, [0] * (size - 1).bit_length(), link)
