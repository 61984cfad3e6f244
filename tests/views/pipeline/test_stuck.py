"""A schedule that cannot run is drawn up to where each rank stands, and says why."""

import pytest

from parlab import views
from parlab.labs.pipeline import listing
from parlab.pipeline import Action, Schedule, gpipe, interleaved_one_f_one_b, one_f_one_b, simulate, zb_h1
from parlab.pipeline.stuck import until_stuck
from parlab.views.engine.picture import png
from parlab.views.pipeline.stuck import cause_of
from tests.pipeline.models import spoil
from tests.views.drawn import artists, boxes, lanes

F, B = "F", "B"
WAITING = [Action(F, 0, 0), Action(B, 0, 0), Action(F, 0, 1), Action(B, 0, 1)]
EAGER = [Action(F, 1, 0), Action(F, 1, 1), Action(B, 1, 0), Action(B, 1, 1)]


def test_a_deadlock_is_drawn_up_to_where_each_rank_stands_and_why():
    steps, stops = until_stuck(Schedule([WAITING, EAGER]))
    assert [(step.rank, step.start, step.end, str(*step.actions)) for step in steps] == [
        (0, 0, 1, "0F0"),
        (1, 1, 2, "1F0"),
    ]
    assert [(stop.rank, stop.start, str(stop.action), str(stop.needs)) for stop in stops] == [
        (0, 1, "0B0", "1B0"),
        (1, 2, "1F1", "0F1"),
    ]
    figure = views.schedule(Schedule([WAITING, EAGER], name="two halves"))
    assert repr(figure).startswith("two halves cannot run: deadlock: 2 ranks wait for each other in a cycle")
    assert [round(box[0], 9) for box in boxes(figure, "stuck")] == [1, 2]


def test_of_eight_stuck_ranks_the_two_in_the_cycle_are_red():
    rows = [list(row) for row in zb_h1(8, 12).ranks]
    early = rows[3].index(Action("F", 3, 7))
    rows[3].insert(4, rows[3].pop(early))
    _, stops = until_stuck(Schedule(rows))
    assert [stop.peer for stop in stops] == [1, 2, 3, 2, 3, 4, 5, 6]
    assert cause_of(stops) == {2, 3}
    figure = views.schedule(Schedule(rows))
    assert [lane for lane, *_ in lanes(figure, "stuck")] == [2, 3]
    assert [lane for lane, *_ in lanes(figure, "waiting")] == [0, 1, 4, 5, 6, 7]


def test_where_an_action_is_missing_the_rank_that_needs_it_is_red():
    missing = listing(4, 6)
    assert cause_of(until_stuck(missing)[1]) == {3}


def test_a_rank_that_waits_for_an_i_says_i():
    rows = [[Action(k, 0, 0) for k in "FIW"], [Action(F, 1, 1), Action("I", 1, 0), Action("W", 1, 0)]]
    _, (first, second) = until_stuck(Schedule(rows))
    assert (str(first.needs), first.peer) == ("1I0", 1)
    assert (str(second.needs), second.peer) == ("0F1", None)


def test_a_schedule_that_ends_but_lacks_gradients_is_drawn_whole_with_the_reason():
    figure = views.schedule(Schedule([[Action(F, 0, 0), Action("I", 0, 0)]]))
    assert len(boxes(figure, "actions")) == 2
    assert not artists(figure, "stuck")
    assert "0I0 has no 0W0" in repr(figure)


@pytest.mark.parametrize("seed", range(12))
def test_any_spoilt_schedule_is_drawn(seed):
    schedule = spoil(seed)
    figure = views.schedule(schedule)
    assert len(boxes(figure, "actions")) <= sum(map(len, schedule.actions))
    assert png(figure)


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(4, 8), interleaved_one_f_one_b(2, 4, 2), zb_h1(3, 5)])
def test_what_can_run_is_never_stuck_and_ends_as_simulated(schedule):
    steps, stops = until_stuck(schedule)
    assert not stops
    assert max(step.end for step in steps) == simulate(schedule).makespan
