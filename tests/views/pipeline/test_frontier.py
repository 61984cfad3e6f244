"""The frontier and the placements show what was simulated, and refuse what they cannot draw."""

import pytest

from parlab import views
from parlab.pipeline import (
    Costs,
    Schedule,
    dualpipe,
    gpipe,
    interleaved_one_f_one_b,
    lower_bound,
    zb_h1,
    zb_v,
)
from parlab.views.pipeline.placement import paths_of, placement_of
from tests.views.drawn import artists


def rows(figure):
    """The numbers of each named row of the text."""
    return {line[:22].strip(): line[22:].split() for line in repr(figure).splitlines() if line[:1].isalnum()}


def test_p4_m8_has_every_schedule_where_the_papers_say():
    figure = views.frontier(4, 8, own=gpipe(4, 8), search=False)
    said = rows(figure)
    assert said["1F1B"][:3] == ["4", "33", "27.3"]
    assert said["ZB-H2"][:4] == ["7", "27", "11.1", "27"]
    assert said["V-Half"][:2] == ["3", "26.5"]
    assert said["DualPipe"][:2] == ["5", "25"]
    assert said["yours"][:3] == ["8", "33", "27.3"]
    (star,) = artists(figure, "star")
    assert star.get_xydata().tolist()[0] == [8, 33]


def steps(figure, gid):
    """The corners of each line of steps."""
    assert {line.get_drawstyle() for line in artists(figure, gid)} == {"steps-post"}
    return [line.get_xydata().tolist() for line in artists(figure, gid)]


def test_no_step_of_the_best_known_lies_below_the_bound_of_its_placement():
    figure = views.frontier(2, 4, Costs(transfer=0.5))
    assert len(steps(figure, "bound")) == len(steps(figure, "best known")) == 4
    for least, best in zip(steps(figure, "bound"), steps(figure, "best known"), strict=True):
        for x, span in best:
            assert span >= [y for at, y in least if at <= x][-1] - 1e-9


def test_without_a_search_the_points_alone_are_the_best_known():
    entries = {"slow": gpipe(3, 4), "ZB-H1": zb_h1(3, 4)}
    said = repr(views.frontier(3, 4, schedules=entries, search=False)).splitlines()
    assert said[1].split()[:3] == ["slow", "4", "18"]
    assert said[4].split()[3:] == ["–", "–", "14", "14", "14", "14"]
    assert said[5].split()[3:] == [f"{lower_bound(3, 4, memory_limit=limit)}" for limit in range(1, 7)]
    searched = repr(views.frontier(3, 4, schedules=entries)).splitlines()
    assert searched[4].split()[3:] == ["28", "17", "14", "14", "14", "14"]


def test_a_learners_bound_is_drawn_and_told():
    figure = views.frontier(
        3, 4, schedules=["ZB-H1"], search=False, bound=lambda p, m, limit, f, i, w, c: 100 * limit + m + w + c
    )
    assert repr(figure).splitlines()[-1].split() == ["by", "your", "bound", *(str(100 * k + 5) for k in range(1, 7))]
    assert len(steps(figure, "your bound")) == 1


def test_grey_ends_at_the_bound_and_yellow_at_the_best_known():
    figure = views.frontier(3, 4, schedules={"slow": gpipe(3, 4)}, search=False)
    (grey,), (yellow,) = (artists(figure, gid) for gid in ("impossible", "unknown"))
    below, between = ({y for path in one.get_paths() for _, y in path.vertices} for one in (grey, yellow))
    assert {16, 14} <= below  # room for 2, and for more
    assert between == {14, 18}  # room for 4 and more: 14 is proved, 18 is known


def test_a_picture_of_several_placements_has_no_grey():
    assert not artists(views.frontier(3, 4, schedules=["ZB-H1", "ZB-V"], search=False), "impossible")


def test_schedules_that_want_other_numbers_are_left_out():
    few, odd = (rows(views.frontier(3, m, search=False)) for m in (4, 7))
    assert not {"DualPipe", "DualPipeV"} & few.keys()
    assert not {"DualPipe", "interleaved"} & odd.keys()
    assert {"1F1B", "ZB-V"} <= few.keys() & odd.keys()


def test_where_nothing_takes_time_nothing_is_idle():
    assert rows(views.frontier(2, 3, Costs(0, 0, 0), search=False))["1F1B"] == ["2", "0", "0.0", "0", "0.0", "%"]


@pytest.mark.parametrize(
    ("schedule", "name", "ways"),
    [
        (zb_h1(3, 4), "straight", [(0, 1, 2)]),
        (interleaved_one_f_one_b(2, 4, 2), "around", [(0, 1, 0, 1)]),
        (zb_v(2, 3), "V", [(0, 1, 1, 0)]),
        (dualpipe(2, 4), "both ends", [(0, 1), (1, 0)]),
        (Schedule([zb_h1(2, 2).ranks[1], zb_h1(2, 2).ranks[0]]), "other", [(1, 0)]),
    ],
)
def test_a_microbatch_goes_straight_around_back_or_from_both_ends(schedule, name, ways):
    assert (placement_of(schedule), paths_of(schedule)) == (name, ways)


def test_the_numbers_of_points_that_stand_side_by_side_do_not_touch_the_next_point():
    figure = views.frontier(2, 4, search=False)
    axes = next(axes for axes in figure.axes if axes.get_ylabel() == "makespan (units)")
    renderer = figure.canvas.get_renderer()
    numbers = {text.get_text(): text.get_window_extent(renderer) for text in axes.texts}
    (point, _) = axes.transData.transform((2, 12.5))  # a point is close at its right
    assert numbers["6, 7, 8"].x1 < point
