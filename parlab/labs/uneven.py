"""The exercise 04b.uneven: layers that take unequal times, cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.pipeline import (
    Costs,
    balance,
    one_f_one_b,
    partition,
    simulate,
)


@dataclass(frozen=True)
class LayersCase:
    """The time of each layer, for `size` stages."""

    size: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.size} stages, layers that take {list(self.layers)}"


LAYERS = [
    LayersCase(2, (1, 1, 1, 1, 1, 3)),
    LayersCase(2, (5, 1, 1)),
    LayersCase(3, (1,) * 9 + (4,)),
    LayersCase(3, (2, 3, 4)),
    LayersCase(3, (1, 5, 2, 3)),
    LayersCase(4, (3, *(2,) * 14, 9)),
    LayersCase(5, (1, 9, 1, 1, 8, 2, 2, 2, 7)),
    LayersCase(6, (6, 6, 1, 1, 1, 1, 6, 2, 5, 5)),
    LayersCase(7, (1,) * 7),
    LayersCase(8, (4, *(2,) * 23, 11)),
]


def _drawn_layers(random: np.random.Generator, size: int) -> LayersCase:
    number = int(random.integers(size, 4 * size))
    return LayersCase(size, (*random.integers(1, 9, number - 1).tolist(), int(random.integers(1, 30))))


def _try_uneven(trial: Trial, case: LayersCase) -> list[str]:
    found = trial.called(list(case.layers), case.size)
    if not isinstance(found, list | tuple | np.ndarray) or len(found) == 0:
        raise Wrong(f"returned {brief(found)}, expected a list of how many layers each stage has")
    numbers = [len(one) if isinstance(one, range) else one for one in found]
    if not all(isinstance(one, int | np.integer) and one >= 1 for one in numbers):
        raise Wrong(f"returned {brief(found)}, expected whole numbers from 1 on: no stage is without layers")
    if len(numbers) != case.size:
        raise Wrong(f"it makes {len(numbers)} stages, should make {case.size}")
    if sum(numbers) != len(case.layers):
        raise Wrong(f"its stages have {sum(numbers)} layers together, should have {len(case.layers)}")
    stops = np.cumsum(numbers)
    stages = [sum(case.layers[stop - number : stop]) for number, stop in zip(numbers, stops, strict=True)]
    best = [sum(case.layers[i] for i in own) for own in balance(case.layers, case.size)]
    if max(stages) > max(best):
        raise Wrong(
            f"it runs, but its stages take {stages}: the slowest {max(stages)}, and {max(best)} is possible",
            f"where time goes: each of m microbatches waits for stage {stages.index(max(stages))}",
        )
    even = [sum(case.layers[i] for i in own) for own in partition(len(case.layers), case.size)]
    takes = [_one_f_one_b(case.size, each) for each in (stages, even)]
    return [
        f"the slowest stage takes {max(stages)}; least possible: {max(best)}",
        f"1F1B, {2 * case.size} microbatches: {takes[0]}; with as many layers on each stage: {takes[1]}",
    ]


def _one_f_one_b(p: int, stages: Sequence[int]) -> Any:
    """The makespan of 1F1B if a backward takes as long as two forwards."""
    return simulate(one_f_one_b(p, 2 * p), Costs(stages, stages, stages)).makespan


UNEVEN = Exercise(
    "04b.uneven",
    "cut(layers, p)",
    LAYERS,
    _try_uneven,
    _drawn_layers,
    solved_by=("parlab.pipeline.balance", "parlab.pipeline.partition"),
)

EXERCISES = (UNEVEN,)
