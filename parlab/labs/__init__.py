"""Exercises: `check` runs what a learner wrote on many cases and says what is wrong with the smallest that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.labs import collectives, pipeline, ranks, ring, tensor, zero, zero_prefetch
from parlab.labs.exercise import Exercise, Review

ROOMS = (ranks, collectives, ring, pipeline, tensor, zero, zero_prefetch)
EXERCISES = {exercise.name: exercise for room in ROOMS for exercise in room.EXERCISES}


def check(name: str, answer: Callable[..., Any], seconds: float = 10.0, seed: int | None = None) -> None:
    """Run `answer`"""
    if name not in EXERCISES:
        raise ValueError(f"name={name!r}: the exercises are {', '.join(EXERCISES)}")
    print(EXERCISES[name].review(answer, seconds, seed).text)


__all__ = ["EXERCISES", "Exercise", "Review", "check"]
