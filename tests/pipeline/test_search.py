"""Schedules found by search: the paper's rows, the limit kept, the time never worse than without the search."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Action,
    Costs,
    MemoryLimit,
    Schedule,
    lower_bound,
    one_f_one_b,
    simulate,
    v_controlled,
    v_half,
    v_min,
    validate,
    zb_auto,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.pipeline.search import straight
from parlab.pipeline.search.local import improve
from parlab.pipeline.search.weights import Filler
from tests.pipeline.models import INPUTS

# Zero Bubble (Qi et al., 2024), Table 5: limits of p and 2p activations, of which a part stays between I and W

ROWS = {  # (M_W / M_B = 32h / (34h + 5as) with the models' h and a of its Table 3 and s = 1024, ZB-1p, ZB-2p)
    "1.5B p8 m24": (32 * 2304 / (34 * 2304 + 5 * 24 * 1024), ".1585", ".0433"),
    "1.5B p8 m64": (32 * 2304 / (34 * 2304 + 5 * 24 * 1024), ".0674", ".0026"),
    "6.2B p8 m32": (32 * 4096 / (34 * 4096 + 5 * 32 * 1024), ".1045", ".0022"),
    "14.6B p16 m48": (32 * 5120 / (34 * 5120 + 5 * 40 * 1024), ".1397", ".0066"),
}
CELLS = [(model, times, row[times]) for model, row in ROWS.items() for times in (1, 2)]


@pytest.mark.parametrize(
    ("model", "times", "bubble"), CELLS, ids=[f"{model} ZB-{times}p {bubble}" for model, times, bubble in CELLS]
)
def test_zero_bubble_table_5_reached_within_p_and_2p_activations(model, times, bubble):
    """By the heuristic alone, but for one."""
    tries = None if bubble == ".0433" else 0
    p, m, _, f, i, w, c = INPUTS[model]
    costs, limit = Costs(f, i, w, c), MemoryLimit(times * p, pending=ROWS[model][0])
    schedule = zb_auto(p, m, costs, limit, tries=tries)
    validate(schedule, limit)
    assert round(simulate(schedule, costs).bubble_fraction("longest_stage"), 4) <= float(bubble)


@pytest.mark.slow
def test_zb_2p_of_28_3b_p32_m256_is_0_0018_as_published_where_the_bound_is():
    """Rank 1 stays two forwards behind rank 0, whose memory is full: the last gradients then come in time."""
    costs, limit = Costs(10.402, 10.248, 7.698, 0.460), MemoryLimit(64, pending=ROWS["14.6B p16 m48"][0])
    schedule = zb_auto(32, 256, costs, limit, tries=0)
    assert round(simulate(schedule, costs).bubble_fraction("longest_stage"), 4) <= 0.0018
    assert simulate(schedule, costs).longest_stage == pytest.approx(
        lower_bound(32, 256, costs, limit, metric="longest_stage"), rel=1e-9
    )


@pytest.mark.parametrize("model", INPUTS)
def test_zb_1p_is_reached_also_where_a_w_keeps_the_whole_activation(model):
    p, m, _, f, i, w, c = INPUTS[model]
    schedule = zb_auto(p, m, Costs(f, i, w, c), p, tries=0)
    validate(schedule, memory_limit=p)
    assert max(simulate(schedule).peak_activations) == p
    bubble = simulate(schedule, Costs(f, i, w, c)).bubble_fraction("longest_stage")
    assert round(bubble, 4) <= float(ROWS[model][1])


@pytest.mark.parametrize(("model", "below"), [("1.5B p8 m24", 0.10), ("1.5B p8 m64", 0.04), ("6.2B p8 m32", 0.04)])
def test_zb_2p_is_out_of_reach_where_a_w_keeps_the_whole_activation(model, below):
    """The last rank must then do m − 2p of its W's before its last forward, and the others wait for what follows."""
    p, m, _, f, i, w, c = INPUTS[model]
    least = lower_bound(p, m, Costs(f, i, w, c), 2 * p, metric="longest_stage")
    assert 1 - m * (f + i + w) / least > below > float(ROWS[model][2])


# Any sizes, costs and limits

