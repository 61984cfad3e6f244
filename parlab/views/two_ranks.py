"""Two ranks that exchange an array and compute: what latency, bandwidth, size and the order of the calls do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from parlab.views.picture import Picture
from parlab.views.timelines import timeline
from parlab.views.waits_for import deadlock
from parlab.views.widget import Explorer, choice, steps
from parlab.world import Cluster, Comm, DeadlockError, Run, run
from parlab.world.units import format_bytes, format_time

COMPUTE = 20e-6  # seconds that each rank computes


def in_turn(comm: Comm, x: np.ndarray) -> None:
    """Rank 0 sends first, rank 1 receives first: one message, then the other, then the computing."""
    other = 1 - comm.rank
    if comm.rank == 0:
        comm.send(x, other)
        comm.recv(other, like=x)
    else:
        comm.recv(other, like=x)
        comm.send(x, other)
    comm.compute("compute", seconds=COMPUTE)


def both_at_once(comm: Comm, x: np.ndarray) -> None:
    """Both messages travel at the same time, then the computing."""
    comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank)
    comm.compute("compute", seconds=COMPUTE)


def posted_ahead(comm: Comm, x: np.ndarray) -> None:
    """Both messages travel while the ranks compute."""
    requests = [comm.isend(x, 1 - comm.rank), comm.irecv(1 - comm.rank, like=x)]
    comm.compute("compute", seconds=COMPUTE)
    for request in requests:
        request.wait()


def both_send_first(comm: Comm, x: np.ndarray) -> None:
    """Each waits until the other receives."""
    comm.send(x, 1 - comm.rank)
    comm.recv(1 - comm.rank, like=x)


ORDERS = {
    "in turn: send, recv": in_turn,
    "at once: sendrecv": both_at_once,
    "ahead: isend, irecv, compute, wait": posted_ahead,
    "both send first": both_send_first,
}


@lru_cache(maxsize=64)
def _ran(order: str, nbytes: int) -> Run | DeadlockError:
    try:
        return run(ORDERS[order], 2, np.zeros(nbytes, dtype=np.uint8))
    except DeadlockError as error:
        return error


def two_ranks(
    order: str = "in turn: send, recv", nbytes: int = 65536, latency: float = 1e-6, bandwidth: float = 10e9
) -> Picture:
    """Draw two ranks that exchange `nbytes` and compute for 20 µs; what `explore_two_ranks` shows.

    Args:
        order: of the calls, one of `ORDERS`.
        nbytes: of each of the two messages.
        latency: seconds a message.
        bandwidth: bytes a second.

    Raises:
        ValueError: an unknown order, a negative size, or what `Cluster` refuses.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r}: the orders are {', '.join(map(repr, ORDERS))}")
    if not isinstance(nbytes, int) or nbytes < 0:
        raise ValueError(f"nbytes={nbytes!r}: must be a whole number, at least 0")
    cluster = Cluster.uniform(latency, bandwidth)
    ran = _ran(order, nbytes)
    return deadlock(ran) if isinstance(ran, DeadlockError) else timeline(ran.on(cluster))


def explore_two_ranks() -> Explorer:
    """Sliders for `two_ranks`: latency, bandwidth, size, and the order of the calls.

    Latency and bandwidth only change the clock: the ranks run again when the size or the order changes.
    """
    sizes: list[tuple[str, Any]] = [
        (format_bytes(2**k).replace(".00", "").replace(".0", ""), 2**k) for k in range(8, 23)
    ]
    latencies = [
        (format_time(10**6 * us).replace(".00", "").replace(".0", ""), us / 1e6)
        for us in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    ]
    bandwidths = [(f"{gb:g} GB/s", gb * 1e9) for gb in (0.5, 1, 2, 5, 10, 20, 50, 100, 200)]
    controls = {
        "order": choice("order of calls", [(name, name) for name in ORDERS], next(iter(ORDERS))),
        "nbytes": steps("size of a message", sizes, 2**16),
        "latency": steps("latency", latencies, 1e-6),
        "bandwidth": steps("bandwidth", bandwidths, 10e9),
    }
    return Explorer("explore_two_ranks", controls, two_ranks)
