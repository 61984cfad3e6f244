"""The layers of each stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from parlab.arguments import amount, whole
from parlab.pipeline.costs import without_arrays
from parlab.pipeline.schedule import check_sizes
from parlab.world.collectives.common import piece_sizes


def partition(num_layers: int, num_stages: int, costs: Sequence[float] | None = None) -> list[range]:
    """The layers of each stage: contiguous, and never none.

    The first (num_layers mod num_stages) stages get one layer more. With costs, the most expensive stage is as cheap as
    it can be, and the others as even as that leaves them (least sum of squares).

    Args:
        costs: of each layer, in any unit; those of the embedding and of the head belong to the first and the last.

    Raises:
        ValueError: fewer layers than stages, a wrong number of costs, or a negative one.

    >>> partition(10, 3)
    [range(0, 4), range(4, 7), range(7, 10)]
    >>> partition(10, 3, costs=[1] * 9 + [3])
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    whole("num_layers", num_layers, least=1)
    whole("num_stages", num_stages, least=1)
    if costs is not None:
        _check_costs(costs)
    _check(num_layers, num_stages, costs)
    if costs is None:
        starts = accumulate(piece_sizes(num_layers, num_stages), initial=0)
        return [range(start, stop) for start, stop in pairwise(starts)]
    before = list(accumulate(costs, initial=0))

    def cost(start: int, stop: int) -> float:
        return before[stop] - before[start]

    bottleneck, _ = _divide(num_layers, num_stages, cost, lambda total, of_stage: max(total, of_stage))
    _, cuts = _divide(num_layers, num_stages, cost, lambda total, of_stage: total + of_stage**2, most=bottleneck)
    return [range(start, stop) for start, stop in pairwise([*cuts, num_layers])]


def balance(costs: Sequence[float], p: int, chunks: int = 1) -> list[range]:
    """The layers of each of the p·v stages, so that the slowest is as fast as it can be: uneven layers, even stages.

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
    return partition(len(costs), p * chunks, costs)


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


def _check(num_layers: int, num_stages: int, costs: Sequence[float] | None) -> None:
    if num_layers < num_stages:
        raise ValueError(
            f"num_layers={num_layers}, num_stages={num_stages}: each stage needs a layer, use at most {num_layers}"
        )
    if costs is not None and len(costs) != num_layers:
        raise ValueError(f"costs={costs!r:.60}: a list of {num_layers} numbers is needed, one a layer")


def _check_costs(costs: Sequence[float]) -> None:
    numbers = without_arrays(costs)
    if not isinstance(numbers, Sequence):
        raise ValueError(f"costs={costs!r:.60}: must be a list of numbers, one a layer")
    for layer, number in enumerate(numbers):
        amount(f"costs[{layer}]", number)
