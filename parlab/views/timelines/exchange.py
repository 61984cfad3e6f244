"""Two ranks that exchange an array and compute: what latency, bandwidth, size and the order of the calls do."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parlab.arguments import one_of, whole
from parlab.views.drawing.picture import Picture, round_bytes
from parlab.views.timelines.timeline import timeline
from parlab.views.timelines.waits_for import deadlock
from parlab.views.widgets.explorer import BANDWIDTHS, LATENCIES, Explorer, choice, steps
from parlab.world import Cluster, Comm, DeadlockError, Run, run
from parlab.world.cluster import picoseconds
from parlab.world.units import format_time

COMPUTE = 25e-6  # seconds that each rank computes
AHEAD = "ahead: isend, irecv, compute, wait"
SIZES = [step * decade for decade in (10**3, 10**4, 10**5, 10**6) for step in (1, 2, 5)]  # bytes


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


class Order(NamedTuple):
    """An order of the calls: the program, and how long it takes for messages of t and computing of c."""

    program: Callable[[Comm, np.ndarray], None]
    formula: str
    duration: Callable[[int, int], int]


ORDERS = {
    "in turn: send, recv": Order(in_turn, "2(α + n/bandwidth) + compute", lambda t, c: 2 * t + c),
    "at once: sendrecv": Order(both_at_once, "α + n/bandwidth + compute", lambda t, c: t + c),
    AHEAD: Order(posted_ahead, "max(α + n/bandwidth, compute)", max),
    "both send first": Order(both_send_first, "never", lambda t, c: 0),
}


@lru_cache(maxsize=64)
def _ran(order: str, nbytes: int) -> Run | DeadlockError:
    try:
        return run(ORDERS[order].program, 2, np.zeros(nbytes, dtype=np.uint8))
    except DeadlockError as error:
        return error


def two_ranks(order: str = AHEAD, nbytes: int = 200_000, latency: float = 5e-6, bandwidth: float = 5e9) -> Picture:
    """Draw two ranks that exchange `nbytes` and compute for 25 µs; what `explore_two_ranks` shows.

    Args:
        order: of the calls, one of `ORDERS`.
        nbytes: of each of the two messages.
        latency: seconds a message (α).
        bandwidth: bytes a second.

    Raises:
        ValueError: an unknown order, a negative size, or what `Cluster` refuses.
    """
    one_of("order", order, list(ORDERS))
    whole("nbytes", nbytes, 0)
    cluster = Cluster.uniform(latency, bandwidth)
    ran = _ran(order, nbytes)
    if isinstance(ran, DeadlockError):
        return deadlock(ran)
    timed = ran.on(cluster)
    formula = ORDERS[order].duration(cluster.intra.picoseconds(nbytes), picoseconds(COMPUTE))
    headline = f"{ORDERS[order].formula} = {format_time(formula)}, by the clock {format_time(timed.makespan)}"
    decade = 10 ** (len(str(timed.makespan)) - 1)  # an axis that ends at 1, 2, 5, 10, ... stands still for a while
    end = next(step * decade for step in (1, 2, 5, 10) if step * decade >= timed.makespan)
    return timeline(timed, end=end, headline=headline)


def explore_two_ranks() -> Explorer:
    """Sliders for `two_ranks`: latency, bandwidth, size, and the order of the calls.

    Latency and bandwidth only change the clock: the ranks run again when the size or the order changes.
    """
    controls = {
        "order": choice("order of the calls", list(ORDERS), AHEAD),
        "nbytes": steps("size of a message", SIZES, 200_000, round_bytes),
        "latency": steps("latency α", LATENCIES, 5e-6),
        "bandwidth": steps("bandwidth", BANDWIDTHS, 5e9),
    }
    return Explorer("explore_two_ranks", controls, two_ranks)
