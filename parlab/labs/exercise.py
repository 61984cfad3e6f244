"""What an exercise is: cases from small to large, some of them drawn anew, and an attempt at each until one fails.

The first case that fails is the smallest of those tried, so it is the one worth reading about.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parlab.labs.trial import NoMessages, NotWritten, Trial, Wrong, unfit

PASSED, FAILED, NOT_WRITTEN = "passed", "not yet", "not written yet"
DRAWN = 4  # cases drawn anew in each review
SIZES = ((2, 5), (5, 8), (8, 11), (11, 14))  # ranks of the drawn cases, from small to large


@dataclass(frozen=True)
class Review:
    """What became of an answer.

    Attributes:
        name: the exercise.
        status: "passed", "not yet" or "not written yet".
        text: why, as `check` prints it.
        passed, total: cases that passed before the first that failed, and all cases.
        seed: what the cases drawn anew are drawn from; the same seed draws the same.
        flags: what a marker should look at: "no messages".
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
    """A task, and how an answer is tried.

    Attributes:
        name: the notebook's number and the task: "01.reduce_scatter".
        call: how the answer is called, as it is shown: "reduce_scatter(comm, x)".
        cases: from small to large; `str(case)` is shown.
        attempt: tries an answer on a case; returns lines about what was counted, raises `Wrong` or `NotWritten`.
        draw: one more case, from a generator, for so many ranks; None: there is no other. Without its `seed`.
        on_ranks: the answer is a rank program, and with two ranks or more needs messages.
        solved_by: names in parlab that are the solution; an answer that uses one is flagged when it is marked.
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
            answer: what the learner wrote.
            seconds: how long it may run on a case.
            seed: of the cases drawn anew; None: a new one.
            extra: how many are drawn.
        """
        seed = secrets.randbelow(10**6) if seed is None else seed
        cases = [*self.cases, *self._drawn(seed, extra)]
        falsified = {self._on_ranks(self.cases), self._on_ranks(cases, len(self.cases))}
        counted: list[str] = []
        for number, case in enumerate(cases):
            trial = Trial(answer, self.call, seconds)
            try:
                if number == 0 and (refusal := unfit(answer)):
                    raise refusal
                lines = self.attempt(trial, case)
                if number in falsified:
                    self._falsified(answer, case, seconds)
            except Exception as error:
                if type(error) is NotWritten and number == 0:
                    return Review(self.name, NOT_WRITTEN, f"{self.name}: {NOT_WRITTEN}", 0, len(cases), seed)
                drawn = f", drawn anew (seed={seed} repeats it)" if number >= len(self.cases) else ""
                title = f"{self.name}: {FAILED}. It fails with {case}{drawn}:"
                known = isinstance(error, Wrong)
                said = error.args if known else [f"what it returned cannot be compared: {error!r:.300}"]
                text = _indented(title, [*said, *trial.printed.quoted(), f'hint: labs.hint("{self.name}", 1)'])
                flags = ("no messages",) if isinstance(error, NoMessages) else ()
                return Review(self.name, FAILED, text, number, len(cases), seed, flags)
            counted = lines if number < len(self.cases) else counted
        many = f", {len(self.cases)} cases and {extra} drawn anew" if self.draw else ""
        text = _indented(f"{self.name}: {PASSED}{many}. With {self.cases[-1]}:", counted)
        return Review(self.name, PASSED, text, len(cases), len(cases), seed)

    def _drawn(self, seed: int, extra: int) -> list[Any]:
        if self.draw is None:
            return []
        random = np.random.default_rng(seed)
        sizes = (int(random.integers(*SIZES[len(SIZES) * k // extra])) for k in range(extra))
        cases = (self.draw(random, size) for size in sizes)
        return [replace(case, seed=int(random.integers(1, 10**6))) if hasattr(case, "seed") else case for case in cases]

    def _on_ranks(self, cases: Sequence[Any], start: int = 0) -> int | None:
        """The first case, from `start` on, whose ranks need messages."""
        several = [number for number, case in enumerate(cases) if number >= start and case.size > 1]
        return several[0] if self.on_ranks and several else None

    def _falsified(self, answer: Callable[..., Any], case: Any, seconds: float) -> None:
        """Raise `NoMessages` if `answer` passes though every message is falsified."""
        try:
            self.attempt(Trial(answer, self.call, min(seconds, 2.0), falsify=True), case)
        except Exception:
            return
        raise NoMessages("they stay right when every number is changed on its way")


def _indented(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *("  " + line.replace("\n", "\n  ") for line in lines)])
