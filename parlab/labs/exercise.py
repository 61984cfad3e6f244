"""What an exercise is: cases from small to large, and an attempt at each of them until one fails.

The first case that fails is the smallest of those tried, so it is the one worth reading about.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, NOT_WRITTEN = "passed", "not yet", "not written yet"


class Wrong(Exception):  # noqa: N818 - an answer is wrong, the checker is not in error
    """What is wrong with an answer; the arguments are lines of text."""


class NotWritten(Exception):  # noqa: N818
    """The answer is still the stub."""


@dataclass(frozen=True)
class Review:
    """What became of an answer: `status` is "passed", "not yet" or "not written yet", `text` says why."""

    status: str
    text: str


@dataclass(frozen=True)
class Exercise:
    """A task, and how an answer is tried.

    Attributes:
        name: the notebook's number and the task: "01.reduce_scatter".
        cases: from small to large; `str(case)` is shown.
        attempt: tries the answer on a case; returns lines about what was counted, raises `Wrong` or `NotWritten`.
    """

    name: str
    cases: Sequence[Any]
    attempt: Callable[[Callable[..., Any], Any], list[str]]

    def review(self, answer: Callable[..., Any]) -> Review:
        """Try `answer` on every case, up to the first that fails.

        Raises:
            ValueError: `answer` is not a function.
        """
        if not callable(answer):
            raise ValueError(f"answer={answer!r}: must be the function that you wrote")
        for case in self.cases:
            printed = io.StringIO()  # shown for the case that fails only
            try:
                with redirect_stdout(printed):
                    counted = self.attempt(answer, case)
            except NotWritten:
                return Review(NOT_WRITTEN, f"{self.name}: {NOT_WRITTEN}")
            except Wrong as wrong:
                title = f"{self.name}: {FAILED}. It fails with {case}:"
                return Review(FAILED, _indented(title, [*wrong.args, *_quoted(printed.getvalue())]))
        many = f", {len(self.cases)} cases, the largest" if len(self.cases) > 1 else ""
        title = f"{self.name}: {PASSED}{many} with {self.cases[-1]}:"
        return Review(PASSED, _indented(title, counted))


def _quoted(printed: str) -> list[str]:
    return ["what it printed:", printed.rstrip()] if printed else []


def _indented(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *("  " + line.replace("\n", "\n  ") for line in lines)])
