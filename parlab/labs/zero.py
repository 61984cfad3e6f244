"""The exercises of notebook 06 on shards: a step of ZeRO stage 1, and the gradients of ZeRO stage 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from parlab.labs.counts import (
    ITEMSIZE,
    Count,
    elements_sent,
    listed,
    microbatches_in_words,
    peak_bytes,
    ranks_in_words,
    right_and_wrong,
    two_blocks,
)
from parlab.labs.difference import apart, difference, kind, likely
from parlab.labs.exercise import Exercise
from parlab.labs.memory import bytes_held, variables_of_callers
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains, need_messages
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, Run, Timeline
from parlab.zero import shard_range

TOLERANCE = 1e-12  # of an entry, or of 1
MOMENTS, WHOLE = "moments", "whole gradients"


@dataclass(frozen=True)
class StepCase:
    """Ψ weights on `size` ranks."""

    size: int
    num_params: int
    seed: int = 0

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, Ψ = {self.num_params} weights"


STEPS = 3
NO_COUNTS = "the shards are not of one length: give `reduce_scatter` and `all_gather` counts=, the lengths of all"
NOT_NAMED = "`counts` is not the second argument: name it, counts=..."
ONE_BY_ONE = "but one owner is served after another: the picture below shows what that costs in time"
NOT_UPDATED = "this is the old weight: it was told before its owner updated it, or a copy of it was updated"


def _shard(total: int, rank: int, size: int) -> slice:
    own = shard_range(total, rank, size)
    return slice(own.start, own.stop)


def _optimizer(case: StepCase) -> AdamW:
    """An AdamW with drawn settings, which only `update` knows; eps is large, so that the gradient's scale matters."""
    lr, beta = np.random.default_rng([case.seed, case.size, case.num_params]).uniform([0.05, 0.8], [0.2, 0.95])
    return AdamW(lr=float(lr), betas=(float(beta), 0.99), eps=0.1)


