"""parlab: the laboratory where people learn how large models are trained in parallel."""

from parlab.world import Cluster, per_rank, run

__all__ = ["Cluster", "per_rank", "run"]
__version__ = "0.1.0"
