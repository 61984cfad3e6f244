"""A lesson goes on with the learner's function if it is right, with the library's if not, and says which."""

import pytest

from parlab import labs
from parlab.labs import recording, session


def library(comm, x):
    return x


def exchange(comm, x):
    return comm.sendrecv(x, comm.right, comm.left), comm.sendrecv(x, comm.left, comm.right)


def swapped(comm, x):
    return exchange(comm, x)[::-1]


def stub(comm, x):
    raise NotImplementedError


def stuck(comm, x):
    while True:
        pass


def leaves(comm, x):
    raise SystemExit


@pytest.fixture(autouse=True)
def reviews(monkeypatch):
    """The answers that were really reviewed, in a session of their own."""
    monkeypatch.setattr(session, "_reviews", {})
    monkeypatch.setattr(session, "_reviewed_texts", {})
    monkeypatch.setattr(session, "_texts", session.Answers())
    reviewed, review = [], recording.reviewed

    def recorded(exercise, answer, *options):
        reviewed.append(answer)
        return review(exercise, answer, *options)

    monkeypatch.setattr(recording, "reviewed", recorded)
    return reviewed


@pytest.mark.parametrize(
    ("answer", "runs", "said"),
    [
        (exchange, exchange, "passed. From here on yours runs."),
        (stub, library, "not written yet. From here on the library's runs."),
        (swapped, library, "not yet. From here on the library's runs."),
        (stuck, library, "not yet. From here on the library's runs."),
        (leaves, library, "not yet. From here on the library's runs."),
        (3, library, "not yet. From here on the library's runs."),
        (None, library, "not yet. From here on the library's runs."),
        (library, library, "From here on the library's runs."),
    ],
)
def test_the_right_one_runs(answer, runs, said, capsys):
    assert labs.yours("00.exchange", answer, otherwise=library, seconds=0.5) is runs
    assert capsys.readouterr().out == f"00.exchange: {said}\n"


@pytest.mark.parametrize("answer", [exchange, swapped, stub])
def test_an_answer_that_was_checked_is_not_checked_again(answer, reviews):
    labs.check("00.exchange", answer)
    labs.yours("00.exchange", answer, otherwise=library)
    assert reviews == [answer]


def test_another_answer_is_checked_and_so_is_one_whose_helper_changed(reviews, monkeypatch):
    labs.check("00.exchange", stub)
    labs.yours("00.exchange", swapped, otherwise=library)
    monkeypatch.setitem(globals(), "exchange", lambda comm, x: exchange(comm, x)[::-1])
    labs.yours("00.exchange", swapped, otherwise=library)
    assert reviews == [stub, swapped, swapped]


def test_a_cell_that_runs_twice_does_not_take_the_librarys_for_yours(capsys, reviews):
    mine = labs.yours("00.exchange", stub, otherwise=exchange)
    assert labs.yours("00.exchange", mine, otherwise=exchange) is exchange
    assert capsys.readouterr().out.count("From here on the library's runs.") == 2
    assert reviews == [stub]


def test_what_ran_stands_in_the_summary():
    labs.yours("00.exchange", exchange, otherwise=library)
    assert [row[:2] for row in labs.summary().rows] == [("00.exchange", "passed")]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: labs.yours("00.swap", stub, otherwise=library), "name='00.swap'"),
        (lambda: labs.yours("00.exchange", stub, otherwise=3), "otherwise=3: must be the function that stands in"),
        (lambda: labs.yours("00.exchange", stub, otherwise=library, seconds=0), "seconds=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, said, reviews):
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert said in str(caught.value)
    assert reviews == []
