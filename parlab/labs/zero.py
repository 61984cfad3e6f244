"""The exercise of notebook 06 on shards: a step of ZeRO stage 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parlab.labs.counts import (
    ITEMSIZE,
    Count,
    elements_sent,
    peak_bytes,
    ranks_in_words,
    right_and_wrong,
)
from parlab.labs.difference import apart, difference
from parlab.labs.exercise import Exercise
from parlab.labs.memory import bytes_held
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains, need_messages
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, Run, Timeline
from parlab.zero import shard_range

TOLERANCE = 1e-12  # of an entry, or of 1
MOMENTS = "moments"


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
        "updated with this rank's own gradient: nothing was summed": updated(gradients[rank], *moments),
        "each owner updated with its own gradient: nothing was summed": np.concatenate(
            [updated(own, *moments)[_shard(before.size, owner, size)] for owner, own in enumerate(gradients)]
        ),
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
    solved_by=("parlab.zero.zero_1", "parlab.zero.Zero"),
)


def _same(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))


EXERCISES = (ZERO_1,)
