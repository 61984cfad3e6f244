"""All-reduce algorithms under the learner's hands: ranks, nodes, latency and bandwidth."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from parlab.arguments import whole
from parlab.views.all_reduce.crossings import all_reduce_times, checked_algorithms
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture
from parlab.views.widgets.explorer import BANDWIDTHS, LATENCIES, Explorer, choice, steps
from parlab.world import Cluster, Comm, Device, Link, Run, run

ALL = "all"
MEASURED = 2**16  # bytes of the array that is really reduced
MOST_RUN = 16  # ranks that really run: more would make a slider wait
SLOWER_BETWEEN = 5, 10  # latency and bandwidth between nodes against inside, as in the classroom


def collectives(
    nodes: int = 2, ranks_per_node: int = 8, latency: float = 1e-6, bandwidth: float = 10e9, algorithm: str = ALL
) -> Picture:
    """Draw the all-reduce algorithms on a cluster; what `explore_collectives` shows.

    Up to 16 ranks really all-reduce 64 KiB, once for each algorithm, and are timed on the cluster: the dots.

    Args:
        nodes: how many; the links between them have 5 times the latency and a tenth of the bandwidth.
        ranks_per_node: ranks in each.
        latency: seconds a message inside a node (α).
        bandwidth: bytes a second inside a node (1/β).
        algorithm: which one to draw beside the ring; "all": all that fit.

    Raises:
        ValueError: no node, and see `all_reduce_times`.
    """
    whole("nodes", nodes, 1)
    slower, thinner = SLOWER_BETWEEN
    device = Device("classroom", 1e12, 1e11)
    inside, between = Link(latency, bandwidth), Link(slower * latency, bandwidth / thinner)
    cluster = Cluster("this cluster", device, ranks_per_node, inside, between)
    size = nodes * ranks_per_node
    names = checked_algorithms(None if algorithm == ALL else ["ring", algorithm], size, cluster)
    runs = {name: {MEASURED: _ran(name, size, ranks_per_node)} for name in names} if size <= MOST_RUN else {}
    return all_reduce_times(runs, size=size, cluster=cluster, algorithms=names)


@lru_cache(maxsize=256)
def _ran(algorithm: str, size: int, ranks_per_node: int) -> Run:
    """An all-reduce of 64 KiB, to be timed on any cluster."""

    def program(comm: Comm) -> None:
        x = np.zeros(MEASURED, dtype=np.uint8)
        comm.all_reduce(x, "max", algorithm, ranks_per_node=ranks_per_node if algorithm == "hierarchical" else None)

    return run(program, size)


def _beside(algorithm: str) -> str:
    return ALL if algorithm == ALL else f"{theme.ALGORITHMS[algorithm].name} beside ring"


def explore_collectives() -> Explorer:
    """Sliders for `collectives`: nodes, ranks a node, latency α, bandwidth 1/β, and the algorithm.

    Latency and bandwidth only change the clock: no rank runs again.
    """
    controls = {
        "nodes": steps("nodes", (1, 2, 3, 4, 8), 2),
        "ranks_per_node": steps("ranks a node", range(2, 9), 8),
        "latency": steps("latency α", LATENCIES, 1e-6),
        "bandwidth": steps("bandwidth 1/β", BANDWIDTHS, 10e9),
        "algorithm": choice("algorithm", (ALL, *list(theme.ALGORITHMS)[1:]), ALL, _beside),
    }
    return Explorer("explore_collectives", controls, collectives)