def _try_zero_1(trial: Trial, case: StepCase) -> list[str]:
    size, n, optimizer = case.size, case.num_params, _optimizer(case)
    draw = np.random.default_rng([case.seed, size, n])
    weights, mean, square = draw.normal(size=n), np.zeros(n), np.zeros(n)  # [Ψ] each: the state of a single rank
    states: list[dict[str, Any]] = [{} for _ in range(size)]
    lines = []
    for step in range(1, STEPS + 1):
        gradients = draw.integers(-9, 10, size=(size, n)).astype(float)
        before, moments = weights.copy(), (mean.copy(), square.copy())
        optimizer.update(weights, gradients.mean(axis=0), mean, square, step=step)
        updates: list[int] = []

        def program(
            comm: Comm, before: Any = before, gradients: Any = gradients, step: int = step, updates: Any = updates
        ) -> Any:
            def update(weights: Any, gradient: Any, mean: Any, square: Any) -> None:
                comm.hold(MOMENTS, mean, square)
                updates.append(comm.rank)
                optimizer.update(weights, gradient, mean, square, step=step)

            return trial.answer(comm, before.copy(), gradients[comm.rank].copy(), states[comm.rank], update)

        with explains("do not divide among", NO_COUNTS), explains("axis=[", NOT_NAMED):
            done = trial.ran(program, size)
        mistakes = partial(_mistakes, optimizer, before, gradients, moments, step)
        _check_weights(done.results, weights, case, step, mistakes, bool(updates))
        need_messages(done)
        lines = [
            elements_sent(done, "elements that all ranks send in a step").check(
                "2Ψ(P − 1)", 2 * n * (size - 1), _why_more(done, case)
            ),
            _moments_held(done.timeline, states).check(
                "2 moments · ⌈Ψ/P⌉ · 8",
                2 * -(-n // size) * ITEMSIZE,
                "a moment is as long as the shard, not as the weights: a view of a whole array keeps all of it",
            ),
        ]
        if {transfer.name for transfer in done.timeline.transfers} & {"reduce", "broadcast"}:
            lines.append(ONE_BY_ONE)
    return [f"weights after {STEPS} steps equal the serial optimizer's, on every rank", *lines]


def _moments_held(timeline: Timeline, states: list[dict[str, Any]]) -> Count:
    """The most bytes of moments on a rank: those that `update` was given, or those that `state` keeps."""
    given = peak_bytes(timeline, MOMENTS)
    return Count("bytes of moments that a rank holds", [max(given, bytes_held(state, kind="f")) for state in states])


def _check_weights(
    results: list[Any],
    expected: Any,
    case: StepCase,
    step: int,
    mistakes: Callable[[int], dict[str, Any]],
    updated: bool,
) -> None:
    """Raise `Wrong` for the lowest rank whose weights after `step` differ from those of the serial step."""
    for rank, found in enumerate(results):
        if not isinstance(found, np.ndarray) or (found.shape, found.dtype) != (expected.shape, expected.dtype):
            shard = np.shape(found) == (len(shard_range(case.num_params, rank, case.size)),)
            cause = ["likely cause: this is the rank's shard alone: all ranks need all new weights"] * shard
            raise Wrong(f"rank {rank} {difference(found, expected)}", *cause)
    wrong = [rank for rank, found in enumerate(results) if not _same(found, expected)]
    if not wrong:
        return
    rank, found = wrong[0], results[wrong[0]]
    places = np.flatnonzero(~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE))
    first = int(places[0])
    owner = next(r for r in range(case.size) if first in shard_range(case.num_params, r, case.size))
    own = shard_range(case.num_params, owner, case.size)
    is_now, should_be = apart(found[first], expected[first])
    lines = [
        f"after step {step}, rank {rank}: weight {first} is {is_now}, should be {should_be}; "
        f"{len(places)} of {case.num_params} differ",
        f"weight {first} belongs to rank {owner}, whose shard is {own.start} to {own[-1]}",
    ]
    right = [r for r in range(case.size) if r not in wrong]
    causes = [text for text, weights in mistakes(rank).items() if _same(found[places], weights[places])]
    if not updated:
        causes = ["`update` was not called"]
    elif NOT_UPDATED in causes and _same(results[owner][first], expected[first]):
        causes = ["this rank did not receive the other ranks' new weights"]
    raise Wrong(*lines, *right_and_wrong(right, wrong), *[f"likely cause: {cause}" for cause in causes[:1]])


def _mistakes(
    optimizer: AdamW, before: Any, gradients: Any, moments: tuple[Any, Any], step: int, rank: int
) -> dict[str, Any]:
    """The weights that well-known mistakes give, by cause."""

    def updated(gradient: Any, mean: Any, square: Any) -> Any:
        weights, mean, square = before.copy(), mean.copy(), square.copy()
        optimizer.update(weights, gradient, mean, square, step=step)
        return weights

    size = len(gradients)
    mean = gradients.mean(axis=0)
    return {
        NOT_UPDATED: before,
        f"the gradient is {size} times too large: the mean over ranks is needed (with a usual eps you would hardly see "
        "it, since Adam divides by the gradient's size)": updated(size * mean, *moments),
        f"the gradient is {size} times too small: divided by the number of ranks once too often": updated(
            mean / size, *moments
        ),
        "the sum of the gradients is divided by 2, and not by the number of ranks": updated(size * mean / 2, *moments),
        "updated with this rank's own gradient: nothing was summed": updated(gradients[rank], *moments),
        "each owner updated with its own gradient: nothing was summed": np.concatenate(
            [updated(own, *moments)[_shard(before.size, owner, size)] for owner, own in enumerate(gradients)]
        ),
        "each rank took a step with its own gradient, and the weights were averaged: that is not the step of the mean "
        "gradient": np.mean([updated(own, *moments) for own in gradients], axis=0),
        "the moments start from 0 again: keep them in `state`": updated(mean, *map(np.zeros_like, moments)),
    }


def _why_more(done: Run, case: StepCase) -> str:
    if any(transfer.name == "all_reduce" for transfer in done.timeline.transfers):
        return "an all_reduce is a reduce_scatter and an all_gather: you need the first half of it only"
    if case.num_params % case.size:
        return "ranks send padding, too: reduce_scatter and all_gather take counts="
    return "each weight travels once as a gradient, on its way to its owner, and once as a new weight"


