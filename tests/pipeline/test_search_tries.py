"""Lesson 04b says how far the search comes, and that it is no proof."""

from __future__ import annotations

import random

import pytest

from parlab.labs import by_a_pattern
from parlab.pipeline import (
    Costs,
    best_schedule,
    lower_bound,
    simulate,
    v_min,
    validate,
    zb_auto,
    zb_v,
)


def units(limit, costs, tries=None):
    return simulate(zb_auto(4, 8, costs, limit, tries=tries, metric="makespan"), costs).makespan


@pytest.mark.parametrize(
    ("transfer", "within"),
    [
        (0, {2: 41, 3: 31, 4: 27}),
        pytest.param(0.5, {2: 51, 3: 39, 4: 33}, marks=pytest.mark.slow),
        (1, {2: 63, 3: 48, 4: 39}),
    ],
)
def test_the_search_takes_no_more_than_the_lesson_says_and_no_less_than_the_bound(transfer, within):
    costs = Costs(transfer=transfer)
    for limit, most in within.items():
        assert lower_bound(4, 8, costs, memory_limit=limit) <= units(limit, costs) <= most


def test_a_pattern_of_18_units_takes_79_within_4_where_4000_tries_of_the_search_find_95_and_the_bound_is_74():
    pattern = by_a_pattern()
    validate(pattern, 4)
    timeline = simulate(pattern)
    assert (timeline.makespan, max(timeline.peak_activations)) == (79, 4)
    searched = zb_auto(8, 16, memory_limit=4, tries=4000, metric="makespan")
    assert (lower_bound(8, 16, memory_limit=4), simulate(searched).makespan) == (74, 95)


@pytest.mark.slow
def test_after_1000_tries_the_search_stands_at_41_and_19_000_more_find_nothing():
    assert [units(2, Costs(), tries) for tries in (0, 1000, 20_000)] == [51, 41, 41]


@pytest.mark.parametrize(("transfer", "ahead"), [(0.5, True), (0.75, False)])
@pytest.mark.parametrize(("make", "room"), [(v_min, 2), (zb_v, 4)])
def test_v_min_and_zb_v_are_ahead_of_straight_stages_up_to_half_and_behind_from_three_quarters_on(
    transfer, ahead, make, room
):
    folded = simulate(make(4, 8), Costs(0.5, 0.5, 0.5, transfer=transfer)).makespan
    assert (folded < units(room, Costs(transfer=transfer))) == ahead


def below_every_straight(make, p, m, room, transfer=1):
    folded = simulate(make(p, m), Costs(0.5, 0.5, 0.5, transfer)).makespan
    return folded < lower_bound(p, m, Costs(transfer=transfer), memory_limit=room)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_with_more_than_3p_microbatches_zb_v_is_below_every_straight_schedule_at_a_transfer_of_1(p):
    """The fold's longer way is filled and drained once; in between a place on it is free again sooner."""
    assert not below_every_straight(zb_v, p, 2 * p, p)
    assert all(below_every_straight(zb_v, p, m, p) for m in (3 * p + 1, 4 * p, 5 * p - 1, 10 * p))


def test_at_a_transfer_of_1_v_min_is_below_every_straight_schedule_from_19_microbatches_on_and_at_2_it_is_not():
    assert [m for m in range(8, 40) if not below_every_straight(v_min, 4, m, 2)] == [8, 10, 12, 14, 16, 18]
    assert not any(below_every_straight(v_min, 4, m, 2, transfer=2) for m in (32, 62, 63))


def test_at_a_transfer_of_1_four_microbatches_more_cost_zb_v_12_units_and_straight_stages_15():
    folded = [simulate(zb_v(4, m), Costs(0.5, 0.5, 0.5, 1)).makespan for m in (8, 12, 16, 32)]
    straight = [lower_bound(4, m, Costs(transfer=1), memory_limit=4) for m in (8, 12, 16, 32)]
    assert [after - folded[0] for after in folded[1:]] == [12, 24, 72]
    assert [after - straight[0] for after in straight[1:]] == [15, 30, 90]


def test_at_a_transfer_of_1_four_microbatches_more_cost_v_min_28_units_and_straight_stages_30():
    folded = [simulate(v_min(4, m), Costs(0.5, 0.5, 0.5, 1)).makespan for m in (8, 12, 16, 32)]
    straight = [lower_bound(4, m, Costs(transfer=1), memory_limit=2) for m in (8, 12, 16, 32)]
    assert [after - folded[0] for after in folded[1:]] == [28, 56, 168]
    assert [after - straight[0] for after in straight[1:]] == [30, 60, 180]


@pytest.mark.slow
@pytest.mark.parametrize(("transfer", "units_of_all"), [(0, 41), (1, 63)])
def test_six_seeds_of_the_search_end_at_the_same_makespan(monkeypatch, transfer, units_of_all):
    numbers = random.Random
    found = set()
    for seed in range(6):
        monkeypatch.setattr("parlab.pipeline.search.local.random.Random", lambda _, seed=seed: numbers(seed))
        found.add(units(2, Costs(transfer=transfer)))
    assert found == {units_of_all}


def first_wait_of_rank_0(p, m, f, i, w, c, limit):
    """Rank 0 has no I before p F's, p - 1 I's and 2(p - 1) transfers; till then it can do `limit` F's. A bound."""
    return p * f + (p - 1) * (i + 2 * c) + m * (f + i + w) - min(limit, m) * f


def last_wait_of_the_last_rank(p, m, f, i, w, c, limit):
    """Its last F needs all but `limit` W's before it; after its last I, p - 1 more and a W have to come. A bound."""
    return (p - 1) * (f + c) + m * (f + i) + max(m - limit, 0) * w + (p - 1) * (i + c) + w


