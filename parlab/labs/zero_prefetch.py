"""The exercise of notebook 06 on time: the gathers of ZeRO stage 3, each beside the work on the block before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from parlab.labs.counts import ITEMSIZE, Count, elements_sent, listed, makespan, peak_bytes, ranks_in_words, two_blocks
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.world import Cluster, Comm, Timeline
from parlab.world.units import format_time
from parlab.zero import shard_range

GATHERED = "gathered weights"


@dataclass(frozen=True)
class PrefetchCase:
    """Blocks of these numbers of weights, and the microseconds of work on each."""

    size: int
    blocks: tuple[int, ...]
    micros: tuple[int, ...]
    seed: int = 0

    def __str__(self) -> str:
        blocks = f"blocks of {listed(self.blocks)} weights that compute {listed(self.micros)} µs"
        return f"{ranks_in_words(self.size)}, {blocks}"

    @property
    def order(self) -> list[int]:
        """The blocks in the order of their uses: forward, then backward."""
        return [*range(len(self.blocks)), *reversed(range(len(self.blocks)))]


LINK = Cluster.uniform(latency=1e-6, bandwidth=8e6)  # an element a microsecond


def gathered_ahead(
    comm: Comm, uses: Sequence[Any], gather: Callable[[Any], Any], work: Callable[[Any, Any, Any], Any], x: Any
) -> Any:
    """The result of the last work; each gather but the first runs beside the work on the block before. The exercise
    06.prefetch.

    Args:
        comm: the ranks that gather together.
        uses: the blocks in the order of their uses.
        gather: starts to gather a block's weights, and returns a request.
        work: `work(block, weights, x)` computes.
        x: what the first work is given.
    """
    request = gather(uses[0])
    for block, following in zip(uses, [*uses[1:], None], strict=True):
        weights = request.wait()
        if following is not None:
            request = gather(following)
        x = work(block, weights, x)
    return x


def _try_prefetch(trial: Trial, case: PrefetchCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.size, *case.blocks])
    weights = [draw.integers(1, 100, size=n).astype(float) for n in case.blocks]
    used: list[list[tuple[int, str]]] = [
        [] for _ in range(case.size)
    ]  # for each rank: the blocks it worked on, and whose weights it was given

    def program(comm: Comm) -> Any:
        def gather(block: int) -> Any:
            n = case.blocks[block]
            whole = np.empty(n)
            comm.hold(GATHERED, whole)
            own = shard_range(n, comm.rank, comm.size)
            return comm.iall_gather(weights[block][own.start : own.stop], out=whole)

        def work(block: int, given: Any, x: float) -> float:
            with comm.compute(f"block {block}", seconds=case.micros[block] / 1e6):
                used[comm.rank].append((block, _whose(given, weights)))
                return (2 * x + float(np.sum(weights[block]))) % 1009

        return trial.answer(comm, list(case.order), gather, work, float(comm.rank))

    done = trial.ran(program, case.size, cluster=LINK)
    for rank, result in enumerate(done.results):
        _check_uses(rank, used[rank], case)
        x = float(rank)
        for block in case.order:
            x = (2 * x + float(np.sum(weights[block]))) % 1009
        if not isinstance(result, float) or result != x:
            raise Wrong(f"rank {rank} returned {result!r:.40}, expected {x}: what the last work returned")
    need_messages(done)
    return [
        elements_sent(done).check(
            "2Ψ(P − 1)", 2 * sum(case.blocks) * (case.size - 1), "a rank gathers weights that it does not use"
        ),
        Count("bytes of gathered weights held", [peak_bytes(done.timeline, GATHERED)]).check(
            "two blocks",
            ITEMSIZE * two_blocks(case.blocks, case.order),
            "gather one block ahead, not more, and let go of a block after its work",
        ),
        makespan(done).check(
            "first gather + Σ max(work, next gather) + last work", _hidden(case), _first_wait(done.timeline, case)
        ),
    ]


def _whose(given: Any, weights: Sequence[Any]) -> str:
    """The argument that `work` was given, in words."""
    if not isinstance(given, np.ndarray):
        return f"a {type(given).__name__}: wait() returns the weights"
    same = [block for block, right in enumerate(weights) if given.shape == right.shape and (given == right).all()]
    return f"the weights of block {same[0]}" if same else "weights of no block"


def _check_uses(rank: int, used: list[tuple[int, str]], case: PrefetchCase) -> None:
    if [block for block, _ in used] != case.order:
        raise Wrong(f"rank {rank} worked on blocks {[block for block, _ in used]}, should be {case.order}")
    for number, (block, given) in enumerate(used):
        if given != f"the weights of block {block}":
            raise Wrong(
                f"rank {rank}, use {number} (from 0): work on block {block} was given {given}",
                f"likely cause: the next block is that of uses[{number}], on the way back, too",
            )


def _gather_time(case: PrefetchCase, block: int) -> int:
    """Picoseconds of a block's ring all-gather, P − 1 steps."""
    return (case.size - 1) * LINK.intra.picoseconds(ITEMSIZE * case.blocks[block] // case.size)


def _hidden(case: PrefetchCase) -> int:
    """The makespan in picoseconds when each gather runs beside the work on the block before."""
    work = [10**6 * case.micros[block] for block in case.order]
    gathers = [_gather_time(case, block) for block in case.order]
    return gathers[0] + sum(map(max, work[:-1], gathers[1:])) + work[-1]


def _first_wait(timeline: Timeline, case: PrefetchCase) -> str:
    """The first wait that an earlier gather would avoid, in words."""
    spans = [span for span in timeline.computes if span.rank == 0]
    for number, (one, other) in enumerate(pairwise(spans), start=1):
        gap, gather = other.start - one.end, _gather_time(case, case.order[number])
        if gap > max(0, gather - (one.end - one.start)):
            return (
                f"before use {number}, {other.name}, rank 0 waits {format_time(gap)}: its gather takes "
                f"{format_time(gather)}, and must start before the work that takes {format_time(one.end - one.start)}"
            )
    return "the first work waits for more than its own gather"


def _draw(random: np.random.Generator, size: int) -> PrefetchCase:
    """Blocks that divide among the ranks, as the closed form of a gather's time needs."""
    blocks = tuple(size * int(n) for n in random.integers(1, 6, size=random.integers(2, 6)))
    micros = tuple(map(int, random.integers(1, 10 * size, size=len(blocks))))
    return PrefetchCase(size, blocks, micros)


PREFETCH = Exercise(
    "06.prefetch",
    "prefetch(comm, uses, gather, work, x)",
    [
        PrefetchCase(*sizes)
        for sizes in (
            (2, (4, 4), (9, 9)),
            (2, (8, 4, 12), (9, 3, 9)),
            (1, (3, 5), (2, 2)),
            (3, (6, 3, 9, 12), (5, 12, 20, 3)),
            (4, (8, 16, 4, 40), (30, 4, 9, 50)),
            (7, (21, 14, 28, 7, 35), (30, 30, 12, 40, 25)),
        )
    ],
    _try_prefetch,
    _draw,
    on_ranks=True,
    solved_by=("parlab.labs.gathered_ahead",),
)

EXERCISES = (PREFETCH,)
