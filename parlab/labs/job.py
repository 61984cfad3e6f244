"""The job of lesson 01: GPUs of DGX A100s work for a second, then they add up gradients of 14 GB.

A model of 7 billion weights has gradients of 14 GB in two bytes each. One number that runs stands for many of them, and
links are as many times slower; so each message takes its real time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from parlab.arguments import amount, whole
from parlab.arrays import Array, default_namespace, namespace
from parlab.world import DGX_A100, Comm, Link, Run, per_rank, run
from parlab.world.values import copied

NUMBERS = 17_920  # of a gradient that runs, in float16: NumPy has no bf16; 8 rings of 16 ranks cut it into equal pieces
STANDS_FOR = 7 * 10**9 // NUMBERS  # numbers of the model, for each one that runs
MOST_GPUS = 64
SUM_GUESSES = {  # the usual wrong guesses of lesson 01, and the reasoning that leads there
    "14 GB": (98, "a GPU sends its gradient to each of the seven others"),
    "1 KiB": (0.07, "14 million times fewer bytes take 14 million times less than 0.98 s"),
    "two nodes": (0.2, "fourteen of the sixteen links are twelve times as fast now"),
}


def naive_all_reduce(comm: Comm, x: Array) -> Array:
    """The sum of all ranks' `x` [n]: rank 0 fetches them all, adds, and broadcasts the sum."""
    everything = comm.gather(x[None, :])  # [P, n] on rank 0, None elsewhere
    return comm.broadcast(x if everything is None else everything.sum(axis=0))


def _summed(all_reduce: Callable[[Comm, Any], Any], part: Array, comm: Comm) -> Any:
    """`all_reduce(comm, part)`, where the engine gives the comm last."""
    return all_reduce(comm, part)


def rings_at_once(all_reduce: Callable[[Comm, Any], Any], comm: Comm, x: Array, ranks_per_node: int = 8) -> Array:
    """The sum of all ranks' `x` [n]: as many rings as a node has ranks, all at the same time, each with a part of `x`.

    Each runs `all_reduce(ring, part)`, where `ring` has the ranks of `comm` in another order: ring j enters each node
    at place j and leaves it at the place before, as in `parlab.world.collectives.rings`. Both sizes divide n.
    """
    node, place = divmod(comm.rank, ranks_per_node)
    length = len(x) // ranks_per_node
    started = []
    for first in range(ranks_per_node):
        ring = comm.split(0, node * ranks_per_node + (place - first) % ranks_per_node)
        assert ring is not None  # nobody stays out of it
        part = copied(x[first * length : (first + 1) * length])
        started.append(ring._in_background("all_reduce", part, partial(_summed, all_reduce, part)))
    return namespace(x).concat([sums.wait() for sums in started])


def ring_orders(nodes: int = 2, gpus_per_node: int = 8) -> str:
    """The ranks in the order of each ring of `rings_at_once`. A bar is a link to the next node; the last goes back.

    >>> print(ring_orders(2, 3))
    ring 0:  0  1  2 |  3  4  5 |
    ring 1:  1  2  0 |  4  5  3 |
    ring 2:  2  0  1 |  5  3  4 |
    """
    rows = []
    for first in range(gpus_per_node):
        places = [(first + number) % gpus_per_node for number in range(gpus_per_node)]
        starts = [node * gpus_per_node for node in range(nodes)]
        in_nodes = ["".join(f"{start + place:3}" for place in places) for start in starts]
        rows.append(f"ring {first}:" + "".join(f"{ranks} |" for ranks in in_nodes))
    return "\n".join(rows)


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


def ring_table(all_reduce: Callable[[Comm, Any], Any]) -> str:
    """The GB and messages that a GPU sends in the job, counted among 2 to 16 lone GPUs, beside the least GB.

    >>> print(ring_table(lambda comm, x: comm.all_reduce(x)))
      P     GB sent   2(P − 1)/P · 14   steps
      2        14.0              14.0       2
      4        21.0              21.0       6
      8        24.5              24.5      14
     16       26.25             26.25      30
    """
    rows = ["  P     GB sent   2(P − 1)/P · 14   steps"]
    for size in (2, 4, 8, 16):
        counted = gradient_job(all_reduce, nodes=size).timeline
        least = 2 * (size - 1) / size * 14
        rows.append(f"{size:3}{gigabytes(counted.bytes_sent(0)):12}{least:18}{counted.messages(0):8}")
    return "\n".join(rows)


def collective_table() -> str:
    """One array on each of four ranks, and the result of each collective there: a column is a rank.

    >>> print(collective_table())  # doctest: +NORMALIZE_WHITESPACE
                              rank 0         rank 1         rank 2         rank 3
    x                      [0 1 2 3]  [10 11 12 13]  [20 21 22 23]  [30 31 32 33]
    broadcast(x)           [0 1 2 3]      [0 1 2 3]      [0 1 2 3]      [0 1 2 3]
    all_reduce(x)      [60 64 68 72]  [60 64 68 72]  [60 64 68 72]  [60 64 68 72]
    reduce_scatter(x)           [60]           [64]           [68]           [72]
    all_gather(x[:1])  [ 0 10 20 30]  [ 0 10 20 30]  [ 0 10 20 30]  [ 0 10 20 30]
    all_to_all(x)      [ 0 10 20 30]  [ 1 11 21 31]  [ 2 12 22 32]  [ 3 13 23 33]
    """
    xp = default_namespace()
    numbers = [xp.arange(4) + 10 * rank for rank in range(4)]
    results = run(_collectives, 4, per_rank(numbers)).results
    rows = [" " * 17 + "".join(f"{f'rank {rank}':>15}" for rank in range(4))]
    rows += [f"{name:<17}" + "".join(f"{result[name]!s:>15}" for result in results) for name in results[0]]
    return "\n".join(rows)


def _collectives(comm: Comm, x: Array) -> dict[str, Array]:
    """The results of one rank, by call."""
    return {
        "x": x,
        "broadcast(x)": comm.broadcast(x),
        "all_reduce(x)": comm.all_reduce(x),
        "reduce_scatter(x)": comm.reduce_scatter(x),
        "all_gather(x[:1])": comm.all_gather(x[:1]),
        "all_to_all(x)": comm.all_to_all(x, 0, 0),
    }
