"""No right answer is refused, in whatever style it is written."""

from dataclasses import replace

import pytest

from parlab import labs
from parlab.labs import EXERCISES
from parlab.labs.recording import library_functions
from tests.labs.answers import SEED, reviewed
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


STANDS_IN = {
    "09.buffering": ("borders", lambda *given: labs.borders(*given)),
    "10.balanced": ("balanced", lambda *given: labs.balanced(*given)),
    "10.mean_gradient": ("mean_gradient", lambda *given: labs.mean_gradient(*given)),
}


@pytest.mark.parametrize("name", STANDS_IN)
def test_a_function_that_stands_in_for_an_answer_passes_and_is_flagged_in_grading(name):
    function, answer = STANDS_IN[name]
    assert reviewed(name, answer).status == "passed"
    assert library_functions(EXERCISES[name], answer) == [f"uses parlab.labs.{function}"]
    assert library_functions(EXERCISES[name], RIGHT[name][0]) == []


def test_there_are_three_styles_of_each_or_more():
    assert all(len(RIGHT[name]) >= 3 for name in EXERCISES), {name: len(RIGHT[name]) for name in EXERCISES}
