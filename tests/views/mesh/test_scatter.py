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


def test_a_pipeline_draws_level_with_zb_h2_at_60_percent_and_wins_from_65_on():
    wins = [share for share in SHARES if behind(share, "zb_h2") < -0.005]
    assert wins == [0.65, 0.7, 0.75, 0.8]
    assert {best(share, "zb_h2").axes for share in wins} == {best(0.6, "zb_h2", "pp").axes} == {(1, 8, 2, 1)}
    assert {best(share, "zb_h2").microbatches for share in wins} == {16}
    found = [behind(share, "zb_h2") for share in (0.4, 0.6, 0.65, 0.7, 0.75, 0.8)]
    assert found == pytest.approx([0.097, 0.003, -0.019, -0.037, -0.054, -0.042], abs=1e-3)
    assert {schedule for share, schedule in SETTINGS if behind(share, schedule) < -0.005} == {"zb_h2"}


def test_with_1f1b_the_best_pipeline_is_17_to_25_percent_behind_and_with_zb_h1_12_to_none():
    found = [behind(share, "one_f_one_b") for share in SHARES]
    assert 0.165 < min(found) < max(found) < 0.25
    found = [behind(share, "zb_h1") for share in (0.4, 0.6, 0.7, 0.75, 0.8)]
    assert found == pytest.approx([0.12, 0.045, 0.011, -0.003, 0.012], abs=1e-3)
    pipeline, other = best(0.6, "one_f_one_b", "pp"), best(0.6, "one_f_one_b")
    assert (pipeline.axes, other.axes) == ((1, 4, 2, 2), (8, 1, 1, 2))
    assert [round(dot.held / 2**30, 1) for dot in (pipeline, other)] == [2.0, 4.6]


def test_cp_in_the_place_of_dp_is_2_to_9_percent_behind():
    found = [best(share, "zb_h1", "cp").seconds / best(share, "zb_h1", "dp").seconds - 1 for share in SHARES]
    assert (round(min(found), 2), round(max(found), 2)) == (0.02, 0.09)


@pytest.mark.parametrize("setting", [(0.6, "one_f_one_b"), (0.8, "zb_h2")])
def test_the_row_of_the_fastest_alone_is_bold(setting):
    figure = views.all_meshes(*setting)
    bold = {text.get_text() for text in figure.texts if text.get_weight() == "bold"} - {title(figure)}
    dot = best(*setting)
    assert bold == {spelled(dot), f"{1e3 * dot.seconds:.1f} ms", format_bytes(dot.held), format_bytes(dot.sent)}


def test_the_headline_says_by_how_much_the_best_pipeline_is_behind_or_wins():
    for share, schedule, said in (
        (0.6, "one_f_one_b", "Products at 60 % of the peak, 1F1B: the best pipeline takes 19 % longer"),
        (0.6, "zb_h2", "Products at 60 % of the peak, ZB-H2: the best pipeline is as fast as the best mesh without"),
        (0.8, "zb_h2", "Products at 80 % of the peak, ZB-H2: a pipeline wins, by 4 %"),
    ):
        assert title(views.all_meshes(share, schedule)) == said


def test_the_fastest_mesh_is_the_same_at_all_shares_of_the_peak_and_its_zero_stage_changes():
    found = [(best(share, "one_f_one_b").axes, best(share, "one_f_one_b").zero) for share in SHARES]
    assert found == 4 * [((8, 1, 1, 2), 3)] + 5 * [((8, 1, 1, 2), 1)]  # 40 to 55 %, 60 to 80 %
    assert fastest(0.45, "one_f_one_b") == best(0.45, "one_f_one_b")
    took = {(dot.axes, dot.zero): round(1e3 * dot.seconds, 1) for dot in dots_of(0.6, "one_f_one_b")}
    keys = [((8, 1, 1, 2), 1), ((8, 1, 1, 2), 3), ((16, 1, 1, 1), 1), ((4, 1, 1, 4), 3)]
    assert [took[key] for key in keys] == [19.7, 20.5, 20.5, 20.9]


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
