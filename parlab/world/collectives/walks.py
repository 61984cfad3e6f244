"""Two walks that bring every rank past every other: from partner to partner, and around a ring.

Invariants. Of `partners`, after step s (from 1): rank r has met the ranks r + 1, ..., r + s as those that it sends to,
and r − 1, ..., r − s as those that it receives from (in a grid: those of its node first). Of `around_ring`, in step s
(from 0): rank r has the value of rank (r − s) mod P.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any


def partners(comm: Any, ranks_per_node: int | None = None) -> Iterator[tuple[int, int]]:
    """The P − 1 steps of an exchange in which every rank gives something to every other: yields (dst, src).

    In step s, from 1, rank r sends to r + s and receives from r − s, so each of its two ports serves one rank. With
    `ranks_per_node` in a grid: step (d, e) goes d nodes and e places on, so that no step mixes links.

    >>> from parlab import run
    >>> run(lambda comm: list(partners(comm)), 4).results[3]
    [(0, 2), (1, 1), (2, 0)]
    >>> run(lambda comm: list(partners(comm, ranks_per_node=2)), 4).results[3]
    [(2, 2), (1, 1), (0, 0)]
    """
    per_node = ranks_per_node or comm.size
    node, place = divmod(comm.rank, per_node)
    for nodes, places in product(range(comm.size // per_node), range(per_node)):
        if (nodes, places) != (0, 0):
            dst = (node + nodes) * per_node % comm.size + (place + places) % per_node
            src = (node - nodes) * per_node % comm.size + (place - places) % per_node
            yield dst, src


def around_ring(
    comm: Any, own: Any, label: str | None = None, hops: Sequence[int] | None = None
) -> Iterator[tuple[int, Any]]:
    """Brings the value of every rank to this one: yields (source, its value), this rank's `own` first, P in all.

    While the caller works on one value, the next is on its way to the right. The value of rank s makes `hops[s]` hops
    (None: P − 1 each, all around); where it stopped before this rank, None is yielded in its place.

    >>> from parlab import run
    >>> import numpy as np
    >>> run(lambda comm: [(s, int(x)) for s, x in around_ring(comm, np.array(10 * comm.rank))], 3).results[0]
    [(0, 0), (2, 20), (1, 10)]
    """
    hops, held = hops or [comm.size - 1] * comm.size, own
    for step in range(comm.size):
        source, coming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        leaving = comm.isend(held, comm.right, label=label) if hops[source] > step else None
        arriving = comm.irecv(comm.left, own, label=label) if hops[coming] > step else None
        yield source, held
        held = wait_both(arriving, leaving)


def wait_both(arriving: Any, leaving: Any) -> Any:
    """Wait for a receive and a send, and return the value that came. None: there is no such request, or no value."""
    came = None if arriving is None else arriving.wait()
    if leaving is not None:
        leaving.wait()
    return came
