"""Runs of ring attention for the views' tests."""

import numpy as np

from parlab import Cluster, per_rank, run
from parlab.sequence import RingSchedule, ring_attention, shard
from parlab.views.sequence.ring_film import LENGTH

SIZES = (1, 2, 3, 8)
H, G, D = 4, 2, 8


def rings(size=8):
    x = [per_rank(shard(np.zeros((1, heads, 8 * size, D)), size)) for heads in (H, G, G)]
    free = Cluster.uniform(0, 1e18)
    return {
        "full": run(ring_attention, size, *x, cluster=free),
        "causal": run(ring_attention, size, *x, causal=True, cluster=free),
        "zigzag": run(ring_attention, size, *x, causal=True, layout="zigzag", cluster=free),
    }


def check_tiles(tiles_of_ranks, came, layout, causal=True):
    """Every rank attends every tile of its mask once, and only K/V that had come: `came`, by (rank, whose)."""
    size = len(tiles_of_ranks)
    for rank, tiles in enumerate(tiles_of_ranks):
        wanted = {s: RingSchedule(rank, size).tile(s, LENGTH, layout, causal=causal) for s in range(size)}
        assert {source: tile for _, source, tile in tiles} == {s: tile for s, tile in wanted.items() if tile}
        for span, source, _ in tiles:
            assert source == rank or came[rank, source] <= span.start


def learners_ring(comm, x, works=4, name="my ring", to_the_left=False):
    """A ring as a learner writes it, whatever its work is called."""
    there, back = (comm.left, comm.right) if to_the_left else (comm.right, comm.left)
    for hop in range(comm.size):
        if hop < works:
            comm.compute(name, seconds=1e-6)
        if hop < comm.size - 1:
            x = comm.sendrecv(x, there, back)
