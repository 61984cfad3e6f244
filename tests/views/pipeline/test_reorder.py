"""The widget in which actions are moved: each move answers with the clock and the memory, or with why it cannot run."""

import math
import re
from itertools import accumulate, product

import pytest

from parlab import views
from parlab.pipeline import Action, KeptBytes, Schedule, one_f_one_b, simulate, zb_h1
from parlab.views.pipeline.board import BAR, DIGIT, LANE, LEVEL, NARROWEST, STRIP
from tests.pipeline.test_bounds import orders_of_a_rank

GOALS = [(12, 3), (11, 3)]
KEPT = KeptBytes(activation=[10, 10, 12], pending=[14, 14, 16])


def cut(schedule):
    """With each backward as its I and, directly behind it, its W."""
    rows = [[b for a in row for b in ([a._replace(kind="I"), a._replace(kind="W")] if a.kind == "B" else [a])]
            for row in schedule.actions]  # fmt: skip
    return Schedule(rows, name="yours")


def said(widget):
    return repr(widget).splitlines()[0]


def test_1f1b_p3_m3_cut_in_two_takes_13_and_becomes_zb_h1_with_11_in_9_moves():
    widget = views.reorder(cut(one_f_one_b(3, 3)), GOALS)
    assert said(widget) == "reorder: yours: 13 units, 3 activations on its fullest rank"
    moves = 0
    for rank, (row, goal) in enumerate(zip(widget.rows, zb_h1(3, 3).actions, strict=True)):
        widget.rank.value = rank
        for place, action in enumerate(goal):
            while widget.rows[rank].index(action) > place:
                widget.action.index = widget.rows[rank].index(action)
                widget.buttons[0].click()
                moves += 1
        assert row == list(goal)
    assert moves == 9
    assert said(widget) == "reorder: yours: 11 units, 3 activations on its fullest rank"
    assert simulate(widget.schedule).makespan == 11


def test_a_move_that_cannot_run_is_answered_with_the_reason_and_the_first_action_stays():
    widget = views.reorder(cut(one_f_one_b(2, 2)), [(7, 2)])
    widget.action.index = 1
    widget.earlier()
    assert "yours cannot run: " in said(widget)
    widget.later()
    assert said(widget) == "reorder: yours: 8 units, 2 activations on its fullest rank"
    widget.action.index = 0
    before = widget.picture.value
    widget.earlier()
    assert [str(a) for a in widget.rows[1]][:2] == ["1F0", "1I0"]
    assert widget.picture.value != before  # it says that the first stays


def test_the_board_has_a_box_an_action_at_its_time_and_frames_the_chosen_one():
    widget = views.reorder(zb_h1(3, 3), [(11, 3)])
    widget.rank.value, widget.action.index = 1, 2  # 1I0
    html = widget.figure._repr_html_()
    boxes = re.findall(rf"<rect x='([\d.]+)%' width='([\d.]+)%' y='[\d.]+' height='{BAR}' fill='#", html)
    starts = sorted(100 * step.start / 11 for rank in range(3) for step in simulate(zb_h1(3, 3)).steps(rank))
    assert sorted(float(x) for x, _ in boxes) == pytest.approx(starts, abs=0.01)
    assert {width for _, width in boxes} == {"9.09"}
    (chosen,) = re.findall(r"class='chosen' x='([\d.]+)%' width='([\d.]+)%' y='([\d.]+)' height='(\d+)'", html)
    (start,) = (step.start for step in simulate(zb_h1(3, 3)).steps(1) if step.actions[0] == widget.rows[1][2])
    assert tuple(map(float, chosen)) == (pytest.approx(100 * start / 11, abs=0.01), 9.09, LANE * 1.5 - BAR / 2, BAR)
    assert f"minmax({11 * NARROWEST}px,1fr)" in html  # narrower lanes move sideways under the names
    assert html.count("position:sticky") == 2
    assert "image/png" not in views.reorder(zb_h1(3, 3), [(11, 3)])._repr_mimebundle_()


