"""The job of lesson 01: GPUs of DGX A100s work for a second, then they add up gradients of 14 GB.

A model of 7 billion weights has gradients of 14 GB in two bytes each. One number that runs stands for half a million of
them, and links are half a million times slower; so each message takes its real time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parlab.arguments import amount, whole
from parlab.arrays import Array, default_namespace
from parlab.world import DGX_A100, Comm, Link, Run, run

STANDS_FOR = 500_000  # numbers of the model, for each one that runs
NUMBERS = 7 * 10**9 // STANDS_FOR  # of a gradient that runs, in float16: NumPy has no bf16
MOST_GPUS = 64


def naive_all_reduce(comm: Comm, x: Array) -> Array:
    """The sum of all ranks' `x` [n]: rank 0 fetches them all, adds, and broadcasts the sum."""
    everything = comm.gather(x[None, :])  # [P, n] on rank 0, None elsewhere
    return comm.broadcast(x if everything is None else everything.sum(axis=0))


def gradient_job(
    all_reduce: Callable[[Comm, Any], Any], nodes: int = 8, gpus_per_node: int = 1, work: float = 1.0
) -> Run:
    """The run of one training step: work on every GPU, then `all_reduce(comm, x)` of its gradient.

    Args:
        all_reduce: returns the sum of all ranks' x.
        nodes: their number; each GPU has a port of 25 GB/s to the others.
        gpus_per_node: GPUs that NVLink joins in each.
        work: seconds before the sum.

    Raises:
        ValueError: no function, no GPU or too many, or less than no work.

    >>> gradient_job(naive_all_reduce).timeline.format(gradient_job(naive_all_reduce).timeline.makespan)
    '6.60 s'
    """
    if not callable(all_reduce):
        raise ValueError(f"all_reduce={all_reduce!r:.60}: must be a function all_reduce(comm, x)")
    size = whole("nodes", nodes, 1) * whole("gpus_per_node", gpus_per_node, 1)
    if size > MOST_GPUS:
        raise ValueError(f"nodes={nodes}, gpus_per_node={gpus_per_node}: {size} GPUs; at most {MOST_GPUS} run here")
    amount("work", work)
    inside, between = (Link(link.latency, link.bandwidth / STANDS_FOR) for link in (DGX_A100.intra, DGX_A100.inter))
    cluster = replace(DGX_A100, ranks_per_node=gpus_per_node, intra=inside, inter=between)
    gradient = default_namespace().ones(NUMBERS, dtype="float16")

    def step(comm: Comm, x: Array) -> Any:
        if work:
            comm.compute("work", seconds=work)
        return all_reduce(comm, x)

    return run(step, size, gradient, cluster=cluster)


def gigabytes(nbytes: int) -> float:
    """GB of the real job for bytes of its run.

    >>> gigabytes(2 * NUMBERS)
    14.0
    """
    return nbytes * STANDS_FOR / 1e9


def busiest_port(job: Run) -> float:
    """The GB of the real job that the busiest GPU sends to other nodes.

    >>> busiest_port(gradient_job(naive_all_reduce))
    42.0
    """
    sent = [0] * job.timeline.size
    for transfer in job.timeline.transfers:
        if transfer.src // job.cluster.ranks_per_node != transfer.dst // job.cluster.ranks_per_node:
            sent[transfer.src] += transfer.nbytes
    return gigabytes(max(sent))
