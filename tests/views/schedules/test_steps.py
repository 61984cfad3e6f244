"""The frontier of steps: a step more of many costs what is drawn, and no straight schedule is in the grey."""

import pytest

from parlab import views
from parlab.labs import two_arguments
from parlab.pipeline import Costs, MemoryLimit, lower_bound, one_f_one_b, simulate, v_half, zb_auto, zb_h1, zb_h2, zb_v
from parlab.views.schedules.placement import PLACEMENTS
from tests.views.drawn import artists, check_refused, check_text, title

MS = Costs(18.522, 18.086, 9.337, 0.601)  # Zero Bubble (Qi et al., 2024), table 9: 1.5B, 8 stages, 24 microbatches
PENDING = 32 * 2304 / (34 * 2304 + 5 * 24 * 1024)  # M_W / M_B of its section 2
WORK = 24 * (18.522 + 18.086 + 9.337)


@pytest.fixture(scope="module")
def published():
    made = {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2, "V-Half": v_half, "ZB-V": zb_v}
    return {name: make(8, 24) for name, make in made.items()} | {
        "ZB-2p": zb_auto(8, 24, MS, MemoryLimit(16, pending=PENDING))
    }


def drawn(published, steps):
    return views.step_frontier(published, MS, two_arguments, PENDING, steps)


def rows(figure):
    """Kept, one step and steps in a row, by name."""
    lines = [line.split() for line in repr(figure).splitlines()[1:7]]
    return {name: tuple(map(float, numbers)) for name, *numbers in lines}


def test_published_1_5b_one_step_1310_and_1237_in_a_row_1310_and_1153_and_zb_v_1189_within_8(published):
    figure = drawn(published, "one step")
    check_text(figure)
    found = rows(figure)
    assert found["ZB-H1"] == (8, 1310, 1310)
    assert found["ZB-2p"] == (16, 1237, 1153)
    assert found["ZB-V"] == (8, 1189, 1189)
    assert found["V-Half"] == (5, 1352, 1352)
    assert title(figure) == "One step: ZB-V keeps 8 and takes 1189 ms, ZB-2p keeps 16 and takes 1237 ms"


def test_in_a_row_zb_1p_and_zb_2p_idle_as_in_table_5_15_85_and_4_33_percent(published):
    found = rows(drawn(published, "steps in a row"))
    for name, idle in (("ZB-H1", 0.1585), ("ZB-2p", 0.0433)):
        assert 1 - WORK / found[name][2] == pytest.approx(idle, abs=5e-4)


def test_counted_whole_zb_2p_keeps_24_and_all_others_what_the_paper_counts(published):
    paper = rows(drawn(published, "one step"))
    whole = rows(views.step_frontier(published, MS, two_arguments))
    differs = {name: (paper[name][0], whole[name][0]) for name in paper if paper[name][0] != whole[name][0]}
    assert differs == {"ZB-2p": (16, 24)}


def test_unit_costs_p4_m8_zb_h2_27_in_one_step_and_24_in_a_row():
    figure = views.step_frontier({"ZB-H1": zb_h1(4, 8), "ZB-H2": zb_h2(4, 8)}, Costs(), two_arguments)
    check_text(figure)
    assert [line.split() for line in repr(figure).splitlines()[1:3]] == [
        ["ZB-H1", "4", "27", "27"],
        ["ZB-H2", "7", "27", "24"],
    ]


def test_a_step_in_a_row_takes_as_long_as_the_longest_stage(published):
    for name, (_, _, row) in rows(drawn(published, "steps in a row")).items():
        chunks = published[name].num_stages // 8
        costs = Costs(MS.forward / chunks, MS.backward_input / chunks, MS.backward_weight / chunks, MS.transfer)
        assert round(simulate(published[name], costs).longest_stage) == row


@pytest.mark.parametrize("steps", ["one step", "steps in a row"])
def test_no_straight_schedule_is_in_the_grey_and_with_room_for_5_a_v_is(published, steps):
    figure = drawn(published, steps)
    check_text(figure)
    (grey,) = artists(figure, "impossible")
    path = grey.get_paths()[0]
    points = artists(figure, "points")
    assert len(points) == 6
    for point in points:
        ((kept, span),) = point.get_xydata().tolist()
        inside = path.contains_point((kept + 0.25, span + 0.5))
        straight = point.get_color() == PLACEMENTS["straight"]["color"]
        assert not (inside and straight)
        if kept == 5:
            assert inside


def test_the_bound_in_a_row_is_the_work_or_a_places_turns():
    text = repr(drawn({"ZB-H1": zb_h1(8, 24)}, "steps in a row")).splitlines()[-1]
    place = 8 * (18.522 + 18.086) + 14 * 0.601 + 9.337
    assert [int(n) for n in text.split()] == [round(max(WORK, 24 * place / limit)) for limit in range(1, 17)]


def test_two_arguments_are_never_above_the_librarys_bound():
    for limit in (2, 4, 5, 8, 16):
        times = MS.forward, MS.backward_input, MS.backward_weight, MS.transfer
        assert two_arguments(8, 24, limit, *times) <= lower_bound(8, 24, MS, memory_limit=limit) + 1e-9


def test_only_the_point_that_gains_in_a_row_leaves_a_ring_where_it_was(published):
    assert artists(drawn(published, "one step"), "one step") == []
    (ring,) = artists(drawn(published, "steps in a row"), "one step")
    assert ring.get_xydata().round().tolist() == [[16, 1237]]


def test_the_switch_draws_the_other_picture_and_at_first_one_step(published):
    explorer = views.explore_steps(published, MS, two_arguments, PENDING)
    assert title(explorer.figure).startswith("One step:")
    before = explorer.picture.value
    explorer.controls["steps"].value = "steps in a row"
    assert explorer.picture.value != before
    assert title(explorer.figure).startswith("Steps in a row:")


def test_other_words_and_other_sizes_are_refused():
    check_refused(lambda: drawn({"ZB-H1": zb_h1(8, 24)}, "two"), "steps='two'", "one step")
    check_refused(lambda: drawn({"a": zb_h1(4, 8), "b": zb_h1(8, 8)}, "one step"), "schedules=['a', 'b']", "same ranks")
    check_refused(lambda: drawn({}, "one step"), "schedules=[]", "one or more")
