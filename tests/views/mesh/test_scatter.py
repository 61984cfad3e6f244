"""All meshes of 16 ranks, with sliders: dots and rows are the stored steps, and what lesson 07 concludes from them."""

import pytest

from parlab import views
from parlab.views.mesh.scatter import KINDS, MEMORY, MOST, SLOW, TIMES, dots_of, fastest, kind_of, spelled
from parlab.views.mesh.steps import SCHEDULES, SHARES, meshes, stored
from parlab.world.units import format_bytes
from tests.views.drawn import artists, check_text, title

SETTINGS = [(share, schedule) for share in SHARES for schedule in SCHEDULES]


def places(figure, gid):
    (line,) = artists(figure, gid)
    return {tuple(place) for place in line.get_xydata()}


def best(share, schedule, kind=None):
    return min((dot for dot in dots_of(share, schedule) if kind in (None, kind_of(dot))), key=lambda dot: dot.seconds)


@pytest.mark.parametrize(("share", "schedule"), SETTINGS)
def test_a_dot_is_a_mesh_and_a_zero_stage_at_its_fastest_number_of_microbatches(share, schedule):
    at, expected = SHARES.index(share), {}
    for axes, microbatches, own, zero, sent, by_share in stored():
        if axes[1] == 1 or own == schedule:
            row = (by_share[at][0] / 1e12, microbatches, sent, by_share[at][1])
            expected[axes, zero] = min(row, expected.get((axes, zero), row))
    found = {
        (dot.axes, dot.zero): (dot.seconds, dot.microbatches, dot.sent, dot.held) for dot in dots_of(share, schedule)
    }
    assert found == expected
    assert {axes for axes, _ in found} == set(meshes(16))
    figure = views.all_meshes(share, schedule)
    dots = dots_of(share, schedule)
    for kind in KINDS:
        own = [(dot.held, 1e3 * dot.seconds) for dot in dots if kind_of(dot) == kind]
        assert places(figure, kind) == {place for place in own if place[1] < MOST}
        assert places(figure, f"slow {kind}") == {(held, SLOW) for held, ms in own if ms >= MOST}
    three = {best(share, schedule, kind) for kind in KINDS}
    assert places(figure, "fastest") == {(dot.held, 1e3 * dot.seconds) for dot in three}


def test_the_colour_of_a_dot_says_whether_it_has_a_pipeline_or_cp():
    for dot in dots_of(0.6, "zb_h1"):
        _, pp, cp, _ = dot.axes
        assert kind_of(dot) == ("pp" if pp > 1 else "cp" if cp > 1 else "dp")
    colors = [artists(views.all_meshes(), kind)[0].get_color() for kind in KINDS]
    assert colors == [kind.color for kind in KINDS.values()]
    assert len(set(colors)) == 3


def test_axes_are_the_same_at_all_settings_and_hold_every_dot_and_every_winner():
    for share, schedule in SETTINGS:
        figure = views.all_meshes(share, schedule)
        (axes,) = figure.axes
        assert (axes.get_xlim(), axes.get_ylim()) == (MEMORY, TIMES)
        for dot in dots_of(share, schedule):
            assert MEMORY[0] < dot.held < MEMORY[1]
            assert 1e3 * dot.seconds > TIMES[0]
        assert all(1e3 * best(share, schedule, kind).seconds < MOST for kind in KINDS)
        check_text(figure)


def behind(share, schedule):
    """By how much the best pipeline is behind the best mesh without one."""
    others = min(best(share, schedule, kind).seconds for kind in ("dp", "cp"))
    return best(share, schedule, "pp").seconds / others - 1


def test_a_pipeline_draws_level_with_zb_h2_at_75_percent_and_wins_at_80_alone():
    assert best(0.75, "zb_h2").axes == best(0.8, "zb_h2").axes == (1, 8, 2, 1)
    assert best(0.8, "zb_h2").microbatches == 16
    assert [behind(share, "zb_h2") for share in (0.4, 0.6, 0.7, 0.75, 0.8)] == pytest.approx(
        [0.119, 0.053, 0.026, -0.002, -0.011], abs=1e-3
    )
    assert [setting for setting in SETTINGS if behind(*setting) < -0.005] == [(0.8, "zb_h2")]
    assert [setting for setting in SETTINGS if behind(*setting) < 0.005] == [(0.75, "zb_h2"), (0.8, "zb_h2")]


