"""Exercises: `check` runs what a learner wrote on many cases and says what is wrong with the smallest that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.labs import collectives, pipeline, ranks, ring, tensor, zero, zero_prefetch
from parlab.labs.exercise import Exercise, Review

ROOMS = (ranks, collectives, ring, pipeline, tensor, zero, zero_prefetch)
EXERCISES = {exercise.name: exercise for room in ROOMS for exercise in room.EXERCISES}


def check(name: str, answer: Callable[..., Any]) -> None:
    """Run `answer` on many cases, compare its results and what it sent, and print what came of it.

    Args:
        name: the exercise, such as "01.reduce_scatter".
        answer: the function that you wrote.

    Raises:
        ValueError: an unknown exercise, or `answer` is not a function.

    >>> def reduce_scatter(comm, x):
    ...     raise NotImplementedError
    >>> check("01.reduce_scatter", reduce_scatter)
    01.reduce_scatter: not written yet
    """
    if name not in EXERCISES:
        raise ValueError(f"name={name!r}: the exercises are {', '.join(EXERCISES)}")
    print(EXERCISES[name].review(answer).text)


__all__ = ["EXERCISES", "Exercise", "Review", "check"]