UNEVEN = st.lists(st.integers(1, 9), min_size=8, max_size=8)
LIMITS = st.one_of(
    st.none(), st.integers(1, 20), st.builds(MemoryLimit, st.integers(8, 40), st.integers(4, 8), st.integers(0, 4))
)


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 12), UNEVEN, UNEVEN, UNEVEN, st.integers(0, 3), LIMITS, st.booleans())
def test_zb_auto_keeps_the_limit_and_is_not_below_the_bound(p, m, f, i, w, c, limit, by_makespan):
    costs = Costs(f[:p], i[:p], w[:p], c)
    metric = "makespan" if by_makespan else "longest_stage"
    schedule = zb_auto(p, m, costs, limit, tries=20, metric=metric)
    validate(schedule, limit)
    assert getattr(simulate(schedule, costs), metric) >= lower_bound(p, m, costs, limit, metric=metric)


@settings(max_examples=20)
@example(3, 0, [3, 6, 5], [2, 5, 4], [1, 2, 1], [3, 1, 0])  # its own heuristic is longer than ZB-H2
@given(st.integers(1, 6), st.integers(0, 9), UNEVEN, UNEVEN, UNEVEN, st.integers(0, 3))
def test_zb_auto_is_never_longer_than_zb_h1_with_p_nor_than_zb_h2_with_2p_minus_1(p, more, f, i, w, c):
    costs = Costs(f[:p], i[:p], w[:p], c)
    for make, limit in ((zb_h1, p), (zb_h2, 2 * p - 1)):
        found = simulate(zb_auto(p, p + more, costs, limit, tries=0), costs).longest_stage
        assert found <= simulate(make(p, p + more), costs).longest_stage


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 12), st.lists(st.integers(1, 9), min_size=12, max_size=12), st.integers(2, 14))
def test_v_controlled_keeps_any_limit_from_2_chunks_on(p, m, f, limit):
    costs = Costs(f[: 2 * p], 2, 1, 1)
    schedule = v_controlled(p, m, costs, limit, tries=5)
    validate(schedule, limit)
    assert simulate(schedule, costs).makespan >= lower_bound(p, m, costs, limit, like=schedule)
    validate(v_controlled(p, m, costs, MemoryLimit(4 * limit, 4, 2), tries=5), MemoryLimit(4 * limit, 4, 2))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (6, 12), (8, 16)])
def test_v_controlled_is_no_worse_than_the_published_block_of_the_same_peak_and_equals_zb_v_at_2p(p, m):
    for make in (v_min, v_half, zb_v):
        published = simulate(make(p, m))
        found = simulate(v_controlled(p, m, memory_limit=max(published.peak_activations), tries=0))
        assert found.makespan <= published.makespan


