"""The rounds of a loop: the picture shows that all ranks lose time, and not yet through whom."""

import pytest

from parlab import labs, views
from parlab.labs.patient import posted_ahead
from parlab.views.world.rounds import LONG
from tests.views.drawn import coloured, title

MS = 10**9  # picoseconds


def longer(figure):
    """(rank, start, end) of each orange box, times in ms."""
    return [(rank, start / MS, end / MS) for rank, start, end, color in coloured(figure, "rounds") if color == LONG]


def test_each_rank_of_the_patient_has_one_round_of_16_ms_and_three_of_them_are_first_at_once():
    figure = views.rounds(labs.patient())
    assert title(figure) == "8 of 64 rounds take longer than the others"
    found = longer(figure)
    starts = [30, 40, 30, 20, 10, 10, 10, 20]  # ms
    assert found == [(rank, start, start + 16) for rank, start in enumerate(starts)]


@pytest.mark.parametrize("number", range(1, 9))
def test_no_patient_betrays_its_culprit_by_the_lengths_of_its_rounds(number):
    """On each rank one round of 16 ms, others of 10 and a last one of 8: the lengths are the same on all ranks."""
    lines = [
        line.partition(": ")[2].split(", ") for line in repr(views.rounds(labs.patient(number=number))).split("\n")
    ]
    assert [sorted(line) for line in lines[1:]] == [["10.0 ms"] * 6 + ["16.0 ms", "8.00 ms"]] * 8


def test_messages_that_are_hidden_leave_only_the_round_of_the_stall_itself():
    assert longer(views.rounds(labs.patient(posted_ahead))) == [(5, 8, 22)]
