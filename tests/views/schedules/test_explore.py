"""The schedules' widget: its controls, its answers to numbers that do not fit, its explanations."""

from itertools import product

import pytest

from parlab import views
from parlab.pipeline import Schedule, gpipe, one_f_one_b, zb_h1
from parlab.views.drawing.picture import png
from parlab.views.schedules.explore import SCHEDULES
from tests.views.drawn import check_refused


def test_every_control_of_the_widget_changes_the_picture():
    explorer = views.explore_schedules()
    for name, control in explorer.controls.items():
        before, default = explorer.picture.value, control.value
        control.value = next(value for _, value in control.options if value != default)
        assert explorer.picture.value != before, name
        control.value = default
        assert explorer.picture.value == before, name


def test_every_combination_of_the_controls_is_drawn_or_refused_in_words():
    for schedule in SCHEDULES:
        for p, m, v in product((1, 4, 8), (1, 4, 6, 8), (1, 2, 4)):
            said = repr(views.pipeline(schedule, p, m, v))
            assert "makespan" in said or said.startswith(f"{schedule}: ")


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"m": 9, "v": 2}, "1F1B: with chunks, microbatches go around in whole groups of at least p = 4: m = 9 is not"),
        ({"schedule": "ZB-H1", "v": 2}, "ZB-H1: it has 1 chunk a rank: v is for GPipe and 1F1B"),
    ],
)
def test_numbers_that_do_not_fit_are_answered_with_the_reason(numbers, reason):
    assert repr(views.pipeline(**numbers)).startswith(reason)


def test_chunks_are_counted_from_1():
    check_refused(lambda: views.pipeline(v=0), "v=0", "at least 1")


@pytest.mark.parametrize(
    ("schedule", "v", "makespan"),
    [("GPipe", 1, 33), ("1F1B", 1, 33), ("GPipe", 2, 28.5), ("1F1B", 2, 28.5), ("ZB-H1", 1, 27)],
)
def test_p4_m8_takes_what_the_formula_says_whatever_the_chunks(schedule, v, makespan):
    assert f"makespan {makespan:g} units" in repr(views.pipeline(schedule, v=v))


def test_waits_are_explained_the_longest_first_and_beyond_the_last_the_last():
    said = [repr(views.pipeline(p=2, m=2, mark=number)).splitlines()[-1] for number in (1, 2, 3, 9)]
    assert said == [
        "rank 0 is idle from 2 to 4: 0B0 needs 1B0, which rank 1 ends at 4",
        "rank 0 is idle from 6 to 7: 0B1 needs 1B1, which rank 1 ends at 7",
        "rank 1 is idle from 0 to 1: 1F0 needs 0F0, which rank 0 ends at 1",
        "rank 1 is idle from 0 to 1: 1F0 needs 0F0, which rank 0 ends at 1",
    ]


@pytest.mark.parametrize(("transfer", "end"), [(0, 35), (0.125, 35), (0.25, 37.5), (2, 65)])
def test_the_widgets_axis_ends_a_little_above_the_makespan(transfer, end):
    assert {axes.get_xlim() for axes in views.pipeline(transfer=transfer).axes} == {(0, end)}


@pytest.mark.parametrize("mark", ["critical path", 1, 30])
@pytest.mark.parametrize("p", [1, 4])
def test_marks_are_drawn_for_any_number_of_ranks(mark, p):
    assert png(views.pipeline(p=p, mark=mark))


# what a transfer costs


@pytest.mark.parametrize(
    ("transfer", "said"),
    [
        (0, "Transfer 0 F: 1F1B takes as long as GPipe"),
        (1 / 32, "Transfer 1/32 F: 1F1B takes 0.9 % longer than GPipe"),  # 10c / (33 + 6c)
        (1 / 8, "Transfer 1/8 F: 1F1B takes 3.7 % longer than GPipe"),
        (1 / 4, "Transfer 1/4 F: 1F1B takes 7.2 % longer than GPipe"),
        (1 / 2, "Transfer 1/2 F: 1F1B takes 13.9 % longer than GPipe"),
        (0.3, "Transfer 0.3 F: 1F1B takes 8.6 % longer than GPipe"),
    ],
)
def test_p4_m8_1f1b_waits_for_10_messages_more_than_gpipe_of_33_and_6(transfer, said):
    assert repr(views.transfers(transfer)).splitlines()[0] == said


def test_a_schedule_that_takes_less_time_is_said_to():
    assert "ZB-H1 takes 18.2 % less than mine" in repr(views.transfers(0, {"mine": one_f_one_b, "ZB-H1": zb_h1}))


def test_a_schedule_without_a_name_gets_its_makers():
    mine = {"GPipe": gpipe, "mine": lambda p, m: Schedule(one_f_one_b(p, m).ranks)}
    assert "\nmine, 4 ranks, 8 microbatches: makespan 33 units" in repr(views.transfers(0, mine))


@pytest.mark.parametrize(("transfer", "end"), [(0, 35), (1 / 32, 35), (1 / 2, 42.5)])
def test_both_schedules_share_an_axis_that_ends_a_little_above_the_longer(transfer, end):
    assert {axes.get_xlim() for axes in views.transfers(transfer).axes} == {(0, end)}


@pytest.mark.parametrize(
    ("arguments", "named", "right"),
    [
        ({"transfer": -1}, "transfer=-1", "must be a number, at least 0"),
        ({"makers": {"GPipe": gpipe}}, "makers=", "must be two functions of (p, m) by their names"),
        ({"makers": {"GPipe": gpipe, "1F1B": 1}}, "makers=", "must be two functions of (p, m) by their names"),
    ],
)
def test_other_things_than_two_makers_and_a_time_are_refused(arguments, named, right):
    check_refused(lambda: views.transfers(**arguments), named, right)
