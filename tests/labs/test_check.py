"""What all exercises share: stubs, names, and text that never changes."""

import inspect
import re
import signal

import numpy as np
import pytest

from parlab import labs
from parlab.labs import session
from parlab.labs.counts import Count
from parlab.labs.difference import difference
from parlab.labs.wrong import Wrong
from parlab.world.units import format_time
from tests.labs import answers
from tests.labs.answers import nothing, raises


@pytest.mark.parametrize("name", labs.EXERCISES)
@pytest.mark.parametrize("stub", [raises, nothing])
def test_a_stub_is_not_written_yet(name, stub, capsys):
    labs.check(name, stub)
    assert capsys.readouterr().out == f"{name}: not written yet\n"


DIAGNOSES = ("07.find_bug",)  # all cases have the same ranks, and another bug
FROM_3 = ("09.fit",)  # 3 ranks come first: on 2 the factors 2(P − 1) and 2 are the same, and no cause can be told


@pytest.mark.parametrize("name", labs.EXERCISES)
def test_an_answer_that_returns_its_argument_is_refused(name, capsys):
    labs.check(name, lambda comm, x, *more: x)
    smallest = labs.EXERCISES[name].cases[0]
    assert smallest.size == (3 if name in FROM_3 else 1 if name in DIAGNOSES else 2)
    assert capsys.readouterr().out.startswith(f"{name}: not yet. It fails with {smallest}")


def test_behind_each_file_of_exercises_stand_its_lesson_and_all_its_exercises():
    listed = re.findall(r"^    (\w+),  # (\w+): (.*)$", inspect.getsource(labs), re.MULTILINE)
    in_files = [
        (file.__name__.rpartition(".")[2], [one.name for one in file.EXERCISES]) for file in labs.EXERCISE_FILES
    ]
    assert [(file, [f"{lesson}.{one}" for one in names.split(", ")]) for file, lesson, names in listed] == in_files


def test_the_ranks_of_the_cases_grow():
    for exercise in labs.EXERCISES.values():
        if exercise.name in DIAGNOSES:
            continue
        sizes = [case.size for case in exercise.cases if case.size > 1]
        first = exercise.name in FROM_3
        assert sizes[first:] == sorted(sizes[first:]), exercise.name
        assert 2 in sizes
        assert max(sizes) >= 7


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


def test_the_users_own_ctrl_c_passes_through():
    def slow(comm, x):
        signal.raise_signal(signal.SIGINT)  # reaches the main thread, as a key does
        while True:
            pass

    with pytest.raises(KeyboardInterrupt):
        labs.EXERCISES["00.exchange"].review(slow)


def test_a_seed_repeats_what_was_drawn_anew():
    def late(comm, x):
        return answers.exchange(comm, x) if comm.size < 9 else (x, x)

    exercise = labs.EXERCISES["00.exchange"]
    first = exercise.review(late)
    assert f"drawn anew (seed={first.seed} repeats it)" in first.text
    assert exercise.review(late, seed=first.seed) == first
    assert len({exercise.review(late).seed for _ in range(5)}) > 1


def test_the_4_drawn_cases_have_2_to_4_then_5_to_7_8_to_10_and_11_to_13_ranks():
    exercise = labs.EXERCISES["00.exchange"]
    drawn = [[case.size for case in exercise._drawn(seed, extra=4)] for seed in range(50)]
    assert [sorted(set(sizes)) for sizes in zip(*drawn, strict=True)] == [
        [2, 3, 4],
        [5, 6, 7],
        [8, 9, 10],
        [11, 12, 13],
    ]


def test_a_review_is_data():
    assert labs.EXERCISES["00.exchange"].review(raises, seed=3).as_dict() == {
        "name": "00.exchange",
        "status": "not written yet",
        "text": "00.exchange: not written yet",
        "passed": 0,
        "total": 18,
        "seed": 3,
        "flags": (),
    }


def test_require_raises_what_check_prints(capsys):
    labs.require("00.exchange", answers.exchange)
    assert capsys.readouterr().out.startswith("00.exchange: passed")
    with pytest.raises(AssertionError, match=r"^00.exchange: not yet. It fails with 2 ranks"):
        labs.require("00.exchange", lambda comm, x: x)
    with pytest.raises(AssertionError, match=r"^00.exchange: not written yet$"):
        labs.require("00.exchange", raises)


def test_score_is_the_share_of_the_cases_before_the_first_that_fails():
    def for_two(comm, x):
        return answers.exchange(comm, x) if comm.size == 2 else (x, x)

    assert labs.score("00.exchange", answers.exchange, points=3) == 3
    assert labs.score("00.exchange", for_two, points=9) == 9 * 2 / 18
    assert labs.score("00.exchange", raises) == 0


