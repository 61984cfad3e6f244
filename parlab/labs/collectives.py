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
    x, N = case.inputs(), case.size
    done = trial.ran(trial.answer, N, per_rank(x))
    blocks = [[np.split(one, N)[rank] for one in x] for rank in range(N)]
    check_results(done, x, [sum(of_rank) for of_rank in blocks], blocks)
    return [
        bytes_sent(done).check(
            "n(N − 1)/N",
            case.nbytes * (N - 1) // N,
            "a rank sends more than one block in a step, or makes one step too many",
        ),
        messages(done).check("N − 1", N - 1, "a rank sends a block in several messages"),
    ]


REDUCE_SCATTER = on_arrays("01.reduce_scatter", "reduce_scatter(comm, x)", _try_reduce_scatter, _divisible_shape)


def _one_axis(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return some_shape(random, size, longest)[:1]


def _try_average_gradients(trial: Trial, case: Case) -> list[str]:
    x, N, n = case.inputs(), case.size, case.elements
    with explains("do not divide among", "fill x up with zeros, to a multiple of N"):
        done = trial.ran(trial.answer, N, per_rank(x))
    mean = np.mean(x, axis=0, dtype=case.dtype)  # of whole numbers: exact but for one rounding
    mistakes = {
        "the padding is left: cut the result to the length of x": [np.pad(mean, (0, -n % N))] * N,
        "the last n mod N elements are left out: fill x up, and do not cut it": [mean[: n // N * N]] * N,
        "the sum is divided by 2, and not by the number of ranks": [sum(x) / 2] * N,
    }
    calls = ("reduce_scatter", "all_gather")
    check_results(done, x, [mean] * N, [[one / N for one in x]] * N, calls, mistakes=mistakes)
    sent = bytes_sent(done)
    return [
        sent.check(
            "2n(N − 1)/N (n filled up to a multiple of N)",
            2 * (N - 1) * -(-n // N) * case.itemsize,
            "N zeros are added where N divides n already: -n % N are enough"
            if set(sent.numbers) == {2 * (N - 1) * (n // N + 1) * case.itemsize} and n % N == 0
            else "ranks send whole arrays where a piece of 1/N would do",
        )
    ]


AVERAGE_GRADIENTS = on_arrays("01.average_gradients", "average_gradients(comm, x)", _try_average_gradients, _one_axis)


def _try_hierarchical_all_reduce(trial: Trial, case: Case) -> list[str]:
    x, N, g = case.inputs(), case.size, case.ranks_per_node
    done = trial.ran(trial.answer, N, per_rank(x), g)
    check_results(done, x, [sum(x)] * N, [x] * N, calls=("reduce_scatter", "all_gather"))
    between = [0] * N
    for transfer in done.timeline.transfers:
        if transfer.src // g != transfer.dst // g:
            between[transfer.src] += transfer.nbytes
    inside = [sent - out for sent, out in zip(bytes_sent(done).numbers, between, strict=True)]
    exchanged = set(inside) == {2 * (g - 1) * case.nbytes // N} and g < N
    return [
        Count("bytes a rank sends to other nodes", between).check(
            "2(k − 1)/k · n/g",
            2 * (N // g - 1) * case.nbytes // N,
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
        Case(nodes * per_node, (nodes * per_node * blocks,), dtype, per_node)
        for nodes, per_node in layouts
        for blocks, dtype in ((1, "float64"), (3, "float32"))
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
