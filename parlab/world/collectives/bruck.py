"""Bruck's algorithms: ⌈log₂ N⌉ steps for any number of ranks, by renumbering the blocks so that each rank's own comes
first.

Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems" (IEEE TPDS 1997).
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link
from parlab.world.collectives.common import Cost, exchange_steps


def bruck_all_gather(comm: Any, total: Array, blocks: list[slice]) -> None:
    """`total` [n], in equal blocks: in place, rank r's block r goes to all others.

    Invariant: before the step with distance d, rank r holds the blocks r, r + 1, ..., r + d − 1 (mod N).
    """
    xp, size = namespace(total), comm.size
    own = total[blocks[comm.rank]]
    held = xp.reshape(own, (1, -1))  # [blocks held, n/N]
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        far, near = (comm.rank + distance) % size, (comm.rank - distance) % size
        held = xp.concat([held, comm.sendrecv(held[:count, :], near, far)], axis=0)
        distance *= 2
    for number in range(size):
        total[blocks[(comm.rank + number) % size]] = held[number, :]


def bruck_all_to_all(comm: Any, pieces: list[Array]) -> list[Array]:
    """The i-th piece goes to rank i; returns what came from each rank.

    The piece with relative distance i = dst − src travels 2ᵏ ranks in step k if bit k of i is set.
    """
    xp, size = namespace(pieces[0]), comm.size
    by_distance = xp.stack([pieces[(comm.rank + distance) % size] for distance in range(size)])  # [N, piece]
    step = 1
    while step < size:
        moving = [distance for distance in range(size) if distance & step]
        outgoing = xp.stack([by_distance[distance, ...] for distance in moving])
        incoming = comm.sendrecv(outgoing, (comm.rank + step) % size, (comm.rank - step) % size)
        for number, distance in enumerate(moving):
            by_distance[distance, ...] = incoming[number, ...]
        step *= 2
    return [by_distance[(comm.rank - source) % size, ...] for source in range(size)]


def bruck_all_gather_cost(nbytes: list[int], link: Link) -> Cost:
    """⌈log₂N⌉α + (N − 1)/N · nβ, for equal blocks."""
    size, block = len(nbytes), nbytes[0]
    sent, distance = [], 1
    while distance < size:
        sent.append(min(distance, size - distance) * block)
        distance *= 2
    return Cost([len(sent)] * size, [sum(sent)] * size, exchange_steps(link, sent))


def bruck_all_to_all_cost(size: int, piece_nbytes: int, link: Link) -> Cost:
    """⌈log₂N⌉ steps; in step k the pieces whose distance has bit k set travel."""
    sent, step = [], 1
    while step < size:
        sent.append(sum(1 for distance in range(size) if distance & step) * piece_nbytes)
        step *= 2
    return Cost([len(sent)] * size, [sum(sent)] * size, exchange_steps(link, sent))