ZERO_1 = Exercise(
    "06.zero_1",
    "zero_1(comm, weights, gradient, state, update)",
    [StepCase(*sizes) for sizes in ((2, 4), (2, 5), (1, 3), (3, 10), (4, 6), (4, 3), (5, 23), (7, 100))],
    _try_zero_1,
    lambda random, size: StepCase(size, int(random.integers(size // 2, 8 * size))),
    on_ranks=True,
    solved_by=("parlab.zero.Zero",),
)


@dataclass(frozen=True)
class BlocksCase:
    """Blocks of these numbers of weights on `size` ranks, and a number of microbatches."""

    size: int
    blocks: tuple[int, ...]
    microbatches: int
    seed: int = 0

    def __str__(self) -> str:
        blocks = f"blocks of {listed(self.blocks)} weights"
        return f"{ranks_in_words(self.size)}, {blocks}, {microbatches_in_words(self.microbatches)}"

    @property
    def order(self) -> list[int]:
        """The blocks in the order of their gradients."""
        return list(reversed(range(len(self.blocks)))) * self.microbatches


def reduced_at_once(comm: Comm, backward: Iterable[tuple[Any, Any]], microbatches: int) -> dict[Any, Any]:
    """This rank's shard `[n_r]` of the mean gradient, by block: each gradient is reduced when it comes. The exercise
    06.stage_2.

    Args:
        comm: the ranks among which each block is cut.
        backward: (block, this rank's gradient `[n]` of it), from the last block to the first, in every microbatch.
        microbatches: k.
    """
    shards: dict[Any, Any] = {}
    for block, gradient in backward:
        counts = [len(shard_range(gradient.size, rank, comm.size)) for rank in range(comm.size)]
        part = comm.reduce_scatter(gradient, counts=counts)  # [n_r]
        shards[block] = shards.get(block, 0) + part / (comm.size * microbatches)
    return shards


BACKWARD = 1e-3  # seconds of a block's backward: more than any message of these cases takes


def _try_stage_2(trial: Trial, case: BlocksCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.size, *case.blocks])
    kept = [0] * case.size  # by rank: the most bytes in its variables beyond those of shards
    gradients = [draw.integers(1, 100, size=(case.size, case.blocks[block])).astype(float) for block in case.order]

    def program(comm: Comm) -> Any:
        def watch(made: int) -> None:
            held = made + bytes_held(variables_of_callers(program.__code__))
            kept[comm.rank] = max(kept[comm.rank], held - _shard_bytes(case))

        return trial.answer(comm, _backward(comm, case.order, gradients, watch), case.microbatches)

    with explains("do not divide among", NO_COUNTS), explains("axis=[", NOT_NAMED):
        done = trial.ran(program, case.size)
    for rank, result in enumerate(done.results):
        if not isinstance(result, dict) or set(result) != set(range(len(case.blocks))):
            keys = f" with the keys {list(result)}" if isinstance(result, dict) else ""
            raise Wrong(f"rank {rank} returned {kind(result)}{keys}, expected a shard for each block, by block")
        for block in reversed(range(len(case.blocks))):
            of_block = [g for b, g in zip(case.order, gradients, strict=True) if b == block]
            _check_shard(rank, block, result[block], np.stack(of_block), case)
    need_messages(done)
    alive, unsent = peak_bytes(done.timeline, WHOLE), _most_unsent(done.timeline, case)
    most, cause = max(
        (alive, "a whole gradient is still referenced after it was reduced: by a list, a dict, or a view of a part"),
        (
            unsent,
            "gradients are copied or added up whole, and sent later: send each as it comes, and add up the shards",
        ),
        (
            max(kept),
            "a copy or a sum of whole gradients is there while the next one is made: scale and add up shards alone",
        ),
        key=itemgetter(0),
    )
    return [
        elements_sent(done).check(
            "k·Ψ(P − 1)",
            case.microbatches * sum(case.blocks) * (case.size - 1),
            "an all_reduce gives every rank the whole sum, and each needs its shard only",
        ),
        Count("bytes of whole gradients held", [most]).check(
            "two blocks", ITEMSIZE * two_blocks(case.blocks, case.order), cause
        ),
    ]


def _shard_bytes(case: BlocksCase) -> int:
    """Bytes of a rank's shards of all microbatches, and of two more as long as the longest, as temporary results."""
    shards = [-(-n // case.size) for n in case.blocks]
    return ITEMSIZE * (case.microbatches * sum(shards) + 2 * max(shards))


def _backward(
    comm: Comm, order: Sequence[int], gradients: Sequence[Any], watch: Callable[[int], None]
) -> Iterator[tuple[int, Any]]:
    """(block, this rank's gradient of it) for each block, from the last to the first, in every microbatch.

    `watch` is called with the bytes of each gradient when it is made, and with 0 at the end.
    """

    def made(values: Any) -> Any:
        gradient = values.copy()
        comm.hold(WHOLE, gradient)
        return gradient

    for block, of_ranks in zip(order, gradients, strict=True):
        with comm.compute(f"backward {block}", seconds=BACKWARD):
            pass
        watch(of_ranks[comm.rank].nbytes)
        yield block, made(of_ranks[comm.rank])
    watch(0)


def _check_shard(rank: int, block: int, found: Any, gradients: Any, case: BlocksCase) -> None:
    """Compare a shard with the mean of `gradients` `[k, P, n]`, those of the block in all microbatches on all ranks."""
    k, size, n = gradients.shape
    own = _shard(n, rank, size)
    mean = gradients.mean(axis=(0, 1))
    expected = mean[own]
    if not isinstance(found, np.ndarray):
        raise Wrong(f"rank {rank}, block {block}: {difference(found, expected)}")
    if (found.shape, found.dtype) == (expected.shape, expected.dtype) and _same(found, expected):
        return
    mistakes = {
        "this is the sum: divide by the number of ranks times that of microbatches": k * size * expected,
        "divided by the number of microbatches only, not by that of ranks too": size * expected,
        "divided by the number of ranks only, not by that of microbatches too": k * expected,
        "this is the whole mean gradient: a rank keeps its shard": mean,
        "this rank's own gradient: nothing was summed over ranks": gradients.mean(axis=0)[rank][own],
        "the last microbatch alone: shards of all microbatches add up": gradients[-1].sum(axis=0)[own] / (k * size),
        "the last element of the shard is missing": expected[:-1],
    }
    same = (
        (cause, (found.shape, found.dtype) == (array.shape, array.dtype) and _same(found, array))
        for cause, array in mistakes.items()
    )
    raise Wrong(f"rank {rank}, block {block}: {difference(found, expected)}", *likely(same))


def _most_unsent(timeline: Timeline, case: BlocksCase) -> int:
    """The most bytes of gradients that were made and not yet sent, when one more is made."""
    starts = [[span.start for span in timeline.computes if span.rank == rank] for rank in range(case.size)]
    made, most = 0, 0
    for block, *of_ranks in zip(case.order, *starts, strict=True):
        start = min(of_ranks)
        sent = sum(t.nbytes for t in timeline.transfers if t.end <= start) // (case.size - 1)
        made += ITEMSIZE * case.blocks[block]
        most = max(most, made - sent)
    return most


def _draw_blocks(random: np.random.Generator, size: int) -> BlocksCase:
    blocks = tuple(map(int, random.integers(1, 40, size=random.integers(2, 6))))
    return BlocksCase(size, blocks, int(random.integers(1, 4)))


STAGE_2 = Exercise(
    "06.stage_2",
    "stage_2(comm, backward, microbatches)",
    [
        BlocksCase(*sizes)
        for sizes in (
            (2, (4, 2, 6), 1),
            (2, (5, 3, 4), 3),
            (3, (7, 10, 1, 5), 1),
            (3, (4, 8, 5), 3),
            (4, (9, 20, 20, 6), 2),
            (7, (30, 41, 12, 50, 23), 2),
        )
    ],
    _try_stage_2,
    _draw_blocks,
    on_ranks=True,
    solved_by=("parlab.zero.Zero", "parlab.labs.reduced_at_once"),
)


def _same(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))


EXERCISES = (ZERO_1, STAGE_2)
