"""One submission, marked in a process of its own: `python -P -m parlab.labs.submission FILE RESULT OPTIONS`.

Every cell runs, errors or not; what its checks ask for is reviewed after it, by a checker that is as it was before.
What is known so far is in the file RESULT after each step: whatever ends this process, the rest is marked.
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from parlab import labs
from parlab.labs import work
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial, Wrong

CELL = 3  # a cell may take so many times as long as a case
SOLUTION = re.compile(r"solutions\b|parlab\.labs\.(?!pipeline import listing)|from parlab\.labs import (?!check)")


def mark(path: Path, report: Callable[[dict[str, Any]], None], seconds: float, seed: int, extra: int) -> None:
    """Run and review the submission at `path`; `report` gets what is known after each step."""
    known: dict[str, Any] = {"reviews": {}, "errors": [], "flags": [], "done": False}
    asked: dict[str, Any] = {}

    def ask(name: str, answer: Any, *rest: Any, **options: Any) -> float:
        asked[name] = answer
        return 0.0

    labs.check = labs.require = labs.score = ask  # type: ignore[assignment]
    checker = Checker()
    notebook = ModuleType("__main__")
    sys.modules["__main__"] = notebook
    report(known)
    for number, text in enumerate(cells(path), start=1):
        if SOLUTION.search(text):
            known["flags"].append(f"cell {number} reads a solution or the checker")
        if error := _ran(f"cell {number}", text, notebook.__dict__, CELL * seconds):
            known["errors"].append(f"cell {number}: {error}")
        known["flags"] += [f"patched checker: {name}" for name in checker.restore()]
        for name in list(asked):
            _review(name, asked.pop(name), known, seconds, seed, extra)
            known["flags"] += [f"patched checker: {name}" for name in checker.restore()]
            report(known)
    for name, exercise in labs.EXERCISES.items():  # whose check was deleted
        answer = notebook.__dict__.get(exercise.call.partition("(")[0])
        if name not in known["reviews"] and getattr(answer, "__globals__", None) is notebook.__dict__:
            _review(name, answer, known, seconds, seed, extra)
            report(known)
    report(known | {"done": True})


def cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell; of a program, all of it.

    Raises:
        Wrong: it is no notebook.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix != ".ipynb":
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
        ast.parse(text)
    except SyntaxError:  # IPython's own lines, perhaps
        text = re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.MULTILINE)
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # the text of functions, and of errors

    def cell() -> None:
        exec(compile(text, name, "exec"), namespace)

    try:
        Trial(cell, seconds).called(name)
    except Wrong as wrong:
        return "\n".join(wrong.args).removeprefix("it ")
    return ""


def _review(name: str, answer: Any, known: dict[str, Any], seconds: float, seed: int, extra: int) -> None:
    if name not in labs.EXERCISES:
        known["errors"].append(f"there is no exercise {name!r:.60}")
        return
    exercise = labs.EXERCISES[name]
    review = exercise.review(answer, seconds, seed, extra)
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
        self.exercises = dict(labs.EXERCISES)

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
        if self.exercises != labs.EXERCISES:
            changed.append("parlab.labs.EXERCISES")
            labs.EXERCISES.clear()
            labs.EXERCISES.update(self.exercises)
        return changed


def _ours(kind: type) -> bool:
    return kind.__module__.startswith("parlab")


def main() -> None:
    """As a process of its own; what the submission can see of its arguments is its own file."""
    path, result, options = Path(sys.argv[1]), Path(sys.argv[2]).absolute(), json.loads(sys.argv[3])
    sys.argv[1:] = []
    sys.path.append(str(path.parent))  # for files that were handed in with it; last, so that none hides a library

    def report(known: dict[str, Any]) -> None:
        work.write(result, json.dumps(known))

    try:
        mark(path, report, **options)
    except Wrong as wrong:
        report({"reviews": {}, "errors": list(wrong.args), "flags": [], "done": True})


if __name__ == "__main__":
    main()
