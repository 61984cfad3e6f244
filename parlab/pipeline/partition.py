"""The layers of each stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from parlab.arguments import amount, whole
from parlab.pipeline.costs import without_arrays
from parlab.pipeline.schedule import check_sizes
from parlab.world.collectives.common import piece_sizes


def partition(num_layers: int, num_stages: int) -> list[range]:
    """The layers of each stage: contiguous, and never none.

    The first (num_layers mod num_stages) stages get one layer more.

    Raises:
        ValueError: fewer layers than stages.

    >>> partition(10, 3)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    whole("num_layers", num_layers, least=1)
    whole("num_stages", num_stages, least=1)
    _check_enough(num_layers, num_stages)
    starts = accumulate(piece_sizes(num_layers, num_stages), initial=0)
    return [range(start, stop) for start, stop in pairwise(starts)]


def balance(costs: Sequence[float], p: int, chunks: int = 1) -> list[range]:
    """The layers of each of the p·v stages, so that the slowest is as fast as it can be: uneven layers, even stages.

    The others are as even as that leaves them (least sum of squares).

    Args:
        costs: of each layer, in any unit; those of the embedding and of the head belong to the first and the last.
        chunks: stages a rank, v.

    Raises:
        ValueError: fewer layers than stages, or a negative cost.

    >>> balance([1, 1, 1, 1, 1, 1, 1, 3], p=2, chunks=2)
    [range(0, 3), range(3, 5), range(5, 7), range(7, 8)]
    """
    _check_costs(costs)
    check_sizes(p=p, chunks=chunks)
    num_layers, num_stages = len(costs), p * chunks
    _check_enough(num_layers, num_stages)
    before = list(accumulate(costs, initial=0))

    def cost(start: int, stop: int) -> float:
        return before[stop] - before[start]

    bottleneck, _ = _divide(num_layers, num_stages, cost, lambda total, of_stage: max(total, of_stage))
    _, cuts = _divide(num_layers, num_stages, cost, lambda total, of_stage: total + of_stage**2, most=bottleneck)
    return [range(start, stop) for start, stop in pairwise([*cuts, num_layers])]


def _divide(
    num_layers: int,
    num_stages: int,
    cost: Callable[[int, int], float],
    combine: Callable[[float, float], float],
    most: float = math.inf,
) -> tuple[float, list[int]]:
    """Dynamic programming over the stages: the least combined cost, and the first layer of each stage.

    Invariant: after s stages, `best[n]` is the best way to place the first n layers in them: its combined cost, and
    minus the first layer of each stage. So among equals the smallest has the longer stages first.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0, [])}
    for stage in range(num_stages):
        longer: dict[int, tuple[float, list[int]]] = {}
        for stop in range(stage + 1, num_layers - (num_stages - stage - 1) + 1):
            choices = [
                (combine(best[start][0], cost(start, stop)), [*best[start][1], -start])
                for start in range(stage, stop)
                if start in best and cost(start, stop) <= most
            ]
            if choices:
                longer[stop] = min(choices)
        best = longer
    total, starts = best[num_layers]
    return total, [-start for start in starts]


def _check_enough(num_layers: int, num_stages: int) -> None:
    if num_layers < num_stages:
        raise ValueError(
            f"num_layers={num_layers}, num_stages={num_stages}: each stage needs a layer, use at most {num_layers}"
        )


def _check_costs(costs: Sequence[float]) -> None:
    numbers = without_arrays(costs)
    if not isinstance(numbers, Sequence):
        raise ValueError(f"costs={costs!r:.60}: must be a list of numbers, one a layer")
    for layer, number in enumerate(numbers):
        amount(f"costs[{layer}]", number)
