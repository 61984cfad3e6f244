"""Schedules found by search: the paper's rows, the limit kept, the time never worse than without the search."""

import math
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Action,
    Costs,
    Schedule,
    lower_bound,
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
from tests.pipeline.limits import validate_within
from tests.pipeline.models import INPUTS

# Zero Bubble (Qi et al., 2024), table 5: the idle part of ZB-1p and ZB-2p, within p and 2p activations. There only a
# part of each stays between I and W, here all of it

ROWS = {
    "1.5B p8 m24": (0.1585, 0.0433),
    "1.5B p8 m64": (0.0674, 0.0026),
    "6.2B p8 m32": (0.1045, 0.0022),
    "14.6B p16 m48": (0.1397, 0.0066),
}


@pytest.mark.parametrize("model", INPUTS)
def test_zb_1p_of_table_5_is_reached_by_the_heuristic_alone_within_p_whole_activations(model):
    p, m, _, f, i, w, c = INPUTS[model]
    schedule = zb_auto(p, m, Costs(f, i, w, c), p, tries=0)
    validate_within(schedule, p)
    assert max(simulate(schedule).peak_activations) == p
    bubble = simulate(schedule, Costs(f, i, w, c)).bubble_fraction("longest_stage")
    assert round(bubble, 4) <= ROWS[model][0]


@pytest.mark.parametrize("model", ["1.5B p8 m24", "14.6B p16 m48"])
def test_zb_2p_of_table_5_is_reached_by_the_heuristic_alone_within_3p_whole_activations(model):
    p, m, _, f, i, w, c = INPUTS[model]
    schedule = zb_auto(p, m, Costs(f, i, w, c), 3 * p, tries=0)
    validate_within(schedule, 3 * p)
    assert round(simulate(schedule, Costs(f, i, w, c)).bubble_fraction("longest_stage"), 4) <= ROWS[model][1]


@pytest.mark.slow
def test_within_2p_of_28_3b_p32_m256_the_heuristic_alone_is_on_the_bound():
    """Rank 1 stays two forwards behind rank 0, whose memory is full: the last gradients then come in time."""
    costs = Costs(10.402, 10.248, 7.698, 0.460)
    found = simulate(zb_auto(32, 256, costs, 64, tries=0), costs).longest_stage
    assert found == pytest.approx(lower_bound(32, 256, costs, 64, metric="longest_stage"), rel=1e-9)


@pytest.mark.parametrize(("model", "below"), [("1.5B p8 m24", 0.10), ("1.5B p8 m64", 0.04), ("6.2B p8 m32", 0.04)])
def test_zb_2p_is_out_of_reach_where_a_w_keeps_the_whole_activation(model, below):
    """The last rank must then do m − 2p of its W's before its last forward, and the others wait for what follows."""
    p, m, _, f, i, w, c = INPUTS[model]
    least = lower_bound(p, m, Costs(f, i, w, c), 2 * p, metric="longest_stage")
    assert 1 - m * (f + i + w) / least > below > ROWS[model][1]


# Any sizes, costs and limits

FREE = [math.inf] * 4  # limits of four ranks

UNEVEN = st.lists(st.integers(1, 9), min_size=8, max_size=8)
LIMITS = st.none() | st.integers(1, 20)


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 12), UNEVEN, UNEVEN, UNEVEN, st.integers(0, 3), LIMITS, st.booleans())
def test_zb_auto_keeps_the_limit_and_is_not_below_the_bound(p, m, f, i, w, c, limit, by_makespan):
    costs = Costs(f[:p], i[:p], w[:p], c)
    metric = "makespan" if by_makespan else "longest_stage"
    schedule = zb_auto(p, m, costs, limit, tries=20, metric=metric)
    validate_within(schedule, limit)
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
    validate_within(schedule, limit)
    assert simulate(schedule, costs).makespan >= lower_bound(p, m, costs, limit, like=schedule)


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
    validate_within(schedule, limit)
    assert simulate(schedule).longest_stage == span == lower_bound(4, m, memory_limit=limit, metric="longest_stage")


def test_zb_auto_keeps_each_ranks_own_limit_where_a_middle_one_or_the_first_is_the_least():
    for limit in ([2, 5, 3, 9], [3, 3, 3, 7], [9, 2, 5, 1]):
        validate_within(zb_auto(4, 8, memory_limit=limit, tries=0), limit)


# Local search


def test_a_search_that_starts_at_the_bound_ends_before_its_billion_tries():
    start = zb_h1(1, 4)
    assert improve(start, Costs(), [math.inf], 10**9, "longest_stage") == start


def test_by_makespan_the_shortest_start_is_taken_which_meets_the_bound_of_81_before_any_try():
    costs = Costs(3, 2, 6, 2)
    found = zb_auto(4, 6, costs, 8, tries=0, metric="makespan")  # the one with the shortest longest stage takes 82
    assert simulate(found, costs).makespan == lower_bound(4, 6, costs, 8) == 81


@pytest.mark.parametrize("metric", ["makespan", "longest_stage"])
@pytest.mark.parametrize("start", [zb_h1(4, 8), v_min(3, 6)], ids=["zb_h1", "v_min"])
def test_a_search_with_uneven_costs_is_shorter_than_its_start(start, metric):
    costs = Costs([3, 1, 2, 4, 1, 2][: start.num_stages], 2, 2, 1)
    found = improve(start, costs, [math.inf] * start.num_ranks, 150, metric)
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
    assert improve(start, pairs, FREE, 60, metric) == improve(start, plain, FREE, 60, metric)
    assert zb_auto(4, 8, pairs, 5, tries=20, metric=metric) == zb_auto(4, 8, plain, 5, tries=20, metric=metric)


def test_the_filler_reports_the_simulated_times():
    costs = Costs([3, 1, 2, 4], [2, 2, 1, 3], 2, [0, 5, 1, 3])
    rows = [[action for action in row if action.kind != "W"] for row in zb_h1(4, 8).actions]
    for eager, patient in product((0, 2, 7), (False, True)):
        filled = Filler(rows, costs, FREE)(rows, [eager] * 4, patient=patient)
        timeline = simulate(Schedule(filled.rows), costs)
        assert (filled.makespan, filled.longest_stage) == (timeline.makespan, timeline.longest_stage)


def test_a_message_travels_for_the_transfer_of_the_stage_that_it_leaves():
    rows = [[action for action in row if action.kind != "W"] for row in zb_h1(3, 3).actions]
    planned = Filler(rows, Costs(transfer=[2, 3, 5]), FREE[:3]).planned
    assert [planned[Action("F", stage, 0)].travel for stage in range(3)] == [0, 2, 3]
    assert [planned[Action("I", stage, 0)].travel for stage in range(3)] == [3, 5, 0]
