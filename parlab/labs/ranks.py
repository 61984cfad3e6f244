"""The exercises of notebook 00, ranks and messages."""

from __future__ import annotations

from typing import Any

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
    steps,
)
from parlab.world import Cluster, Comm, Run
from parlab.world.units import format_time


def _neighbours(case: Case, inputs: list[Any]) -> list[Any]:
    return [(inputs[rank - 1], inputs[(rank + 1) % case.size]) for rank in range(case.size)]


EXCHANGE = RankProgram(
    expected=_neighbours,
    counts=(
        Count(
            "messages a rank sends", "2", messages, lambda case: 2, "arrays travel on to ranks that do not need them"
        ),
        Count(
            "steps",
            "2",
            steps,
            lambda case: 2,
            "messages that could travel at once follow one another; post both sends and both receives before you wait, "
            "or use sendrecv",
        ),
    ),
).exercise("00.exchange", "exchange(comm, x)", growing(range(2, 9), some_shape), drawn(some_shape))


def _sum_on_rank_0(case: Case, inputs: list[Any]) -> list[Any]:
    return [sum(inputs), *[None] * (case.size - 1)]


def _all_messages(done: Run, case: Case) -> list[int]:
    return [sum(messages(done, case))]


TREE_SUM = RankProgram(
    expected=_sum_on_rank_0,
    parts=inputs_of_all,
    counts=(
        Count("messages", "N − 1", _all_messages, lambda case: case.size - 1, "a rank sends more than one sum"),
        Count(
            "steps",
            "⌈log₂ N⌉",
            steps,
            lambda case: (case.size - 1).bit_length(),
            "messages queue at one rank; let half of the ranks send to the other half, and so on",
        ),
        Count(
            "bytes a rank sends",
            "n",
            bytes_sent,
            lambda case: case.nbytes if case.size > 1 else 0,
            "arrays travel that could have been added: one sum is enough",
        ),
    ),
).exercise("00.tree_sum", "tree_sum(comm, x)", growing((2, 1, *range(3, 10), 16), some_shape), drawn(some_shape))

LINK = Cluster.uniform(latency=1e-6, bandwidth=1e9)
WORK = 10e-6  # seconds on one block: longer than any block of these cases travels


def _factor(case: Case) -> int:
    """So that what `work` returns, and what it notes, is not to be guessed."""
    return int(np.random.default_rng([case.seed, case.size]).integers(2, 50))


def _work(case: Case) -> tuple[Any, ...]:
    def work(comm: Comm, block: Any) -> Any:
        with comm.compute(f"work {_factor(case)}", seconds=WORK):
            return block * (block + block.dtype.type(_factor(case)))

    return (work,)


def _worked(case: Case, inputs: list[Any]) -> list[Any]:
    return [x * (x + x.dtype.type(_factor(case))) for x in inputs]


def _works(done: Run, case: Case) -> list[int]:
    ranks = [span.rank for span in done.timeline.computes if span.name == f"work {_factor(case)}"]
    return [ranks.count(rank) for rank in range(case.size)]


OVERLAP = RankProgram(
    more=_work,
    expected=lambda case, inputs: [sum(_worked(case, inputs))] * case.size,
    parts=lambda case, inputs, rank: _worked(case, inputs),
    tools=("isend", "irecv"),
    cluster=LINK,
    counts=(
        Count(
            "works of a rank",
            "N",
            _works,
            lambda case: case.size,
            "work(comm, block) is not called exactly once with each block",
            exact=True,
            early=True,
        ),
        Count(
            "messages a rank sends", "N − 1", messages, lambda case: case.size - 1, "the last block is passed on, too"
        ),
        Count(
            "makespan",
            "N works",
            lambda done, case: [done.timeline.makespan],
            lambda case: case.size * round(WORK * 10**12),
            "a rank waits for a message before it works; post isend and irecv, work, then wait",
            show=format_time,
        ),
    ),
).exercise("00.overlap", "overlap(comm, x, work)", growing((2, 1, *range(3, 8)), some_shape), drawn(some_shape))

EXERCISES = (EXCHANGE, TREE_SUM, OVERLAP)
