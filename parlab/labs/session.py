"""The reviews of this session as a table, and the text of its answers in a file."""

from __future__ import annotations

import html
import inspect
import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from parlab.files import write_whole
from parlab.labs.exercise import NOT_WRITTEN, PASSED, Review

FORMAT = "parlab answers 1"
SYMBOLS = {PASSED: "✓", NOT_WRITTEN: "·"}


class Answers(dict[str, str]):
    """The text of answers, by exercise; drawn as a program that can be pasted into cells."""

    def __repr__(self) -> str:
        return "\n\n".join(f"# {name}\n{text}" for name, text in self.items())


@dataclass(frozen=True)
class Summary:
    """A row for each exercise that was checked: its name, status, cases passed, and all cases."""

    rows: tuple[tuple[str, str, int, int], ...]

    def __repr__(self) -> str:
        lines = [
            f"{SYMBOLS.get(status, '✗')} {name:<28}{status:<18}{passed:>3} of {total} cases"
            for name, status, passed, total in self.rows
        ]
        return "\n".join([*lines, self._total()])

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><td>{SYMBOLS.get(status, '✗')}</td><td>{html.escape(name)}</td><td>{status}</td>"
            f"<td>{passed} of {total}</td></tr>"
            for name, status, passed, total in self.rows
        )
        head = "<tr><th></th><th>exercise</th><th>status</th><th>cases</th></tr>"
        return f"<table>{head}{''.join(cells)}</table><p>{self._total()}</p>"

    def _total(self) -> str:
        return f"{sum(row[1] == PASSED for row in self.rows)} of {len(self.rows)} exercises passed"


_reviews: dict[str, Review] = {}
_texts = Answers()
_reviewed_texts: dict[str, str] = {}  # the text of each exercise's reviewed answer; `_texts` may be from a file


def remember(review: Review, answer: Any) -> None:
    """Keep the last review of an exercise, and the answer's text."""
    _reviews[review.name], text = review, source(answer)
    _reviewed_texts[review.name] = text
    if review.status != NOT_WRITTEN and text:
        _texts[review.name] = text


def last_review(name: str, answer: Any) -> Review | None:
    """The last review of an exercise, if it was about this answer's text."""
    text = source(answer)
    return _reviews[name] if text and _reviewed_texts.get(name) == text else None


def summary(names: Iterable[str]) -> Summary:
    """The reviewed ones of the exercises in `names`, in this order."""
    known = (_reviews[name] for name in names if name in _reviews)
    return Summary(tuple((review.name, review.status, review.passed, review.total) for review in known))


def source(answer: Any, seen: set[Any] | None = None) -> str:
    """The text of a function, after the text of the functions of its module that it calls; "" if it has no text."""
    seen = set() if seen is None else seen
    if not isinstance(answer, FunctionType) or answer in seen:
        return ""
    seen.add(answer)
    beside = [answer.__globals__.get(name) for name in answer.__code__.co_names]
    own = [f for f in beside if isinstance(f, FunctionType) and f.__globals__ is answer.__globals__]
    try:
        texts = [*(source(f, seen) for f in own), textwrap.dedent(inspect.getsource(answer))]
    except (OSError, TypeError):
        return ""
    return "\n\n".join(text.strip() + "\n" for text in texts if text)


def save(path: str = "answers.json") -> None:
    """Write the functions that were last checked into one small file, by exercise; `load` reads it.

    The file gets their text, and that of the functions of the same module that they call. Its answers to other
    exercises stay.

    Raises:
        ValueError: there is a file of this name that holds something else; or nothing was checked yet.
    """
    if not _texts:
        raise ValueError("nothing to save: no answer was checked yet")
    kept = _read(path) if Path(path).exists() else {}
    write_whole(path, json.dumps({"format": FORMAT, "answers": kept | _texts}, indent=1))


def load(path: str = "answers.json") -> Answers:
    """The answers in a file of `save`, by exercise, as text; none of it is run. The next `save` keeps them.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read.
    """
    answers = Answers(_read(path))
    for name, text in answers.items():
        _texts.setdefault(name, text)
    return answers


def _read(path: str) -> dict[str, str]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] == FORMAT and all(type(text) is str for text in content["answers"].values()):
            return content["answers"]
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ValueError(f"path={str(path)!r}: it holds no answers; give a file that `save` wrote, or a new name")
