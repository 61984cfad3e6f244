"""No right answer is refused, in whatever style it is written."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from parlab.labs import EXERCISES
from parlab.labs.recording import library_functions
from tests.labs.answers import SEED
from tests.labs.right_answers import RIGHT

ALL = [(name, answer) for name, answers in RIGHT.items() for answer in answers]


@pytest.mark.parametrize(("name", "answer"), ALL, ids=[f"{name}-{answer.__name__}" for name, answer in ALL])
def test_a_right_answer_passes(name, answer):
    """The first style on every case; the others on the small ones, and one that is drawn."""
    exercise, extra = EXERCISES[name], 2
    if answer is not RIGHT[name][0]:
        exercise, extra = replace(exercise, cases=[case for case in exercise.cases if case.size <= 5]), 1
    review = exercise.review(answer, seconds=30, seed=SEED, extra=extra)
    assert review.status == "passed", review.text
    assert review.passed == review.total >= 1


LESSONS = [json.loads(path.read_text(encoding="utf-8")) for path in Path("notebooks").glob("[0-9]*.ipynb")]
TEXT = "\n".join("".join(cell["source"]) for lesson in LESSONS for cell in lesson["cells"])
STANDS_IN = dict(re.findall(r'labs\.yours\("([\w.]+)", \w+, otherwise=\w+\.(\w+)', TEXT))


@pytest.mark.parametrize("name", STANDS_IN)
def test_an_answer_that_calls_the_librarys_function_which_stands_in_for_it_is_flagged_in_grading(name):
    answer = eval(f"lambda *given: parlab.{STANDS_IN[name]}(*given)", {})
    (flag,) = library_functions(EXERCISES[name], answer)
    assert flag.endswith(f".{STANDS_IN[name]}")
    assert [] in [library_functions(EXERCISES[name], right) for right in RIGHT[name]]


def test_there_are_three_styles_of_each_or_more():
    assert all(len(RIGHT[name]) >= 3 for name in EXERCISES), {name: len(RIGHT[name]) for name in EXERCISES}
