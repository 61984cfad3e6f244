"""The exercises of notebook 01, collectives."""

from __future__ import annotations

import numpy as np

from parlab.labs.rank_programs import (
    Case,
    Count,
    RankProgram,
    bytes_sent,
    drawn,
    growing,
    inputs_of_all,
    messages,
    some_shape,
)
from parlab.world import Run


def _divisible_shape(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    first, *more = some_shape(random, size, longest)
    return (size * first, *more)


REDUCE_SCATTER = RankProgram(
    expected=lambda case, inputs: np.split(sum(inputs), case.size),
    parts=lambda case, inputs, rank: [np.split(x, case.size)[rank] for x in inputs],
    counts=(
        Count(
            "bytes a rank sends",
            "n(N − 1)/N",
            bytes_sent,
            lambda case: case.nbytes * (case.size - 1) // case.size,
            "more than one block travels in a step, or one step too many is made",
        ),
        Count("messages a rank sends", "N − 1", messages, lambda case: case.size - 1, "a block travels in parts"),
    ),
).exercise(
    "01.reduce_scatter",
    "reduce_scatter(comm, x)",
    growing((2, 1, *range(3, 9)), _divisible_shape),
    drawn(_divisible_shape),
)


def _one_axis(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return some_shape(random, size, longest)[:1]


def _twice_all_but_own(case: Case) -> int:
    """2n(N − 1)/N, where zeros fill x up to the next multiple of N elements."""
    block = -(-case.elements // case.size) * case.itemsize
    return 2 * (case.size - 1) * block


AVERAGE_GRADIENTS = RankProgram(
    expected=lambda case, inputs: [sum(inputs) / case.size] * case.size,
    parts=lambda case, inputs, rank: [x / case.size for x in inputs],
    calls=("reduce_scatter", "all_gather"),
    counts=(
        Count(
            "bytes a rank sends",
            "2n(N − 1)/N (n filled up to a multiple of N)",
            bytes_sent,
            _twice_all_but_own,
            "whole arrays travel where a piece of 1/N would do",
        ),
    ),
).exercise(
    "01.average_gradients", "average_gradients(comm, x)", growing((2, 1, *range(3, 9)), _one_axis), drawn(_one_axis)
)


def _bytes_between(done: Run, case: Case) -> list[int]:
    sent = [0] * case.size
    for transfer in done.timeline.transfers:
        if transfer.src // case.ranks_per_node != transfer.dst // case.ranks_per_node:
            sent[transfer.src] += transfer.nbytes
    return sent


def _bytes_inside(done: Run, case: Case) -> list[int]:
    return [sent - out for sent, out in zip(bytes_sent(done, case), _bytes_between(done, case), strict=True)]


def _in_nodes(*layouts: tuple[int, int]) -> list[Case]:
    """For each (nodes, ranks a node) two cases, whose arrays divide among all ranks."""
    return [
        Case(nodes * per_node, (nodes * per_node * blocks,), dtype, per_node)
        for nodes, per_node in layouts
        for blocks, dtype in ((1, "float64"), (3, "float32"))
    ]


def _draw_nodes(random: np.random.Generator, size: int) -> Case:
    per_node = int(random.integers(1, 5))
    size = per_node * -(-size // per_node)
    return Case(size, (size * int(random.integers(1, 5)),), "float64", per_node, int(random.integers(1, 10**6)))


HIERARCHICAL_ALL_REDUCE = RankProgram(
    more=lambda case: (case.ranks_per_node,),
    expected=lambda case, inputs: [sum(inputs)] * case.size,
    parts=inputs_of_all,
    calls=("reduce_scatter", "all_gather"),
    counts=(
        Count(
            "bytes a rank sends to other nodes",
            "2(k − 1)/k · n/g",
            _bytes_between,
            lambda case: 2 * (case.size // case.ranks_per_node - 1) * case.nbytes // case.size,
            "whole arrays cross; let each rank of a node carry the node's sum of one piece",
        ),
        Count(
            "bytes a rank sends inside its node",
            "2(g − 1)/g · n",
            _bytes_inside,
            lambda case: 2 * (case.ranks_per_node - 1) * case.nbytes // case.ranks_per_node,
            "the sum is made whole inside the node before it crosses; a reduce-scatter is enough",
        ),
    ),
).exercise(
    "01.hierarchical_all_reduce",
    "hierarchical_all_reduce(comm, x, ranks_per_node)",
    _in_nodes((2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (2, 4), (3, 4)),
    _draw_nodes,
)

EXERCISES = (REDUCE_SCATTER, AVERAGE_GRADIENTS, HIERARCHICAL_ALL_REDUCE)
