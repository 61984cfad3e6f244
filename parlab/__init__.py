"""parlab: the laboratory where people learn how large models are trained in parallel.

>>> import numpy as np
>>> from parlab import Cluster, per_rank, run
>>> def step(comm, gradient, seconds):
...     comm.compute("backward", seconds=seconds)
...     return comm.all_reduce(gradient)
>>> gradients = per_rank([np.full(1024, float(rank)) for rank in range(4)])
>>> backward = per_rank([3e-6, 5e-6, 4e-6, 3e-6])
>>> ring = run(step, 4, gradients, backward, cluster=Cluster.uniform(latency=1e-6, bandwidth=2e9))
>>> float(ring.results[0][0])                    # 0 + 1 + 2 + 3, on every rank
6.0
>>> ring.timeline.bytes_sent(0)                  # 2(P − 1)/P of 8192 bytes
12288
"""

from parlab.world import Cluster, per_rank, run

__all__ = ["Cluster", "per_rank", "run"]
__version__ = "0.1.0"