LONG_I = [(1, 2, 1), (1, 2, 2), (1, 2, 3), (2, 2, 1), (1, 1, 0.5), (2, 3, 1)]


@pytest.mark.parametrize("times", LONG_I)
def test_on_free_messages_room_above_p_buys_time_where_i_takes_longer_than_f_or_than_w(times):
    costs = Costs(*times)
    for limit in (4, 8):
        assert lower_bound(4, 8, costs, memory_limit=limit) == units(limit, costs)
    assert units(8, costs) < units(4, costs)


@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 1, 3), (3, 2, 2)])
def test_and_nothing_where_i_takes_no_longer_than_both(times):
    f, i, w = times
    for limit in (4, 8):
        assert units(limit, Costs(*times)) == 3 * f + 8 * (f + i + w)  # the last rank's own


@pytest.mark.parametrize(
    ("stages", "spans"),
    [
        ([9, 9, 8, 8.4], (239.8, 230.8, 227.6, 227.6)),
        ([9, 8, 8, 8], (237, 228, 219, 217)),
        ([5, 5, 4, 4], (131, 126, 125, 125)),
    ],
)
def test_on_uneven_stages_room_above_p_buys_time_where_an_early_one_is_slower_than_the_last(stages, spans):
    costs = Costs(stages, stages, stages)
    assert [units(limit, costs) for limit in (4, 5, 6, 7)] == pytest.approx(spans)
    assert [lower_bound(4, 8, costs, memory_limit=limit) for limit in (4, 5)] == pytest.approx(spans[:2])
    assert lower_bound(4, 8, costs, memory_limit=7) == pytest.approx(spans[3])


@pytest.mark.parametrize("stages", [[8, 8, 8, 10.4], [9, 9, 8, 9], [8, 8.8, 8, 8.9], [7, 8, 8, 9], [1, 1, 1, 2]])
def test_and_nothing_where_the_last_is_the_slowest(stages):
    costs = Costs(stages, stages, stages)
    last = sum(stages[:3]) + 8 * 3 * stages[3]
    assert units(4, costs) == pytest.approx(last) == lower_bound(4, 8, costs, memory_limit=8)


def test_with_i_of_2_each_place_from_4_to_7_is_a_forward_in_the_first_wait_of_rank_0():
    costs = Costs(1, 2, 1)
    assert [units(limit, costs) for limit in (4, 5, 6, 7, 8)] == [38, 37, 36, 35, 35]
    for limit in (4, 5, 6, 7):
        assert first_wait_of_rank_0(4, 8, 1, 2, 1, 0, limit) == units(limit, costs)


@pytest.mark.parametrize(("times", "places"), [((1, 2, 1, 0), 7), ((1, 1, 1, 1), 7), ((1, 1, 1, 0), 4)])
def test_7_7_and_4_places_reach_the_last_ranks_own_time(times, places):
    f, i, w, c = times
    assert places == 1 + 3 * (i + c) / f
    own = 3 * (f + c) + 8 * (f + i + w)
    assert units(places, Costs(*times)) == own < first_wait_of_rank_0(4, 8, *times, places - 1)


def test_with_w_of_half_each_place_from_4_to_7_is_a_w_that_the_last_rank_has_left_at_its_end():
    costs = Costs(1, 1, 0.5)
    assert [units(limit, costs) for limit in (4, 5, 6, 7, 8)] == [24.5, 24, 23.5, 23, 23]
    for limit in (4, 5, 6, 7):
        assert last_wait_of_the_last_rank(4, 8, 1, 1, 0.5, 0, limit) == units(limit, costs)


@pytest.mark.parametrize("seed", range(12))
def test_the_first_wait_of_rank_0_and_the_last_of_the_last_rank_are_bounds_of_every_schedule(seed):
    draw = random.Random(seed)
    p, m = draw.randint(2, 3), draw.randint(1, 4)
    f, i, w, c = (draw.randint(1, 4) for _ in range(4))
    for limit in range(1, m + 1):
        shortest = simulate(best_schedule(p, m, Costs(f, i, w, c), limit), Costs(f, i, w, c)).makespan
        for bound in (first_wait_of_rank_0, last_wait_of_the_last_rank):
            assert bound(p, m, f, i, w, c, limit) <= shortest


@pytest.mark.parametrize("m", [8, 12, 16, 24])
def test_with_2_places_a_v_starts_a_microbatch_every_3_units_and_no_straight_schedule_more_often_than_every_4(m):
    more, less = (simulate(v_min(4, number), Costs(0.5, 0.5, 0.5)) for number in (m + 4, m))
    assert (more.makespan - less.makespan, max(more.peak_activations)) == (4 * 3, 2 * 2)  # two chunks are one place
    assert lower_bound(4, m + 4, memory_limit=2) - lower_bound(4, m, memory_limit=2) > 4 * 4


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_at_a_transfer_of_1_rank_0_waits_again_after_its_first_i_until_it_has_room_for_7(limit):
    def waits_after_the_first_i(room):
        steps = simulate(zb_auto(4, 8, Costs(transfer=1), room, metric="makespan"), Costs(transfer=1)).steps(0)
        later = [step for step in steps if step.start >= next(s.start for s in steps if s.actions[0].kind == "I")]
        return later[-1].end - later[0].start - sum(step.end - step.start for step in later)

    assert waits_after_the_first_i(limit) > 0 == waits_after_the_first_i(7)
    bounds = [lower_bound(4, 8, Costs(transfer=1), memory_limit=room) for room in (limit, limit + 1)]
    assert bounds[0] - bounds[1] == 2  # one by each of the two waits