def test_summary_is_a_table_of_what_was_checked(monkeypatch):
    monkeypatch.setattr(session, "_reviews", {})
    labs.check("01.reduce_scatter", raises)
    labs.check("00.exchange", lambda comm, x: x, seed=1)
    labs.check("00.exchange", answers.exchange, seed=1)
    table = labs.summary()
    assert repr(table).splitlines() == [
        "✓ 00.exchange                 passed             18 of 18 cases",
        "· 01.reduce_scatter           not written yet     0 of 20 cases",
        "1 of 2 exercises passed",
    ]
    assert "<td>00.exchange</td><td>passed</td><td>18 of 18</td>" in table._repr_html_()


def helper(x):
    return 2 * x


def twice(comm, x):
    return helper(x)


def test_answers_are_saved_with_their_helpers_and_come_back(tmp_path, monkeypatch):
    path = tmp_path / "answers.json"
    monkeypatch.setattr(session, "_texts", session.Answers())
    with pytest.raises(ValueError, match="nothing to save"):
        labs.save(path)
    labs.check("00.exchange", twice)
    labs.check("01.reduce_scatter", raises)  # a stub is no answer
    labs.save(path)
    monkeypatch.setattr(session, "_texts", session.Answers())
    labs.check("00.to_blame", answers.blamed)
    labs.save(path)
    monkeypatch.setattr(session, "_texts", session.Answers())
    loaded = labs.load(path)
    assert list(loaded) == ["00.exchange", "00.to_blame"]
    assert loaded["00.exchange"] == inspect.getsource(helper) + "\n\n" + inspect.getsource(twice)
    assert repr(loaded).startswith("# 00.exchange\ndef helper(x):")
    labs.save(tmp_path / "again.json")
    assert labs.load(tmp_path / "again.json") == loaded
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["again.json", "answers.json"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"format": "parlab answers 1"}', '{"format": 1, "answers": {}}', "\0"]
)
def test_a_file_of_something_else_is_neither_read_nor_overwritten(text, tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_text(text)
    labs.check("00.exchange", twice)
    for use in (labs.load, labs.save):
        with pytest.raises(ValueError, match=r"thesis.txt'?: it holds no answers"):
            use(path)
    assert path.read_text() == text


@pytest.mark.parametrize("name", labs.EXERCISES)
def test_each_exercise_has_a_question_an_idea_and_a_skeleton_that_is_no_answer(name, capsys):
    labs.hint(name)
    assert "?" in capsys.readouterr().out
    labs.hint(name, 2)
    idea = capsys.readouterr().out
    assert idea.count("\n") == 1
    labs.hint(name, 3)
    skeleton = capsys.readouterr().out
    function = labs.EXERCISES[name].call.partition("(")[0]
    assert skeleton.startswith(f"def {labs.EXERCISES[name].call}:\n")
    assert "..." in skeleton
    space = {"np": np}
    exec(skeleton, space)
    assert labs.EXERCISES[name].review(space[function], seconds=0.5).status == "not yet"


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        (labs.hint, {"step": 4}, "step=4: 1 is a question, 2 the idea, 3 the skeleton"),
        (labs.check, {"seconds": float("inf")}, "seconds=inf: must be a number greater than 0 and finite"),
        (labs.require, {"seed": -1}, "seed=-1: must be a whole number, at least 0"),
        (labs.score, {"points": float("nan")}, "points=nan: must be a number, at least 0"),
        (labs.score, {"name": "no"}, "name='no': the exercises are 00.exchange"),
        (labs.check, {"name": ["00.exchange"]}, "name=['00.exchange']: the exercises are"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(call, options, said):
    answer = {} if call is labs.hint else {"answer": answers.exchange}
    with pytest.raises(ValueError, match=re.escape(said)):
        call(**({"name": "00.exchange"} | answer | options))


def test_numbers_that_differ_beyond_6_digits_are_shown_to_the_digit_that_differs():
    assert difference(np.array([10200.04, 1.0]), np.array([10200.0, 1.0])) == (
        "returned [10200.04, 1], expected [10200, 1]"
    )
    found = np.arange(9.0) + 1e6
    found[4] += 0.25
    assert difference(found, np.arange(9.0) + 1e6) == (
        "returned 1000004.2 at [4], expected 1000004; 1 of 9 elements differ"
    )
    count = Count("makespan", [39_000_001], format_time, " ps")
    with pytest.raises(Wrong, match="makespan: 39000001 ps, should be N works = 39000000 ps"):
        count.check("N works", 39_000_000, "")
