"""One submission, marked in a process of its own: `python -P -m parlab.labs.submission FILE RESULT OPTIONS`.

Every cell runs, errors or not; what its checks ask for is reviewed after it, by a checker that is as it was before.
What is known so far is in the file RESULT before each step: if one ends this process, the next leaves that one out.
"""

from __future__ import annotations

import json
import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from parlab import labs
from parlab.files import write_whole
from parlab.labs import work
from parlab.labs.exercise import FAILED, Exercise, Review
from parlab.labs.trial import Trial, Wrong

CELL = 3  # a cell may take so many times as long as a case
SOLUTION = re.compile(
    r"solutions\b|EXERCISES|parlab\.labs\.(?!pipeline import listing)|from parlab\.labs import (?!check)"
)


def mark(path: Path, report: Callable[[dict[str, Any]], None], skip: dict[str, str], **limits: Any) -> None:
    """Run and review the submission at `path`; `report` gets what is known before each step, and `at` which it is.

    Cells and exercises in `skip` are left out, for the reason given. `limits` are those of `Exercise.review`.
    """
    known: dict[str, Any] = {"reviews": {}, "errors": [], "flags": [], "done": False}
    asked: dict[str, Any] = {}

    def ask(name: str, answer: Any, *rest: Any, **options: Any) -> float:
        asked[name] = answer
        return 0.0

    labs.check = labs.require = labs.score = ask  # type: ignore[assignment]
    checker = Checker()
    notebook = ModuleType("__main__")
    sys.modules["__main__"] = notebook

    def review(name: str, answer: Any) -> None:
        report(known | {"at": name})
        _review(name, answer, known, skip, limits)
        known["flags"] += [f"patched checker: {part}" for part in checker.restore()]

    for number, text in enumerate(cells(path), start=1):
        cell = f"cell {number}"
        report(known | {"at": cell})
        if SOLUTION.search(text):
            known["flags"].append(f"{cell} names a solution or the checker")
        if error := skip.get(cell) or _ran(cell, text, notebook.__dict__, CELL * limits["seconds"]):
            known["errors"].append(f"{cell}: {error}")
        known["flags"] += [f"patched checker: {part}" for part in checker.restore()]
        for name in list(asked):
            review(name, asked.pop(name))
    for name, answer in unchecked(notebook.__dict__, known["reviews"]).items():
        review(name, answer)
    report(known | {"done": True})


def unchecked(namespace: dict[str, Any], checked: Collection[str]) -> dict[str, Any]:
    """Answers whose check was deleted: of the lessons of which some are `checked`; if none are, of any."""
    lessons = {_lesson(name) for name in checked} or {_lesson(name) for name in labs.EXERCISES}
    answers = {
        name: namespace.get(exercise.call.partition("(")[0])
        for name, exercise in labs.EXERCISES.items()
        if name not in checked and _lesson(name) in lessons
    }
    return {name: answer for name, answer in answers.items() if getattr(answer, "__globals__", None) is namespace}


def _lesson(name: str) -> str:
    return name.partition(".")[0]


def cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell; of a program, all of it.

    Raises:
        Wrong: it is no notebook.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix.lower() != ".ipynb":
        return [text]
    if not text.strip():
        return []
    try:
        of_code = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [source if isinstance(source, str) else "".join(source) for source in of_code]
    except (ValueError, TypeError, KeyError) as error:
        raise Wrong(f"it is not a notebook: {type(error).__name__}: {error}") from None


def _ran(name: str, text: str, namespace: dict[str, Any], seconds: float) -> str:
    """Run a cell; what went wrong."""
    try:
        code = compile(text, name, "exec")
    except SyntaxError:  # IPython's own lines, perhaps
        text = re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.MULTILINE)
        try:
            code = compile(text, name, "exec")
        except SyntaxError as error:
            return f"SyntaxError: {error}"
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # the text of functions, and of errors
    try:
        Trial(partial(exec, code, namespace), name, seconds).called()
    except Wrong as wrong:
        return "\n".join(wrong.args).removeprefix("it ")
    return ""


def _review(name: str, answer: Any, known: dict[str, Any], skip: dict[str, str], limits: dict[str, Any]) -> None:
    if name not in labs.EXERCISES:
        known["errors"].append(f"there is no exercise {name!r:.60}")
        return
    exercise = labs.EXERCISES[name]
    if name in skip:
        review = Review(name, FAILED, f"{name}: {FAILED}. {skip[name]}", 0, 1, limits["seed"])
    else:
        review = exercise.review(answer, **limits)
    known["reviews"][name] = review.as_dict() | {"source": work.source(answer)}
    known["flags"] += [f"{name}: {flag}" for flag in (*review.flags, *_library(exercise, answer))]


def _library(exercise: Exercise, answer: Any) -> Iterator[str]:
    """The library's own solutions that an answer uses."""
    names = set(_names(getattr(answer, "__code__", None)))
    for helper in [getattr(answer, "__globals__", {}).get(name) for name in names]:
        if isinstance(helper, FunctionType) and helper.__globals__ is answer.__globals__:
            names |= set(_names(helper.__code__))
    for full in exercise.solved_by:
        own = getattr(answer, "__globals__", {}).get(full.rpartition(".")[2])
        if full.rpartition(".")[2] in names and getattr(own, "__module__", "parlab").startswith("parlab"):
            yield f"uses {full}"


def _names(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names(constant) if isinstance(constant, CodeType) else ()


class Checker:
    """What the checker is made of, to be put back where a submission has changed it."""

    def __init__(self) -> None:
        modules = [module for name, module in sys.modules.items() if name.split(".")[0] in ("parlab", "numpy")]
        owners: list[Any] = [
            *modules,
            *{c for m in modules for c in vars(m).values() if isinstance(c, type) and _ours(c)},
        ]
        self.parts = [
            (owner, name, part, getattr(part, "__code__", None))
            for owner in owners
            for name, part in list(vars(owner).items())
            if callable(part) or isinstance(part, property | classmethod | staticmethod)
        ]
        self.exercises = {name: _parts(exercise) for name, exercise in labs.EXERCISES.items()}

    def restore(self) -> list[str]:
        """Put everything back; the names of what was changed."""
        changed = []
        for owner, name, part, code in self.parts:
            if vars(owner).get(name) is not part:
                changed.append(f"{owner.__name__}.{name}")
                setattr(owner, name, part)
            if code is not None and part.__code__ is not code:
                changed.append(f"{owner.__name__}.{name}")
                part.__code__ = code
        for name, parts in self.exercises.items():
            if name not in labs.EXERCISES or _parts(labs.EXERCISES[name]) != parts:
                changed.append(f"the exercise {name}")
                labs.EXERCISES[name] = Exercise(**parts)
        return changed


def _parts(exercise: Exercise) -> dict[str, Any]:
    return vars(exercise) | {"cases": tuple(exercise.cases)}


def _ours(kind: type) -> bool:
    return kind.__module__.startswith("parlab")


def main() -> None:
    """As a process of its own; what the submission can see of its arguments is its own file."""
    path, result, options = Path(sys.argv[1]), Path(sys.argv[2]).absolute(), json.loads(sys.argv[3])
    sys.argv[1:] = []
    sys.path.append(str(path.parent))  # for files that were handed in with it; last, so that none hides a library

    def report(known: dict[str, Any]) -> None:
        write_whole(result, json.dumps(known))

    try:
        mark(path, report, **options)
    except Wrong as wrong:
        report({"reviews": {}, "errors": list(wrong.args), "flags": [], "done": True})


if __name__ == "__main__":
    main()
