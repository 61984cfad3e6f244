"""No right answer is refused, in whatever style it is written."""

import pytest

from parlab.labs import EXERCISES
from tests.labs.answers import SEED
from tests.labs.right_answers_04b import RIGHT

ALL = [(name, answer) for name, answers in RIGHT.items() for answer in answers]


@pytest.mark.parametrize(("name", "answer"), ALL, ids=[f"{name}-{answer.__name__}" for name, answer in ALL])
def test_a_right_answer_passes(name, answer):
    review = EXERCISES[name].review(answer, seconds=30, seed=SEED, extra=2)
    assert review.status == "passed", review.text
    assert review.passed == review.total


def test_there_are_six_styles_of_each_or_more():
    assert all(len(RIGHT[name]) >= 6 for name in EXERCISES), {name: len(RIGHT[name]) for name in EXERCISES}
