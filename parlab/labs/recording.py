"""Under `parlab grade`, each check of a submission appends its review to a file. The table of marks is made of these.

`parlab.labs.submission` starts the submission's kernel and names the file and the options in its environment.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from parlab.labs import session
from parlab.labs.exercise import FAILED, Exercise, Review

FILE = "PARLAB_REVIEWS"  # a line of JSON is appended for each review
OPTIONS = "PARLAB_REVIEW_OPTIONS"  # JSON: the arguments of `Exercise.review`, the same for all submissions


def begin(namespace: dict[str, Any]) -> None:
    """Prepare the kernel of a submission, whose variables are `namespace`: run before its first cell."""
    seed = json.loads(os.environ[OPTIONS])["seed"] % 2**32
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - students use this generator too
    namespace["exit"] = namespace["quit"] = sys.exit  # IPython's end the kernel; these end the cell
    sys.path.append(os.getcwd())  # for files that were handed in beside it; last, so that none hides a library


def reviewed(exercise: Exercise, answer: Callable[..., Any], seconds: float, seed: int | None) -> Review:
    """Review an answer. Under `parlab grade`, use the options of the grade, and append the review to its file."""
    if FILE not in os.environ:
        return exercise.review(answer, seconds, seed)
    options = json.loads(os.environ[OPTIONS])
    unfinished = f"{exercise.name}: {FAILED}. The review did not come to its end: the answer ended it, or took too long"
    begun = Review(exercise.name, FAILED, unfinished, 0, 1, options["seed"])
    _append(begun, answer, begun=True)  # replaced by the next
    review = exercise.review(answer, **options)
    _append(review, answer, library_functions(exercise, answer))
    return review


def _append(review: Review, answer: Any, flags: Collection[str] = (), begun: bool = False) -> None:
    record = review.as_dict() | {"flags": [*review.flags, *flags], "source": session.source(answer)}
    record |= {"begun": begun, "process": os.getpid()}
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read(file: Path) -> dict[str, dict[str, Any]]:
    """The last review of each exercise: the dict of `Review.as_dict` with the answer's `source`.

    An exercise that one process, which ran all cells, checked several times gets a flag that says so.
    """
    if not file.exists():
        return {}
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    checks = Counter((record.get("process"), record["name"]) for record in records if record.get("begun"))
    last = {record["name"]: record for record in records}
    for name, record in last.items():
        if (times := max((checks[key] for key in checks if key[1] == name), default=0)) > 1:
            record["flags"].append(f"checked {times} times, the last one counts")
    return last


def check_the_rest(namespace: dict[str, Any], exercises: Mapping[str, Exercise]) -> None:
    """Review the answers that no cell has checked: run after the last cell."""
    checked = read(Path(os.environ[FILE]))
    for name, answer in unchecked(namespace, checked, exercises).items():
        reviewed(exercises[name], answer, 0, None)


def unchecked(namespace: dict[str, Any], checked: Collection[str], exercises: Mapping[str, Exercise]) -> dict[str, Any]:
    """The answers that no cell has checked, in the lessons of the `checked` ones; in all lessons if none is checked."""
    lessons = {_lesson(name) for name in checked} or {_lesson(name) for name in exercises}
    answers = {
        name: namespace.get(exercise.call.partition("(")[0])
        for name, exercise in exercises.items()
        if name not in checked and _lesson(name) in lessons
    }
    return {name: answer for name, answer in answers.items() if getattr(answer, "__globals__", None) is namespace}


def _lesson(name: str) -> str:
    return name.partition(".")[0]


def library_functions(exercise: Exercise, answer: Any) -> list[str]:
    """Flags: the functions of parlab that solve the exercise, and that the answer uses."""
    variables = getattr(answer, "__globals__", {})
    names = set(_names(getattr(answer, "__code__", None)))
    for helper in [variables.get(name) for name in names]:
        if isinstance(helper, FunctionType) and helper.__globals__ is variables:
            names |= set(_names(helper.__code__))
    flags = []
    for full_name in exercise.solved_by:
        name = full_name.rpartition(".")[2]
        of_this_name = getattr(variables.get(name), "__module__", None) or "parlab"
        if name in names and of_this_name.startswith("parlab"):
            flags.append(f"uses {full_name}")
    return flags


def _names(code: CodeType | None) -> Iterator[str]:
    """The global names and attributes in a function, and in the functions defined inside it."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names(constant) if isinstance(constant, CodeType) else ()
