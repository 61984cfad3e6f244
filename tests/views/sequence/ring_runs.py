"""Runs of ring attention for the views' tests."""

import numpy as np

from parlab import Cluster, per_rank, run
from parlab.sequence import ring_attention, shard

SIZES = (1, 2, 4, 8, 16)
H, G, D = 4, 2, 8


def rings(size=8):
    x = [per_rank(shard(np.zeros((1, heads, 8 * size, D)), size)) for heads in (H, G, G)]
    free = Cluster.uniform(0, 1e18)
    return {
        "full": run(ring_attention, size, *x, cluster=free),
        "causal": run(ring_attention, size, *x, causal=True, cluster=free),
        "zigzag": run(ring_attention, size, *x, causal=True, layout="zigzag", cluster=free),
    }
