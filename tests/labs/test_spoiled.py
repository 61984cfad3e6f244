"""The solution of each exercise, spoiled in the same ways, is refused each time."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from parlab.labs import EXERCISES
from parlab.pipeline import Action
from tests.labs import answers

RANKS = [name for name in EXERCISES if "(comm," in EXERCISES[name].call]


def changed(result, change):
    """Every array and number in a result, changed."""
    if isinstance(result, tuple | list) and not isinstance(result, Action):
        return type(result)(changed(item, change) for item in result)
    if isinstance(result, dict):
        return {key: changed(item, change) for key, item in result.items()}
    return change(result) if isinstance(result, np.ndarray | np.floating | float) else result


def entry(x, value):
    x = np.array(x)
    if x.size:
        x.flat[0] = value
    return x if x.ndim else float(x)


ARRAYS = {  # how a result is spoiled, and what the refusal says of it
    "twice as much": (lambda x: 2 * x, ("rank 0", "out: ")),
    "with the other sign": (lambda x: -x, ("rank 0", "out: ")),
    "off by a millionth": (lambda x: x * (1 + 1e-6), ("rank 0", "out: ", "differ")),
    "of another precision": (
        lambda x: np.asarray(x).astype("float16")[()],
        ("float16", "expected"),
    ),
    "as objects": (lambda x: np.asarray(x).astype(object), ("object", "ndarray", "expected")),
    "with an axis more": (lambda x: np.asarray(x)[None], ("expected",)),
    "not a number": (lambda x: entry(x, np.nan), ("nan", "not finite", "NaN", "rank 0")),
    "nearly right in one place": (lambda x: entry(x, 1e3), ("rank 0", "out: ")),
    "as text": (lambda x: str(x), ("returned str", "is a str", "returned 'str'", "expected", "returned tuple")),
}
WHOLE = {
    "None": (lambda result: None, ("returned None", "returned no")),
    "a number": (lambda result: 3, ("returned int", "returned 3", "3 is true, but")),
    "an object": (lambda result: object(), ("returned object", "returned <object")),
    "an empty tuple": (lambda result: (), ("returned tuple", "returned ()", "are not those that were given")),
}


def refused(name, answer, says):
    text = answers.refused(name, answer)
    assert any(part in text for part in says), text
    assert f'hint: labs.hint("{name}", 1)' in text


@pytest.mark.parametrize("spoil", ARRAYS)
@pytest.mark.parametrize("name", [*RANKS, "02.merge"])
def test_a_changed_result_is_refused(name, spoil):
    change, says = ARRAYS[spoil]
    refused(name, lambda *given: changed(answers.SOLUTIONS[name](*given), change), says)


@pytest.mark.parametrize("spoil", WHOLE)
@pytest.mark.parametrize("name", EXERCISES)
def test_another_kind_of_result_is_refused(name, spoil):
    change, says = WHOLE[spoil]
    refused(name, lambda *given: change(answers.SOLUTIONS[name](*given)), says)


def on_last_rank(solution, instead, comm, *given):
    result = solution(comm, *given)
    return instead(result) if comm.rank == comm.size - 1 else result


def beyond(sizes, solution, instead, comm, *given):
    result = solution(comm, *given)
    return instead(result) if comm.size > sizes else result


def double(result):
    return changed(result, lambda x: 2 * x)


def crash(result):
    raise RuntimeError("out of luck")


@pytest.mark.parametrize("name", RANKS)
def test_an_answer_that_is_wrong_on_the_last_rank_is_refused(name):
    refused(name, partial(on_last_rank, answers.SOLUTIONS[name], double), ["rank 1", "rank 2"])


@pytest.mark.parametrize("name", RANKS)
def test_an_answer_that_crashes_on_the_last_rank_is_refused(name):
    refused(name, partial(on_last_rank, answers.SOLUTIONS[name], crash), ["rank 1 raised RuntimeError: out of luck"])


@pytest.mark.parametrize("name", [name for name in RANKS if name != "05.block_step"])  # which is tried on 8 at most
def test_an_answer_that_is_wrong_beyond_8_ranks_is_refused_with_a_seed(name):
    exercise = replace(EXERCISES[name], cases=EXERCISES[name].cases[:1])
    review = exercise.review(partial(beyond, 8, answers.SOLUTIONS[name], double), seed=answers.SEED)
    assert review.status == "not yet"
    assert f"drawn anew (seed={answers.SEED} repeats it)" in review.text


@pytest.mark.parametrize("name", RANKS)
def test_one_message_too_many_is_refused(name):
    def talks(comm, *given):
        comm.sendrecv(np.zeros(1000), comm.right, comm.left)
        return answers.SOLUTIONS[name](comm, *given)

    refused(name, talks, ["not what was counted"])


@pytest.mark.parametrize("name", RANKS)
def test_a_message_that_nobody_takes_is_refused(name):
    def forgets(comm, *given):
        comm.isend(np.zeros(1), comm.right)
        return answers.SOLUTIONS[name](comm, *given)

    text = answers.refused(name, forgets)
    assert "rank 0" in text


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_with_other_parameters_is_refused_with_the_call(name):
    refused(name, lambda: 1, [f"it is called as {EXERCISES[name].call}"])


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_that_raises_is_refused_with_its_line(name):
    def careless(*given):
        return answers.SOLUTIONS[name](*given)[99].nothing

    refused(name, careless, ["of careless: return answers.SOLUTIONS[name](*given)[99].nothing"])


@pytest.mark.parametrize("step", [0, "0", 1.5])
def test_a_rule_with_odd_steps_is_refused(step):
    def rule(*given):
        queries, keys, causal = answers.zigzag_tile(*given)
        return slice(queries.start, queries.stop, step), keys, causal

    refused("02.zigzag_tile", rule, ["slice"])


NUMBERS = {
    "one more": lambda x: x + 1,
    "one less": lambda x: x - 1,
    "negative": lambda x: -x - 1,
    "as text": lambda x: str(x),
    "and a half": lambda x: x + 0.5,
    "as a truth": lambda x: bool(x),
}


@pytest.mark.parametrize("spoil", NUMBERS)
@pytest.mark.parametrize("name", ["00.to_blame", "03.heads", "03.hops"])
def test_changed_whole_numbers_are_refused(name, spoil):
    def spoiled(*given):
        return every(answers.SOLUTIONS[name](*given))

    def every(found):
        return NUMBERS[spoil](found) if isinstance(found, int) else [every(item) for item in found]

    refused(name, spoiled, ["expected"])
