"""Exercises whose answer is a rank program on one array a rank: their cases, and the check of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words, right_and_wrong
from parlab.labs.difference import difference, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.world import Run


@dataclass(frozen=True)
class Case:
    """`size` ranks, each with its own array `x` of this shape and dtype, drawn from `seed`."""

    size: int
    shape: tuple[int, ...]
    dtype: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, x {self.dtype}[{', '.join(map(str, self.shape))}] on each"

    @property
    def elements(self) -> int:
        """Elements of one rank's array."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's array: n in the formulas."""
        return self.elements * self.itemsize

    def inputs(self) -> list[np.ndarray]:
        """Each rank's array: random whole numbers, so that sums are exact in any order."""
        random = np.random.default_rng([self.seed, self.size, *self.shape])
        return list(random.integers(1, 100, size=(self.size, *self.shape)).astype(self.dtype))


Shape = Callable[
    [np.random.Generator, int, int], tuple[int, ...]
]  # of a generator, the number of ranks, the longest axis


def some_shape(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    """A shape of one or two axes, none shorter than half of the longest."""
    return tuple(map(int, random.integers(longest // 2, longest + 1, size=random.integers(1, 3))))


NO_MORE: Mapping[str, Sequence[Any]] = {}
UP_TO_8 = (2, 1, *range(3, 9))  # two ranks come before one: on one rank alone a stub may look like an answer


def on_arrays(
    name: str,
    call: str,
    attempt: Callable[[Trial, Case], list[str]],
    shape: Shape,
    sizes: Sequence[int] = UP_TO_8,
    solved_by: tuple[str, ...] = (),
) -> Exercise:
    """An exercise on arrays of this shape; each of these numbers of ranks gets a small array and a larger one."""

    def draw(random: np.random.Generator, size: int, longest: int = 24) -> Case:
        return Case(size, shape(random, size, longest), str(random.choice(["float64", "float32"])))

    random = np.random.default_rng(0)  # the fixed cases are the same in each session
    cases = [draw(random, size, longest) for size in sizes for longest in (3, 20)]
    return Exercise(name, call, cases, attempt, draw, on_ranks=True, solved_by=solved_by)


def check_results(
    done: Run,
    inputs: list[Any],
    expected: list[Any],
    terms: Sequence[Sequence[Any]] = (),
    tools: tuple[str, ...] = ("send", "recv", "sendrecv"),
    mistakes: Mapping[str, Sequence[Any]] = NO_MORE,
    tolerance: float | None = None,
) -> None:
    """Compare the result of every rank, and see that it came by messages that the answer itself sent.

    Args:
        done: the run.
        inputs: each rank's array.
        expected: each rank's right result; None: any result is right.
        terms: for each rank the terms of its result, if it is a sum over ranks: a missing term is then explained.
        tools: the calls that a refusal names.
        mistakes: mistakes of this exercise, by cause: the result that each rank then has.
        tolerance: relative and absolute; None: the order of a sum is free, see `difference`.

    Raises:
        Wrong: a result is not the expected one (the lowest such rank is named), or no message brought it.
    """

    def differs(result: Any, wanted: Any) -> str:
        return difference(result, wanted, tolerance, tolerance or 0.0)

    differences = list(map(differs, done.results, expected))
    if wrong := [rank for rank, said in enumerate(differences) if said]:
        rank, result = wrong[0], done.results[wrong[0]]
        right = [r for r, wanted in enumerate(expected) if r not in wrong and wanted is not None]
        causes = (
            (cause, (array is None) == (result is None) and not differs(result, array))
            for cause, array in (
                *((cause, arrays[rank]) for cause, arrays in mistakes.items()),
                *_mistakes(rank, inputs, expected, terms),
            )
        )
        raise Wrong(f"rank {rank} {differences[rank]}", *right_and_wrong(right, wrong), *likely(causes))
    need_messages(done)
    for name in sorted({transfer.name for transfer in done.timeline.transfers} - {"message"}):
        build = ", ".join(f"comm.{call}" for call in tools)
        raise Wrong(f"the results are right, but comm.{name} did the work: build it from {build}")


def check_rightwards(done: Run, cause: str) -> None:
    """Raise `Wrong`, with this cause, unless every message goes to the rank on the right."""
    P = done.timeline.size
    for src, dst in sorted({(transfer.src, transfer.dst) for transfer in done.timeline.transfers}):
        if dst != (src + 1) % P:
            raise Wrong(
                f"rank {src} sends to rank {dst}, should be to its right, rank {(src + 1) % P}",
                f"likely cause: {cause}",
            )


def _mistakes(
    rank: int, inputs: list[Any], expected: list[Any], terms: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, Any]]:
    """Well-known mistakes, each with the result that the rank then has."""
    wanted, size = expected[rank], len(expected)
    yield "a path through the program without a return", None
    for other, array in enumerate(expected):
        yield f"this is what rank {other} should return; check which piece ends where", array
    if isinstance(wanted, tuple):
        yield "the two are swapped", wanted[::-1]
        return
    if terms:
        yield "this is the rank's own contribution; nothing was added to it", terms[rank][rank]
        for source, term in enumerate(terms[rank]):
            yield f"rank {source}'s contribution is missing", wanted - term
            yield f"rank {source}'s contribution is counted twice", wanted + term
    yield "this is what the rank started with", inputs[rank]
    yield f"{size} times too much: divide by the number of ranks, once", wanted * size
    yield f"{size} times too little: divided by the number of ranks once too often", wanted / size