def test_with_1f1b_the_best_pipeline_is_18_to_22_percent_behind_and_with_zb_h1_5_to_14():
    for schedule, least, most in (("one_f_one_b", 0.175, 0.225), ("zb_h1", 0.045, 0.145)):
        found = [behind(share, schedule) for share in SHARES]
        assert least < min(found) < max(found) < most
    pipeline, other = best(0.6, "one_f_one_b", "pp"), best(0.6, "one_f_one_b")
    assert (pipeline.axes, other.axes) == ((1, 4, 2, 2), (4, 1, 1, 4))
    assert [round(dot.held / 2**30, 1) for dot in (pipeline, other)] == [2.1, 3.3]


def test_cp_in_the_place_of_dp_is_3_to_9_percent_behind():
    found = [best(share, "zb_h1", "cp").seconds / best(share, "zb_h1", "dp").seconds - 1 for share in SHARES]
    assert (round(min(found), 2), round(max(found), 2)) == (0.03, 0.09)


@pytest.mark.parametrize("setting", [(0.6, "one_f_one_b"), (0.8, "zb_h2")])
def test_the_row_of_the_fastest_alone_is_bold(setting):
    figure = views.all_meshes(*setting)
    bold = {text.get_text() for text in figure.texts if text.get_weight() == "bold"} - {title(figure)}
    dot = best(*setting)
    assert bold == {spelled(dot), f"{1e3 * dot.seconds:.1f} ms", format_bytes(dot.held), format_bytes(dot.sent)}


def test_the_headline_says_by_how_much_the_best_pipeline_is_behind_or_wins():
    for share, schedule, said in (
        (0.6, "one_f_one_b", "Products at 60 % of the peak, 1F1B: the best pipeline takes 20 % longer"),
        (0.75, "zb_h2", "Products at 75 % of the peak, ZB-H2: the best pipeline is as fast as the best mesh without"),
        (0.8, "zb_h2", "Products at 80 % of the peak, ZB-H2: a pipeline wins, by 1 %"),
    ):
        assert title(views.all_meshes(share, schedule)) == said


def test_the_fastest_mesh_changes_with_the_share_of_the_peak():
    axes = [best(share, "one_f_one_b").axes for share in SHARES]
    assert axes == 3 * [(8, 1, 1, 2)] + 6 * [(4, 1, 1, 4)]  # 40 to 50 %, 55 to 80 %
    assert fastest(0.45, "one_f_one_b") == best(0.45, "one_f_one_b")
    took = {(dot.axes, dot.zero): round(1e3 * dot.seconds, 1) for dot in dots_of(0.45, "one_f_one_b")}
    assert [took[key] for key in (((8, 1, 1, 2), 3), ((4, 1, 1, 4), 1), ((4, 1, 1, 4), 3))] == [22.8, 24.0, 24.2]


def test_sliders_move_the_dots_and_a_schedule_those_of_pipelines_alone():
    explorer = views.explore_all_meshes()
    before = {kind: places(explorer.figure, kind) for kind in KINDS}
    explorer.controls["schedule"].value = "zb_h2"
    after = {kind: places(explorer.figure, kind) for kind in KINDS}
    assert [kind for kind in KINDS if before[kind] != after[kind]] == ["pp"]
    explorer.controls["products"].value = 0.8
    assert all(after[kind] != places(explorer.figure, kind) for kind in KINDS)
    assert "a pipeline wins" in repr(explorer)


def test_another_share_and_another_schedule_are_refused():
    for products in (0.62, 60, "0.6", True):
        with pytest.raises(ValueError, match=f"products={products!r}: use one of 0.4, 0.45"):
            views.all_meshes(products)
    with pytest.raises(ValueError, match="schedule='gpipe': use one of one_f_one_b, zb_h1, zb_h2"):
        views.all_meshes(schedule="gpipe")
