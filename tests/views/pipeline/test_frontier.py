"""The frontier and the placements show what was simulated, and refuse what they cannot draw."""

import pytest

from parlab import views
from parlab.pipeline import (
    Schedule,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    one_f_one_b_v,
    v_half,
    v_min,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.views.pipeline.placement import paths_of, placement_of
from tests.views.drawn import artists


def entries(p, m):
    """Schedules of all placements."""
    made = {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2, "1F1B-V": one_f_one_b_v, "V-Min": v_min}
    made |= {"V-Half": v_half, "ZB-V": zb_v, "DualPipe": dualpipe, "GPipe": gpipe}
    return {name: make(p, m) for name, make in made.items()} | {"interleaved": interleaved_one_f_one_b(p, m, 2)}


def rows(figure):
    """The numbers of each named row of the text."""
    return {line[:22].strip(): line[22:].split() for line in repr(figure).splitlines() if line[:1].isalnum()}


def test_p4_m8_has_every_schedule_where_the_papers_say_and_nothing_below_a_bound():
    figure = views.frontier(4, 8, entries(4, 8))
    said = rows(figure)
    assert said["1F1B"][:3] == ["4", "33", "27.3"]
    assert said["ZB-H2"][:4] == ["7", "27", "11.1", "27"]
    assert said["V-Half"][:2] == ["3", "26.5"]
    assert said["DualPipe"][:2] == ["5", "25"]
    assert said["GPipe"][:3] == ["8", "33", "27.3"]
    lines = repr(figure).splitlines()
    for name in ("straight", "V", "around", "both ends"):
        number = next(i for i, line in enumerate(lines) if line.startswith(f"{name}, best known"))
        found, none_below = (
            [float(x.replace("–", "inf")) for x in line[22:].split()] for line in lines[number : number + 2]
        )
        assert len(found) == 8
        assert all(a >= b for a, b in zip(found, none_below, strict=True))
        assert found == sorted(found, reverse=True)


def steps(figure, gid):
    """The corners of each line of steps."""
    assert {line.get_drawstyle() for line in artists(figure, gid)} == {"steps-post"}
    return [line.get_xydata().tolist() for line in artists(figure, gid)]


def test_no_step_of_the_best_known_lies_below_the_bound_of_its_placement():
    figure = views.frontier(2, 4, entries(2, 4))
    assert len(steps(figure, "bound")) == len(steps(figure, "best known")) == 4
    for least, best in zip(steps(figure, "bound"), steps(figure, "best known"), strict=True):
        for x, span in best:
            assert span >= [y for at, y in least if at <= x][-1] - 1e-9


def test_the_points_are_the_best_known():
    said = repr(views.frontier(3, 4, {"slow": gpipe(3, 4), "ZB-H1": zb_h1(3, 4)})).splitlines()
    assert said[1].split()[:3] == ["slow", "4", "18"]
    assert said[4].split()[3:] == ["–", "–", "14", "14", "14", "14"]


def test_grey_ends_at_the_bound_and_yellow_at_the_best_known():
    figure = views.frontier(3, 4, {"slow": gpipe(3, 4)})
    (grey,), (yellow,) = (artists(figure, gid) for gid in ("impossible", "unknown"))
    below, between = ({y for path in one.get_paths() for _, y in path.vertices} for one in (grey, yellow))
    assert {16, 14} <= below  # room for 2, and for more
    assert between == {14, 18}  # room for 4 and more: 14 is proved, 18 is known


def test_a_picture_of_several_placements_has_no_grey():
    assert not artists(views.frontier(3, 4, {"ZB-H1": zb_h1(3, 4), "ZB-V": zb_v(3, 4)}), "impossible")


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
    figure = views.frontier(2, 4, entries(2, 4) | {"DualPipeV": dualpipe_v(2, 4)})
    axes = next(axes for axes in figure.axes if axes.get_ylabel() == "makespan (units)")
    renderer = figure.canvas.get_renderer()
    numbers = {text.get_text(): text.get_window_extent(renderer) for text in axes.texts}
    (point, _) = axes.transData.transform((2, 12.5))  # a point is close at its right
    assert numbers["5, 6, 7"].x1 < point
