"""The exercises of notebook 00, ranks and messages."""

from __future__ import annotations

from typing import Any

from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import Case, Count, RankProgram, growing, inputs_of_all, messages, some_shape, steps
from parlab.world import Cluster, Comm, Run
from parlab.world.units import format_time


def _neighbours(case: Case, inputs: list[Any]) -> list[Any]:
    return [(inputs[rank - 1], inputs[(rank + 1) % case.size]) for rank in range(case.size)]


EXCHANGE = Exercise(
    name="00.exchange",
    cases=growing(range(2, 9), some_shape),
    attempt=RankProgram(
        call="exchange(comm, x)",
        expected=_neighbours,
        counts=(
            Count(
                "messages a rank sends",
                "2",
                messages,
                lambda case: 2,
                "arrays travel on to ranks that do not need them",
            ),
            Count("steps", "2", steps, lambda case: 2, "each rank waits for the one before, so they send one by one"),
        ),
    ),
)


def _sum_on_rank_0(case: Case, inputs: list[Any]) -> list[Any]:
    return [sum(inputs), *[None] * (case.size - 1)]


def _all_messages(done: Run, case: Case) -> list[int]:
    return [sum(messages(done, case))]


TREE_SUM = Exercise(
    name="00.tree_sum",
    cases=growing((2, 1, *range(3, 10), 16), some_shape),
    attempt=RankProgram(
        call="tree_sum(comm, x)",
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
        ),
    ),
)

LINK = Cluster.uniform(latency=1e-6, bandwidth=1e9)
WORK = 10e-6  # seconds on one block: longer than any block of these cases travels


def _work(comm: Comm, block: Any) -> Any:
    with comm.compute("work", seconds=WORK):
        return block * block


def _works(done: Run, case: Case) -> list[int]:
    ranks = [span.rank for span in done.timeline.computes]
    return [ranks.count(rank) for rank in range(case.size)]


OVERLAP = Exercise(
    name="00.overlap",
    cases=growing((2, 1, *range(3, 8)), some_shape),
    attempt=RankProgram(
        call="overlap(comm, x, work)",
        more=lambda case: (_work,),
        expected=lambda case, inputs: [sum(x * x for x in inputs)] * case.size,
        parts=lambda case, inputs, rank: [x * x for x in inputs],
        cluster=LINK,
        counts=(
            Count(
                "works of a rank",
                "N",
                _works,
                lambda case: case.size,
                "work is not called exactly once with each block",
                exact=True,
            ),
            Count(
                "messages a rank sends",
                "N − 1",
                messages,
                lambda case: case.size - 1,
                "the last block is passed on, too",
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
    ),
)

EXERCISES = (EXCHANGE, TREE_SUM, OVERLAP)
