"""The film of moves tells each move with what it saves, and refuses schedules that are no reordering of each other."""

import re
from itertools import pairwise

import pytest

from parlab import views
from parlab.pipeline import Schedule, gpipe, one_f_one_b, simulate, zb_auto, zb_h1
from parlab.pipeline.actions import Action
from tests.views.drawn import check_refused


def swapped(schedule, rank, kind, microbatch):
    """The schedule with one action a place earlier."""
    rows = [list(row) for row in schedule.actions]
    at = rows[rank].index(Action(kind, rank, microbatch))
    rows[rank][at - 1 : at + 1] = rows[rank][at], rows[rank][at - 1]
    return Schedule(rows)


START = zb_auto(3, 4, memory_limit=2, tries=0, metric="makespan")
ONE = swapped(START, 1, "F", 1)
TWO = swapped(ONE, 1, "F", 3)


def test_two_moves_take_a_schedule_from_19_to_17_units():
    film = views.film([START, ONE, TWO], bound=16)
    assert film.story.splitlines() == [
        "2 moves: from 19 to 17 units",
        "start: rank 1 does F1 before I0: 19 → 18 units",
        "1: rank 1 does F3 before I2: 18 → 17 units",
    ]
    assert "none is below" in film.html
    assert len(film.html) < 30_000


def test_each_action_travels_as_often_as_its_start_changes():
    starts = []
    for one in (START, ONE, TWO):
        timeline = simulate(one)
        starts.append({step.actions[0]: step.start for rank in range(3) for step in timeline.steps(rank)})
    changes = sum(one[action] != two[action] for one, two in pairwise(starts) for action in one)
    html = views.film([START, ONE, TWO]).html
    assert len(re.findall('<g class="go"', html)) == changes > 0
    assert "none is below" not in html  # no bound is given


@pytest.mark.parametrize(
    ("source", "value", "right"),
    [
        ([START], "1 schedules", "2 to 12"),
        ([zb_h1(3, 4), gpipe(3, 4)], "source", "the same actions"),
        ([one_f_one_b(3, 4), one_f_one_b(2, 4)], "source", "the same actions"),
    ],
)
def test_what_is_no_improvement_by_moves_is_refused(source, value, right):
    check_refused(lambda: views.film(source), value, right)
