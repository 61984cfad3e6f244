"""Memory limits: chunks a rank, of which only whole ones fit."""

import numpy as np
import pytest

from parlab.pipeline import (
    Costs,
    best_schedule,
    gpipe,
    lower_bound,
    one_f_one_b,
    simulate,
    v_controlled,
    zb_auto,
    zb_h1,
)
from tests.pipeline.limits import most_kept, validate_within

ALIKE = 3.9, [3.5, 3, 3.999, 3], np.array([3, 3, 3, 3]), np.array([3.1] * 4)  # whole numbers of these are 3


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1])
def test_what_is_counted_along_the_actions_is_the_simulated_peak(make):
    assert most_kept(make(5, 9)) == simulate(make(5, 9)).peak_activations


@pytest.mark.parametrize("same", ALIKE, ids=str)
def test_limits_between_whole_numbers_and_arrays_give_the_schedules_and_bounds_of_3_chunks(same):
    costs = Costs(2, 2, 1, 1)
    for search in (zb_auto, v_controlled):
        assert search(4, 8, costs, same, tries=10) == search(4, 8, costs, 3, tries=10)
    for metric in ("makespan", "longest_stage"):
        bounds = [lower_bound(4, 8, costs, limit, metric=metric) for limit in (3, same)]
        assert bounds[0] == bounds[1]
    assert best_schedule(3, 4, costs, 2.5) == best_schedule(3, 4, costs, 2)


def test_limits_that_differ_by_rank_are_kept_on_the_v():
    validate_within(v_controlled(4, 8, memory_limit=[8, 8, 3, 8], tries=5), [8, 8, 3, 8])
