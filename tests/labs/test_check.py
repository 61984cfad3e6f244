"""What all exercises share: stubs, names, and text that never changes."""

import numpy as np
import pytest

from parlab import labs
from parlab.labs.difference import difference
from tests.labs.answers import nothing, raises


@pytest.mark.parametrize("name", labs.EXERCISES)
@pytest.mark.parametrize("stub", [raises, nothing])
def test_a_stub_is_not_written_yet(name, stub, capsys):
    labs.check(name, stub)
    assert capsys.readouterr().out == f"{name}: not written yet\n"


STARTS_BARE = "05.block_step"  # the learner is given a program that sends nothing: that is its stub


@pytest.mark.parametrize("name", [name for name in labs.EXERCISES if name != STARTS_BARE])
def test_an_answer_that_returns_its_argument_is_refused(name, capsys):
    labs.check(name, lambda comm, x, *more: x)
    smallest = labs.EXERCISES[name].cases[0]
    assert smallest.size == (3 if name == "04.faster" else 2)
    assert capsys.readouterr().out.startswith(f"{name}: not yet. It fails with {smallest}")


def test_an_unknown_exercise_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"name='02.rings': the exercises are 00.exchange, .*, 01.reduce_scatter"):
        labs.check("02.rings", raises)


def test_an_answer_that_is_no_function_is_refused(capsys):
    labs.check("00.exchange", 3)
    assert "answer=3: must be the function that you wrote" in capsys.readouterr().out


def test_the_ranks_of_the_cases_grow():
    for exercise in labs.EXERCISES.values():
        if exercise.name == "04.faster":  # one puzzle, which is solved by hand
            continue
        sizes = [case.size for case in exercise.cases if case.size > 1]
        assert sizes == sorted(sizes), exercise.name
        assert 2 in sizes
        assert max(sizes) >= 7


def test_an_answer_gets_the_same_text_each_time():
    def exchange(comm, x):
        comm.send(x, comm.right)

    texts = {labs.EXERCISES["00.exchange"].review(exchange).text for _ in range(10)}
    assert len(texts) == 1


def test_what_an_answer_prints_is_shown_for_the_case_that_fails_only(capsys):
    def exchange(comm, x):
        comm.print(f"{comm.size} ranks")
        from_left = comm.sendrecv(x, comm.right, comm.left)
        from_right = comm.sendrecv(x, comm.left, comm.right)
        return (from_left, from_right) if comm.size < 4 else (x, x)

    labs.check("00.exchange", exchange)
    printed = "".join(f"  rank {rank}: 4 ranks\n" for rank in range(4))
    assert f"what it printed:\n{printed}  hint: " in capsys.readouterr().out


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", [(3,), (4, 5)])
def test_a_result_is_equal_to_16_units_of_rounding_and_different_beyond(shape, dtype, off):
    expected = np.full(shape, 3.0, dtype)
    assert difference(expected * (1 + 8 * np.finfo(dtype).eps), expected) == ""
    assert "expected" in difference((expected * (1 + off)).astype(dtype), expected)