def test_the_board_asks_for_no_more_width_than_its_digits_need_so_that_a_goal_is_seen_on_a_narrow_page():
    html = views.reorder(zb_h1(3, 3), [(11, 3)]).figure._repr_html_()
    assert html.count("<svg") == html.count("width:0;min-width:100%") == 2  # an SVG of 100 % would ask for 300 pixels
    assert f"minmax({11 * NARROWEST}px,1fr)" in html
    two_digits = views.reorder(zb_h1(3, 11), [(35, 3)]).figure._repr_html_()
    assert f"minmax({35 * (NARROWEST + DIGIT)}px,1fr)" in two_digits


def test_the_board_of_a_schedule_that_cannot_run_names_what_each_rank_needs():
    widget = views.reorder(cut(one_f_one_b(2, 2)), [(7, 2)])
    widget.action.index = 1
    widget.earlier()
    html = widget.figure._repr_html_()
    assert "1I0 needs 1F0" in html
    assert "0I0 needs 1I0" in html


def test_goals_are_asked_for_one_after_the_other_until_all_are_reached():
    widget = views.reorder(cut(one_f_one_b(3, 3)), GOALS)
    lines = repr(widget).splitlines()
    assert lines[:2] == [
        "reorder: yours: 13 units, 3 activations on its fullest rank",
        "goal 1 of 2: 12 units, at most 3 activations",
    ]
    assert not lines[2].startswith("goal")
    widget.action.index = widget.rows[2].index(("W", 2, 1))
    widget.later()
    widget.later()
    both = ["goal 1 of 2: 12 units, at most 3 activations: reached ✓", "goal 2 of 2: 11 units, at most 3 activations"]
    assert repr(widget).splitlines()[1:3] == both
    assert all(f"{goal}</p>" in widget.picture.value for goal in both)
    widget.later()  # a goal once reached stays so
    assert repr(widget).splitlines()[1:3] == both
    widget.rows = [list(row) for row in zb_h1(3, 3).actions]
    widget.rank.value = 0
    assert repr(widget).splitlines()[1:3] == [both[0], f"{both[1]}: reached ✓"]
    assert "ZB-H1" not in repr(widget)


def test_a_goal_is_not_reached_with_an_activation_too_many_and_its_limit_is_drawn():
    widget = views.reorder(zb_h1(3, 3), [(11, 2)])
    assert said(widget) == "reorder: yours: 11 units, 3 activations on its fullest rank (too much)"
    html = widget.figure._repr_html_()
    assert "class='goal' x1='100.00%' x2='100.00%'" in html
    limits = [float(y) for y in re.findall(r"class='limit' x1='0' x2='100%' y1='([\d.]+)'", html)]
    assert limits == pytest.approx([STRIP * rank - LEVEL * 2 / 3 for rank in (1, 2, 3)], abs=0.1)


@pytest.mark.slow  # the goals test reaches both; here all orders are tried
def test_12_units_need_no_more_than_1f1bs_fullest_rank_and_11_need_all_that_zb_h1_keeps():
    """All orders on 3 ranks in which the F's, the I's and the W's of a rank each stand in order."""

    orders = list(orders_of_a_rank(3, (math.inf, 1, 1)))
    of_ranks = [[[Action(kind, rank, i) for kind, i in order] for order in orders] for rank in range(3)]

    def most(row, rank):
        change = {"F": KEPT.activation[rank], "I": KEPT.pending[rank] - KEPT.activation[rank], "W": -KEPT.pending[rank]}
        return max(accumulate(change[action.kind] for action in row))

    least: dict[int, int] = {}  # the last rank begins at 2 and works for 9: none ends before 11, so 48 is enough room
    for rows in product(*([row for row in of_ranks[rank] if most(row, rank) <= 48] for rank in range(3))):
        try:
            makespan = simulate(Schedule(rows)).makespan
        except ValueError:
            continue
        fullest = max(most(row, rank) for rank, row in enumerate(rows))
        least[makespan] = min(fullest, least.get(makespan, fullest))
    assert sorted(least.items())[:2] == [(11, 48), (12, 34)]
