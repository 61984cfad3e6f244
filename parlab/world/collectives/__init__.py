"""Collectives, each built from point-to-point messages, with its closed form next to it.

`Comm` checks the arguments and calls these; a learner can call them too, on any `comm`. The default algorithm of each
is the first one, and is never chosen by size, so that a program always does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from parlab.world.collectives.grid import grid_all_to_all, grid_all_to_all_cost
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

ALGORITHMS: dict[str, dict[str, Callable[..., Any]]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "recursive_doubling": recursive_doubling_all_reduce,
        "rabenseifner": rabenseifner_all_reduce,
        "circulant": circulant_all_reduce,
        "hierarchical": hierarchical_all_reduce,
        "rings": rings_all_reduce,
    },
    "all_gather": {
        "ring": ring_all_gather,
        "bruck": bruck_all_gather,
        "recursive_doubling": recursive_doubling_all_gather,
        "circulant": circulant_all_gather,
        "hierarchical": hierarchical_all_gather,
    },
    "reduce_scatter": {
        "ring": ring_reduce_scatter,
        "recursive_halving": recursive_halving_reduce_scatter,
        "circulant": circulant_reduce_scatter,
        "hierarchical": hierarchical_reduce_scatter,
    },
    "all_to_all": {
        "pairwise": pairwise_all_to_all,
        "bruck": bruck_all_to_all,
        "grid": grid_all_to_all,
        "hierarchical": hierarchical_all_to_all,
    },
}


def chosen(collective: str, algorithm: str | None) -> tuple[Callable[..., Any], str | None]:
    """The function of `algorithm`, and how calls that ask for it are compared: by name, or by None for the default one,
    which may be asked for in both ways. A ValueError, where this collective has no such algorithm.
    """
    known = ALGORITHMS[collective]
    default = next(iter(known))
    if algorithm is None or algorithm == default:
        return known[default], None
    if algorithm not in list(known):  # a list, because what cannot be a key is a wrong name too
        raise ValueError(f"algorithm={algorithm!r}: {collective} has {', '.join(known)}")
    return known[algorithm], algorithm
