"""Limits that are no whole numbers: whoever compares with them agrees on how many chunks fit."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Costs,
    MemoryLimit,
    best_schedule,
    gpipe,
    lower_bound,
    one_f_one_b,
    simulate,
    v_controlled,
    validate,
    zb_auto,
)

THREE_OF_A_TENTH = MemoryLimit(0.3, 0.1)


def test_3_chunks_of_a_tenth_fit_into_3_tenths_and_4_do_not():
    validate(one_f_one_b(3, 4), THREE_OF_A_TENTH)
    with pytest.raises(ValueError, match=r"rank 0 keeps 0\.4 activations at 0F3 \(action 3\), but its limit is 0\.3"):
        validate(one_f_one_b(4, 4), THREE_OF_A_TENTH)


def test_the_best_of_p3_m4_within_3_tenths_is_valid_and_the_best_within_3():
    schedule = best_schedule(3, 4, memory_limit=THREE_OF_A_TENTH)
    validate(schedule, THREE_OF_A_TENTH)
    assert simulate(schedule).makespan == simulate(best_schedule(3, 4, memory_limit=3)).makespan


@pytest.mark.parametrize(
    ("chunks", "same"),
    [
        (3, THREE_OF_A_TENTH),
        (5, MemoryLimit([0.5] * 4, 0.1)),
        (6, MemoryLimit(Fraction(6, 7), Fraction(1, 7))),
    ],
)
def test_decimal_limits_give_the_schedules_and_bounds_of_the_same_number_of_chunks(chunks, same):
    p, m = 4, 8
    for search in (zb_auto, v_controlled):
        expected, found = (search(p, m, Costs(2, 2, 1, 1), limit, tries=10) for limit in (chunks, same))
        assert found == expected
        validate(found, same)
    for metric in ("makespan", "longest_stage"):
        bounds = [lower_bound(p, m, memory_limit=limit, metric=metric) for limit in (chunks, same)]
        assert bounds[0] == bounds[1]


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 999), st.integers(1, 999), st.integers(1, 999))
def test_validate_accepts_exactly_the_chunks_that_fit_by_fractions(chunks, whole, unit, more):
    """`chunks` chunks of whole/unit fit into their sum and a bit, and not into less by 1 in 10⁶."""
    each, total = whole / unit, float(Fraction(whole, unit) * chunks)
    gpipe_of = gpipe(1, chunks)
    validate(gpipe_of, MemoryLimit(total, each))
    validate(gpipe_of, MemoryLimit(total * (1 + more / 1000), each))
    with pytest.raises(ValueError, match="its limit is"):
        validate(gpipe_of, MemoryLimit(total * (1 - 1e-6), each))


def test_whole_numbers_and_fractions_are_compared_exactly():
    most = 10**18
    validate(gpipe(1, 3), MemoryLimit(3 * most, most))
    with pytest.raises(ValueError, match="but its limit is"):
        validate(gpipe(1, 3), MemoryLimit(3 * most - 1, most))
    with pytest.raises(ValueError, match="but its limit is"):
        validate(gpipe(1, 3), MemoryLimit(Fraction(3 * most - 1), Fraction(most)))
    assert MemoryLimit(7).of_ranks(1) == [7]


def test_limits_that_differ_by_rank_are_kept_on_the_v():
    validate(v_controlled(4, 8, memory_limit=[8, 8, 3, 8], tries=5), [8, 8, 3, 8])
