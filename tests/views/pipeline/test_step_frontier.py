"""The frontier of steps: a step more of many costs what is drawn, and no straight schedule is in the grey."""

from functools import cache

import pytest

from parlab import views
from parlab.labs import on_rank_0, three_arguments
from parlab.pipeline import (
    Costs,
    MemoryLimit,
    interleaved_one_f_one_b,
    one_f_one_b,
    simulate,
    v_half,
    zb_auto,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.views.pipeline.placement import PLACEMENTS
from tests.views.drawn import artists, title

MS = Costs(18.522, 18.086, 9.337, 0.601)  # Zero Bubble (Qi et al., 2024), table 9: 1.5B, 8 stages, 24 microbatches
TIMES = 18.522, 18.086, 9.337, 0.601
PENDING = 32 * 2304 / (34 * 2304 + 5 * 24 * 1024)  # M_W / M_B of its section 2
WORK = 24 * (18.522 + 18.086 + 9.337)


@cache
def published():
    """Schedules by name; each figure of them is drawn once, and no test changes it."""
    made = {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2, "V-Half": v_half, "ZB-V": zb_v}
    found = {f"room {room}": zb_auto(8, 24, MS, room) for room in (16, 24)}
    return {name: make(8, 24) for name, make in made.items()} | found


@cache
def of_published(steps):
    return drawn(published(), steps)


def drawn(schedules, steps):
    return views.step_frontier(schedules, MS, three_arguments, on_rank_0, steps)


def rows(figure):
    """Kept, one step and steps in a row, by name."""
    lines = [line.rsplit(maxsplit=3) for line in repr(figure).split("\nno straight")[0].splitlines()[1:]]
    return {name: tuple(map(float, numbers)) for name, *numbers in lines}


def test_published_1_5b_one_step_1310_and_1237_in_a_row_1227_and_1153_and_zb_v_1189_within_8():
    figure = of_published("one step")
    assert rows(figure) == {
        "1F1B": (8, 1457, 1457),
        "ZB-H1": (8, 1310, 1310),
        "ZB-H2": (15, 1237, 1237),
        "V-Half": (5, 1352, 1352),
        "ZB-V": (8, 1189, 1189),
        "room 16": (16, 1237, 1227),
        "room 24": (24, 1237, 1153),
    }
    assert title(figure) == "One step: ZB-V keeps 8 and takes 1189 ms, ZB-H2 keeps 15 and takes 1237 ms"
    assert title(of_published("steps in a row")).endswith("room 24 keeps 24 and takes 1153 ms")


def test_three_chunks_take_1238_ms_and_keep_10_and_a_third_and_zb_v_takes_1189_and_keeps_8():
    made = {"2 chunks": interleaved_one_f_one_b(8, 24, 2), "3 chunks": interleaved_one_f_one_b(8, 24, 3)}
    found = rows(drawn(made | {"ZB-V": zb_v(8, 24)}, "one step"))
    # Megatron-LM's first rank begins with 2(p − 1) + (v − 1)p chunks and keeps one more: 23 halves, 31 thirds
    assert found["2 chunks"][:2] == (11.5, 1282)
    assert found["3 chunks"][:2] == (10.3, 1238)
    assert found["ZB-V"][:2] == (8, 1189)
    assert [round(three_arguments(8, 24, room, *TIMES)) for room in (10, 11)] == [1283, 1274]


def test_in_a_row_zb_1p_and_zb_2p_idle_as_in_table_5_15_85_and_4_33_percent():
    paper = {"ZB-1p": zb_h1(8, 24), "ZB-2p": zb_auto(8, 24, MS, MemoryLimit(16, pending=PENDING))}
    found = rows(drawn(paper, "steps in a row"))
    for name, idle in (("ZB-1p", 0.1585), ("ZB-2p", 0.0433)):
        assert 1 - WORK / found[name][2] == pytest.approx(idle, abs=5e-4)
    assert found["ZB-2p"][0] == 24  # counted whole, what the paper counts as 16


def test_with_messages_3_times_as_long_zb_v_takes_1237_and_room_for_16_1245_and_with_4_times_1262_and_1253():
    f, i, w, c = TIMES
    for times, expected in ((3, (1237, 1245)), (4, (1262, 1253))):
        straight, folded = Costs(f, i, w, times * c), Costs(f / 2, i / 2, w / 2, times * c)
        both = simulate(zb_v(8, 24), folded), simulate(zb_auto(8, 24, straight, memory_limit=16), straight)
        assert tuple(round(one.makespan) for one in both) == expected


def test_where_attention_keeps_no_matrix_32_of_34_stay_until_w_and_room_for_16_brings_1237_and_1227():
    timeline = simulate(zb_auto(8, 24, MS, MemoryLimit(16, pending=32 / 34)), MS)
    assert (round(timeline.makespan), round(timeline.longest_stage)) == (1237, 1227)


@pytest.mark.parametrize(
    ("p", "m", "costs", "h2", "zb_v_takes"),
    [
        (8, 32, Costs(29.802, 29.428, 19.530, 0.577), (2733, 2670), (2643, 2614)),  # 6.2B, table 9
        (16, 48, Costs(11.347, 11.248, 8.132, 0.377), (1651, 1581), (1587, 1556)),  # 14.6B
    ],
)
def test_with_longer_ws_zb_h2_and_zb_v_gain_in_a_row_and_the_v_stays_ahead(p, m, costs, h2, zb_v_takes):
    made = {"ZB-H2": zb_h2(p, m), "ZB-V": zb_v(p, m)}
    found = rows(views.step_frontier(made, costs, three_arguments, on_rank_0))
    assert (found["ZB-H2"][1:], found["ZB-V"][1:]) == (h2, zb_v_takes)


def test_unit_costs_p4_m8_zb_h2_27_in_one_step_and_24_in_a_row():
    figure = views.step_frontier({"ZB-H1": zb_h1(4, 8), "ZB-H2": zb_h2(4, 8)}, Costs(), three_arguments, on_rank_0)
    assert rows(figure) == {"ZB-H1": (4, 27, 27), "ZB-H2": (7, 27, 24)}


def test_a_step_in_a_row_takes_as_long_as_the_longest_stage():
    for name, (_, _, row) in rows(of_published("steps in a row")).items():
        chunks = published()[name].num_stages // 8
        costs = Costs(MS.forward / chunks, MS.backward_input / chunks, MS.backward_weight / chunks, MS.transfer)
        assert round(simulate(published()[name], costs).longest_stage) == row


@pytest.mark.parametrize("steps", ["one step", "steps in a row"])
def test_no_straight_schedule_is_in_the_grey_and_both_vs_are(steps):
    figure = of_published(steps)
    (grey,) = artists(figure, "impossible")
    path = grey.get_paths()[0]
    points = artists(figure, "points")
    assert len(points) == 7
    for point in points:
        ((kept, span),) = point.get_xydata().tolist()
        inside = path.contains_point((kept + 0.25, span + 0.5))
        assert inside == (point.get_color() == PLACEMENTS["V"]["color"])


def test_in_a_row_the_search_meets_the_grey_with_room_for_16_and_24_and_zb_v_is_113_ms_below_it():
    found = rows(of_published("steps in a row"))
    for name in ("room 16", "room 24"):
        kept, _, row = found[name]
        assert round(on_rank_0(8, 24, kept, *TIMES)) == row
    assert round(on_rank_0(8, 24, 8, *TIMES) - found["ZB-V"][2]) == 113
    assert on_rank_0(8, 24, 21, *TIMES) < found["ZB-V"][2] < on_rank_0(8, 24, 20, *TIMES)  # a straight one needs 21


def test_only_points_that_gain_in_a_row_leave_a_ring_where_they_were():
    assert artists(of_published("one step"), "one step") == []
    rings = artists(of_published("steps in a row"), "one step")
    assert [ring.get_xydata().round().tolist() for ring in rings] == [[[16, 1237]], [[24, 1237]]]
