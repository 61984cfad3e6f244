"""Collectives, each built from point-to-point messages, with its closed form next to it.

`Comm` checks the arguments and calls these; a learner can call them too, on any `comm`. `algorithms` lists those of
each collective by name.
"""

from parlab.world.collectives.circulant import (
    circulant_all_gather,
    circulant_all_gather_cost,
    circulant_all_reduce,
    circulant_all_reduce_cost,
    circulant_reduce_scatter,
    circulant_reduce_scatter_cost,
)
from parlab.world.collectives.common import OPERATIONS, Cost, Subset, combiner, piece_sizes, pieces_of
from parlab.world.collectives.doubling import (
    rabenseifner_all_reduce,
    rabenseifner_all_reduce_cost,
    recursive_doubling_all_gather,
    recursive_doubling_all_gather_cost,
    recursive_doubling_all_reduce,
    recursive_doubling_all_reduce_cost,
    recursive_halving_reduce_scatter,
    recursive_halving_reduce_scatter_cost,
)
from parlab.world.collectives.ring import (
    ring_all_gather,
    ring_all_gather_cost,
    ring_all_reduce,
    ring_all_reduce_cost,
    ring_reduce_scatter,
    ring_reduce_scatter_cost,
)
from parlab.world.collectives.rings import rings_all_reduce, rings_all_reduce_cost
from parlab.world.collectives.rooted import (
    binomial_broadcast,
    binomial_broadcast_cost,
    binomial_reduce,
    binomial_reduce_cost,
    linear_gather,
    linear_gather_cost,
    linear_scatter,
    linear_scatter_cost,
)
from parlab.world.collectives.shifts import (
    bruck_all_gather,
    bruck_all_gather_cost,
    bruck_all_to_all,
    bruck_all_to_all_cost,
    dissemination_barrier,
    dissemination_barrier_cost,
    grid_all_to_all,
    grid_all_to_all_cost,
    pairwise_all_to_all,
    pairwise_all_to_all_cost,
)
from parlab.world.collectives.two_levels import (
    hierarchical_all_gather,
    hierarchical_all_gather_cost,
    hierarchical_all_reduce,
    hierarchical_all_reduce_cost,
    hierarchical_all_to_all,
    hierarchical_all_to_all_cost,
    hierarchical_reduce_scatter,
    hierarchical_reduce_scatter_cost,
)
