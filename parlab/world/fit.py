"""The hardware that is really here, measured: what messages and computations cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.arrays import default_namespace, to_numpy
from parlab.world.cluster import Cluster, Device, Link
from parlab.world.run import run

REPEATS, SHIFTS = 7, 10  # the fastest of so many rounds counts; a round has so many ring shifts
SIZES = [64, 2**18, 2**19, 2**20]  # bytes of a message; the fit holds up to the largest


def fit_cluster(engine: str, size: int) -> Cluster:
    """Measure latency and bandwidth of messages between `size` ranks, and what one of them computes a second.

    All ranks shift around a ring at once, as most programs here do: between two ranks alone messages would be faster.
    The straight line through the times of several sizes has the latency as its height, and 1/bandwidth as its slope.

    Args:
        engine: "threads", "mpi" or "nccl": see `run`.
        size: how many ranks, at least 2.

    Returns:
        A `Cluster` in which every rank has a node of its own. Every call measures anew.

    Raises:
        ValueError: a bad argument.

    >>> fit_cluster("threads", 2).inter.bandwidth > 1
    True
    """
    if whole("size", size) < 2:
        raise ValueError(f"size={size!r}: needs at least 2 ranks, for a message between them")
    shifts = partial(_shifts, xp=default_namespace(), n=4096) if engine == "nccl" else _shifts
    measured = run(shifts, size, SIZES, engine=engine).results
    seconds = [max(of_size) for of_size in zip(*(times for times, _, _ in measured), strict=True)]
    link = Link(*fit_line(SIZES, seconds))
    flops, memory_bandwidth = (min(of_ranks) for of_ranks in zip(*((f, b) for _, f, b in measured), strict=True))
    device = Device(f"one of {size} ranks", flops, memory_bandwidth)
    return Cluster(f"{engine}, measured", device, 1, link, link, source=f"ring shifts of up to {SIZES[-1]} bytes")


def fit_line(nbytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """`(latency in seconds, bytes a second)` of the straight line latency + n/bandwidth through the times of n bytes.

    Every size counts by its relative error: in a plain least-squares line the largest times drown the small ones.

    >>> latency, bandwidth = fit_line([0, 1000, 4000], [2e-6, 3e-6, 6e-6])
    >>> f"{latency:.3g} {bandwidth:.3g}"
    '2e-06 1e+09'
    """
    slope, height = np.polyfit(nbytes, seconds, 1, w=1 / np.asarray(seconds))
    return max(float(height), 0.0), 1 / max(float(slope), 1e-15)


def _shifts(comm: Any, sizes: list[int], xp: Any = np, n: int = 256) -> tuple[list[float], float, float]:
    """Seconds of one shift for each size, and `_work`."""
    times = []
    for nbytes in sizes:
        x = xp.zeros(nbytes, dtype=xp.uint8)

        def shift(x: Any = x) -> None:
            for _ in range(SHIFTS):
                comm.sendrecv(x, comm.right, comm.left)

        times.append(_fastest(comm, shift) / SHIFTS)
    return times, *_work(comm, xp, n)


def _work(comm: Any, xp: Any, n: int) -> tuple[float, float]:
    """Flops a second of a product `[n, n]`, bytes a second of a copy; both until the last number can be seen."""
    a, big = xp.ones((n, n)), xp.ones(16 * n * n)
    product = _fastest(comm, lambda: to_numpy((a @ a)[-1, -1]))
    return 2 * n**3 / product, 2 * big.nbytes / _fastest(comm, lambda: to_numpy(big.copy()[-1]))


def _fastest(comm: Any, work: Any) -> float:
    """Seconds of `work`, which all ranks do at once."""
    best = float("inf")
    for _ in range(REPEATS):
        comm.barrier()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
