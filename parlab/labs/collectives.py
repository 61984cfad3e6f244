"""The exercises of notebook 01, collectives."""

from __future__ import annotations

import numpy as np

from parlab.labs.counts import Count, bytes_sent, messages
from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import Case, check_results, on_arrays, some_shape
from parlab.labs.trial import Trial
from parlab.labs.wrong import explains
from parlab.world import per_rank


def _divisible_shape(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    first, *more = some_shape(random, size, longest)
    return (size * first, *more)


def _try_reduce_scatter(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    done = trial.ran(trial.answer, P, per_rank(x))
    pieces = [[np.split(one, P)[rank] for one in x] for rank in range(P)]
    check_results(done, x, [sum(of_rank) for of_rank in pieces], pieces)
    return [
        bytes_sent(done).check(
            "n(P − 1)/P",
            case.nbytes * (P - 1) // P,
            "a rank sends more than one piece in a step, or makes one step too many",
        ),
        messages(done).check("P − 1", P - 1, "a rank sends a piece in several messages"),
    ]


REDUCE_SCATTER = on_arrays("01.reduce_scatter", "reduce_scatter(comm, x)", _try_reduce_scatter, _divisible_shape)


def _one_axis(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return some_shape(random, size, longest)[:1]


def _try_average_gradients(trial: Trial, case: Case) -> list[str]:
    x, P, n = case.inputs(), case.size, case.elements
    with explains("do not divide among", "fill x up with zeros, to a multiple of P"):
        done = trial.ran(trial.answer, P, per_rank(x))
    mean = np.mean(x, axis=0, dtype=case.dtype)  # of whole numbers: exact but for one rounding
    mistakes = {
        "the padding is left: cut the result to the length of x": [np.pad(mean, (0, -n % P))] * P,
        "the last n mod P elements are left out: fill x up, and do not cut it": [mean[: n // P * P]] * P,
        "the sum is divided by 2, and not by the number of ranks": [sum(x) / 2] * P,
    }
    calls = ("reduce_scatter", "all_gather")
    check_results(done, x, [mean] * P, [[one / P for one in x]] * P, calls, mistakes=mistakes)
    sent = bytes_sent(done)
    return [
        sent.check(
            "2n(P − 1)/P (n filled up to a multiple of P)",
            2 * (P - 1) * -(-n // P) * case.itemsize,
            "P zeros are added where P divides n already: -n % P are enough"
            if set(sent.numbers) == {2 * (P - 1) * (n // P + 1) * case.itemsize} and n % P == 0
            else "ranks send whole arrays where a piece of 1/P would do",
        )
    ]


AVERAGE_GRADIENTS = on_arrays("01.average_gradients", "average_gradients(comm, x)", _try_average_gradients, _one_axis)


def _try_hierarchical_all_reduce(trial: Trial, case: Case) -> list[str]:
    x, P, g = case.inputs(), case.size, case.ranks_per_node
    done = trial.ran(trial.answer, P, per_rank(x), g)
    check_results(done, x, [sum(x)] * P, [x] * P, calls=("reduce_scatter", "all_gather"))
    between = [0] * P
    for transfer in done.timeline.transfers:
        if transfer.src // g != transfer.dst // g:
            between[transfer.src] += transfer.nbytes
    inside = [sent - out for sent, out in zip(bytes_sent(done).numbers, between, strict=True)]
    exchanged = set(inside) == {2 * (g - 1) * case.nbytes // P} and g < P
    return [
        Count("bytes a rank sends to other nodes", between).check(
            "2(k − 1)/k · n/g",
            2 * (P // g - 1) * case.nbytes // P,
            "the groups are exchanged: rank // g is the same on all ranks of a node, rank % g on all at one place"
            if exchanged
            else "whole arrays go to other nodes; let each rank send its node's sum of one piece",
        ),
        Count("bytes a rank sends inside its node", inside).check(
            "2(g − 1)/g · n",
            2 * (g - 1) * case.nbytes // g,
            "every rank of a node gets the node's whole sum first; a reduce-scatter is enough",
        ),
    ]


def _in_nodes(*layouts: tuple[int, int]) -> list[Case]:
    """Two cases for each (nodes, ranks a node); their arrays divide among all ranks."""
    return [
        Case(nodes * per_node, (nodes * per_node * pieces,), dtype, per_node)
        for nodes, per_node in layouts
        for pieces, dtype in ((1, "float64"), (3, "float32"))
    ]


def _draw_nodes(random: np.random.Generator, size: int) -> Case:
    per_node = int(random.integers(1, 5))
    size = per_node * -(-size // per_node)
    return Case(size, (size * int(random.integers(1, 5)),), "float64", per_node)


HIERARCHICAL_ALL_REDUCE = Exercise(
    "01.hierarchical_all_reduce",
    "hierarchical_all_reduce(comm, x, ranks_per_node)",
    _in_nodes((2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (2, 4), (3, 4)),
    _try_hierarchical_all_reduce,
    _draw_nodes,
    on_ranks=True,
)

EXERCISES = (REDUCE_SCATTER, AVERAGE_GRADIENTS, HIERARCHICAL_ALL_REDUCE)
