"""An exercise: cases from small to large, some of them drawn anew, which are tried in turn until one fails.

The first case that fails is the smallest of those tried, so the learner reads about that one.

Invariant: a review raises nothing but the user's own Ctrl-C, ends each trial by its time limit, and leaves the exercise
as it was. The seed decides the drawn cases, so a failure can be repeated.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parlab.labs.explained import check_callable
from parlab.labs.trial import Trial
from parlab.labs.wrong import NoMessages, NotWritten, Wrong

PASSED, FAILED, NOT_WRITTEN = "passed", "not yet", "not written yet"
DRAWN = 4  # cases drawn anew in each review
SIZES = ((2, 5), (5, 8), (8, 11), (11, 14))  # ranks of the drawn cases, from small to large


@dataclass(frozen=True)
class Review:
    """The outcome for an answer.

    Attributes:
        name: the exercise.
        status: "passed", "not yet" or "not written yet".
        text: the reason, as `check` prints it.
        passed, total: the number of cases that passed before the first that failed, and of all cases.
        seed: the seed of the drawn cases.
        flags: hints for the marker: "no messages".
    """

    name: str
    status: str
    text: str
    passed: int
    total: int
    seed: int
    flags: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The attributes, for a table or a file."""
        return asdict(self)


@dataclass(frozen=True)
class Exercise:
    """A task, and the way in which an answer is tried.

    Attributes:
        name: the notebook's number and the task: "01.reduce_scatter".
        call: the call of the answer, as it is shown: "reduce_scatter(comm, x)".
        cases: from small to large; `str(case)` is shown.
        attempt: tries an answer on a case; returns lines about what was counted, raises `Wrong` or `NotWritten`.
        draw: makes one more case, from a generator and a number of ranks (`review` sets its seed); None: there is none.
        on_ranks: the answer is a rank program, which needs messages with two ranks or more.
        solved_by: names in parlab that solve the exercise; `parlab grade` flags an answer that uses one.
    """

    name: str
    call: str
    cases: Sequence[Any]
    attempt: Callable[[Trial, Any], list[str]]
    draw: Callable[[np.random.Generator, int], Any] | None = None
    on_ranks: bool = False
    solved_by: tuple[str, ...] = ()

    def review(
        self, answer: Callable[..., Any], seconds: float = 10.0, seed: int | None = None, extra: int = DRAWN
    ) -> Review:
        """Try `answer` on every case, up to the first that fails. Raises nothing but the user's own Ctrl-C.

        Args:
            answer: the learner's function.
            seconds: the time that it may take on a case.
            seed: the drawn cases are drawn from it; None: from a new one.
            extra: the number of drawn cases.
        """
        seed = secrets.randbelow(10**6) if seed is None else seed
        cases = [*self.cases, *self._drawn(seed, extra)]
        # Two cases are tried a second time, with every number changed on its way: the smallest, and the smallest drawn
        falsified = {self._first_with_messages(cases, 0), self._first_with_messages(cases, len(self.cases))}
        counted: list[str] = []
        for number, case in enumerate(cases):
            trial = Trial(answer, self.call, seconds)
            try:
                if number == 0:
                    check_callable(answer)
                lines = self.attempt(trial, case)
                if number in falsified:
                    self._need_true_messages(answer, case, seconds)
            except Exception as error:
                return self._failed(error, trial, cases, number, seed)
            counted = lines if number < len(self.cases) else counted
        drawn = f", {len(self.cases)} cases and {extra} drawn anew" if self.draw else ""
        text = _indented(f"{self.name}: {PASSED}{drawn}. With {self.cases[-1]}:", counted)
        return Review(self.name, PASSED, text, len(cases), len(cases), seed)

    def _failed(self, error: Exception, trial: Trial, cases: Sequence[Any], number: int, seed: int) -> Review:
        """The review of an answer that raised `error` on the case of this number."""
        if type(error) is NotWritten and number == 0:
            return Review(self.name, NOT_WRITTEN, f"{self.name}: {NOT_WRITTEN}", 0, len(cases), seed)
        drawn = f", drawn anew (seed={seed} repeats it)" if number >= len(self.cases) else ""
        title = f"{self.name}: {FAILED}. It fails with {cases[number]}{drawn}:"
        unknown = f"its result cannot be compared: {error!r:.300}"
        said = error.args if isinstance(error, Wrong) else [unknown]
        text = _indented(title, [*said, *trial.printed.quoted(), f'hint: labs.hint("{self.name}", 1)'])
        flags = ("no messages",) if isinstance(error, NoMessages) else ()
        return Review(self.name, FAILED, text, number, len(cases), seed, flags)

    def _drawn(self, seed: int, extra: int) -> list[Any]:
        if self.draw is None:
            return []
        random = np.random.default_rng(seed)
        sizes = (int(random.integers(*SIZES[len(SIZES) * k // extra])) for k in range(extra))
        cases = (self.draw(random, size) for size in sizes)
        return [replace(case, seed=int(random.integers(1, 10**6))) if hasattr(case, "seed") else case for case in cases]

    def _first_with_messages(self, cases: Sequence[Any], start: int) -> int | None:
        """The number of the first case, from `start` on, whose ranks need messages."""
        several = (number for number, case in enumerate(cases) if number >= start and case.size > 1)
        return next(several, None) if self.on_ranks else None

    def _need_true_messages(self, answer: Callable[..., Any], case: Any, seconds: float) -> None:
        """Raise `NoMessages` if `answer` passes even when every number that is sent is changed."""
        try:
            self.attempt(Trial(answer, self.call, min(seconds, 2.0), falsify=True), case)
        except Exception:
            return
        raise NoMessages("they stay right when every number is changed on its way")


def _indented(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *("  " + line.replace("\n", "\n  ") for line in lines)])