def test_more_memory_never_costs_time_on_the_frontier_of_v_controlled_p4_m8():
    spans = [simulate(v_controlled(4, 8, memory_limit=limit, tries=200)).makespan for limit in (2, 6, 10)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == 6 * 8 + 4 - 1


@pytest.mark.parametrize(("limit", "m", "span"), [([7, 3, 3, 3], 12, 40), ([8, 4, 2, 2], 8, 29)])
def test_within_limits_that_differ_by_rank_the_heuristic_alone_reaches_the_bound_of_40_and_29(limit, m, span):
    schedule = zb_auto(4, m, memory_limit=limit, tries=0)
    validate(schedule, limit)
    assert simulate(schedule).longest_stage == span == lower_bound(4, m, memory_limit=limit, metric="longest_stage")


def test_zb_auto_keeps_each_ranks_own_limit_where_a_middle_one_or_the_first_is_the_least():
    for limit in ([2, 5, 3, 9], [3, 3, 3, 7], [9, 2, 5, 1]):
        validate(zb_auto(4, 8, memory_limit=limit, tries=0), limit)


# Local search


def test_a_search_that_starts_at_the_bound_ends_before_its_billion_tries():
    start = zb_h1(1, 4)
    assert improve(start, Costs(), None, 10**9, "longest_stage") == start


def test_by_makespan_the_shortest_start_is_taken_which_meets_the_bound_of_81_before_any_try():
    costs = Costs(3, 2, 6, 2)
    found = zb_auto(4, 6, costs, 8, tries=0, metric="makespan")  # the one with the shortest longest stage takes 82
    assert simulate(found, costs).makespan == lower_bound(4, 6, costs, 8) == 81


@pytest.mark.parametrize("metric", ["makespan", "longest_stage"])
@pytest.mark.parametrize("start", [zb_h1(4, 8), v_min(3, 6)], ids=["zb_h1", "v_min"])
def test_a_search_with_uneven_costs_is_shorter_than_its_start(start, metric):
    costs = Costs([3, 1, 2, 4, 1, 2][: start.num_stages], 2, 2, 1)
    found = improve(start, costs, None, 150, metric)
    validate(found)
    assert getattr(simulate(found, costs), metric) < getattr(simulate(start, costs), metric)


def test_zb_auto_p3_m40_fills_the_first_round_trip_with_18_and_11_forwards_and_idles_0_of_120():
    """F = I = W = 1. The transfers take 2 and 3 on the way there, 5 and 3 on the way back. The first I reaches rank 1
    at 14, which forwards from 3 on, and rank 0 at 18."""
    costs = Costs(1, 1, 1, [2, 3, 5])
    schedule = zb_auto(3, 40, costs, tries=0)
    assert [[action.kind for action in row].index("I") for row in schedule.actions] == [18, 11, 1]
    assert simulate(schedule, costs).longest_stage == 3 * 40


def test_forwards_fill_the_wait_for_the_first_gradient_on_uneven_stages_11_5_and_1_or_two_ahead_5_3_and_1():
    """Rank 2 ends its first forward at 2 + 1 + 3 + 2 + 4 = 12 and its I at 15, which reaches rank 1 at 18. Rank 1 has
    time for 4 forwards from 6 on, ends its I at 20, and rank 0, which is free from 2 on, has it at 22."""
    costs = Costs([2, 3, 4], [1, 2, 3], 1, [1, 2, 3])
    rule = {"may_delay": False, "behind_full": 1}
    assert straight._warmups(costs, [99] * 3, step=99, **rule) == (11, 5, 1)
    assert straight._warmups(costs, [99] * 3, step=2, **rule) == (5, 3, 1)
    assert straight._warmups(costs, [4] * 3, step=99, **rule) == (4, 3, 1)
    for fits in ([4] * 3, [4, 9, 9]):
        assert straight._warmups(costs, fits, step=99, may_delay=False, behind_full=2) == (4, 2, 1)


@pytest.mark.parametrize("metric", ["makespan", "longest_stage"])
def test_the_cost_of_pairs_changes_no_time_of_a_search(metric):
    plain, pairs, start = Costs(3, 2, 2, 1), Costs(3, 2, 2, 1, pair=4), zb_h1(4, 8)
    assert improve(start, pairs, None, 60, metric) == improve(start, plain, None, 60, metric)
    assert zb_auto(4, 8, pairs, 5, tries=20, metric=metric) == zb_auto(4, 8, plain, 5, tries=20, metric=metric)


def test_the_filler_reports_the_simulated_times():
    costs = Costs([3, 1, 2, 4], [2, 2, 1, 3], 2, [0, 5, 1, 3])
    rows = [[action for action in row if action.kind != "W"] for row in zb_h1(4, 8).actions]
    for eager, patient in product((0, 2, 7), (False, True)):
        filled = Filler(rows, costs, None)(rows, [eager] * 4, patient=patient)
        timeline = simulate(Schedule(filled.rows), costs)
        assert (filled.makespan, filled.longest_stage) == (timeline.makespan, timeline.longest_stage)


def test_a_message_travels_for_the_transfer_of_the_stage_that_it_leaves():
    rows = [[action for action in row if action.kind != "W"] for row in zb_h1(3, 3).actions]
    planned = Filler(rows, Costs(transfer=[2, 3, 5]), None).planned
    assert [planned[Action("F", stage, 0)].travel for stage in range(3)] == [0, 2, 3]
    assert [planned[Action("I", stage, 0)].travel for stage in range(3)] == [3, 5, 0]


def test_a_limit_may_be_an_array_as_costs_may():
    assert validate(one_f_one_b(2, 2), np.array([2, 2])) == validate(one_f_one_b(2, 2), [2, 2])
    assert MemoryLimit(np.array([2, 1])) == MemoryLimit([2, 1])
