"""Lesson 04b says what more tries of the search find than its own 250."""

from __future__ import annotations

import pytest

from parlab.pipeline import Costs, simulate, v_min, zb_auto


@pytest.mark.parametrize(
    ("transfer", "default", "found", "folded"), [(0, 44, 41, 29.5), (0.5, 58, 51, 48.5), (1, 72, 63, 67.5)]
)
def test_2000_tries_find_41_51_63_units_within_2_activations_and_v_min_takes_29_48_67(transfer, default, found, folded):
    costs = Costs(transfer=transfer)
    for tries, units in ((None, default), (2000, found)):
        assert simulate(zb_auto(4, 8, costs, 2, metric="makespan", tries=tries), costs).makespan == units
    assert simulate(v_min(4, 8), Costs(0.5, 0.5, 0.5, transfer=transfer)).makespan == folded
