"""Lesson 04b says how far the search comes, and that it is no proof."""

from __future__ import annotations

import pytest

from parlab.labs import by_a_pattern
from parlab.pipeline import (
    Costs,
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
        pytest.param(1, {2: 63, 3: 48, 4: 39}, marks=pytest.mark.slow),
    ],
)
def test_the_search_takes_no_more_than_the_lesson_says_and_no_less_than_the_bound(transfer, within):
    costs = Costs(transfer=transfer)
    for limit, most in within.items():
        assert lower_bound(4, 8, costs, memory_limit=limit) <= units(limit, costs) <= most


@pytest.mark.slow
def test_a_pattern_of_18_units_takes_79_within_4_where_4000_tries_of_the_search_find_95_and_the_bound_is_74():
    pattern = by_a_pattern()
    validate(pattern, 4)
    timeline = simulate(pattern)
    assert (timeline.makespan, max(timeline.peak_activations)) == (79, 4)
    searched = zb_auto(8, 16, memory_limit=4, tries=4000, metric="makespan")
    assert (lower_bound(8, 16, memory_limit=4), simulate(searched).makespan) == (74, 95)


@pytest.mark.parametrize(("transfer", "ahead"), [(0.5, True), (0.75, False)])
@pytest.mark.parametrize(("make", "room"), [pytest.param(v_min, 2, marks=pytest.mark.slow), (zb_v, 4)])
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
