"""Runs of ring attention for the views' tests."""

import numpy as np

from parlab import Cluster, per_rank, run, views
from parlab.sequence import ring_attention, ring_attention_backward, shard

SIZES = (1, 2, 4, 8, 16)
H, G, D = 4, 2, 8


def both_ways(S, size):
    random = np.random.default_rng(S)
    parts = [random.standard_normal((1, heads, S, D)).astype(np.float32) for heads in (H, H, G, G)]
    dout, *qkv = [per_rank(shard(x, size, "zigzag")) for x in parts]
    there = run(ring_attention, size, *qkv, causal=True, layout="zigzag")
    kept = [per_rank(list(x)) for x in zip(*there.results, strict=True)]
    return there, run(ring_attention_backward, size, dout, *qkv, *kept, causal=True, layout="zigzag")


def growth(runs_of, itemsize=4):
    there, back = ({S: pair[way] for S, pair in runs_of.items()} for way in (0, 1))
    return views.ring_growth(there, back, H, G, D, itemsize)


def rings(size=8):
    x = [per_rank(shard(np.zeros((1, heads, 8 * size, D)), size)) for heads in (H, G, G)]
    free = Cluster.uniform(0, 1e18)
    return {
        "full": run(ring_attention, size, *x, cluster=free),
        "causal": run(ring_attention, size, *x, causal=True, cluster=free),
        "zigzag": run(ring_attention, size, *x, causal=True, layout="zigzag", cluster=free),
    }
