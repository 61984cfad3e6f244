"""Schedules on a V: the published peaks and bubbles, and what two chunks a rank keep."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import Costs, Schedule, one_f_one_b_v, simulate, v_half, v_min, validate, zb_v

BLOCKS = {  # bubble by makespan at F = I = W, peak in chunks: Controllable Memory (Qi et al., 2024)
    "V-Half p4 m8": (v_half, 4, 8, ".0943", 6),
    "V-Half p8 m32": (v_half, 8, 32, ".0813", 10),
    "V-Min p4 m8": (v_min, 4, 8, ".1864", 4),
    "V-Min p8 m32": (v_min, 8, 32, ".1233", 8),
}


@pytest.mark.parametrize("row", BLOCKS, ids=[f"{name} bubble {row[3]} peak {row[4]}" for name, row in BLOCKS.items()])
def test_controllable_memory_bubble_reached_and_peak_exact(row):
    make, p, m, bubble, peak = BLOCKS[row]
    timeline = simulate(make(p, m))
    assert round(timeline.bubble_fraction(), 4) <= float(bubble)
    assert max(timeline.peak_activations) == peak


def test_v_min_of_6_ranks_takes_89_slots_for_12_microbatches_as_no_i_waits_behind_ws_at_the_end():
    assert simulate(v_min(6, 12)).makespan <= 89


@settings(max_examples=8)
@given(st.integers(2, 10), st.data())
def test_peaks_of_v_half_are_p_plus_2_or_1_and_of_v_min_2_thirds_of_p_plus_4(p, data):
    m = data.draw(st.integers(p + 4, 3 * p + 4))
    assert max(simulate(v_half(p, m)).peak_activations) == (p + 2 if p % 2 == 0 else p + 1)
    assert max(simulate(v_min(p, m)).peak_activations) == max(4, 2 * ((p + 4) // 3))


@settings(max_examples=30)
@given(st.integers(1, 12), st.data())
def test_zb_v_idles_0_slots_by_longest_stage_and_p_minus_1_by_makespan_and_keeps_2p(p, data):
    m = data.draw(st.integers(2 * p - 1, 5 * p))
    timeline = simulate(zb_v(p, m))
    assert (timeline.longest_stage, timeline.makespan) == (6 * m, 6 * m + p - 1)
    assert timeline.peak_activations == [min(2 * p, 2 * m)] * p


def test_zb_v_of_6_ranks_runs_4_microbatches_in_35_slots_without_the_waits_of_a_longer_run():
    """Its W's then stand behind its last I's; in the order of 11 microbatches the first 4 take 38."""
    assert simulate(zb_v(6, 4)).makespan == 35
    for p in range(1, 9):
        for m in range(1, p + 1):
            validate(zb_v(p, m), memory_limit=2 * m)
            longer = Schedule([[a for a in row if a.microbatch < m] for row in zb_v(p, 2 * p - 1).actions])
            assert simulate(zb_v(p, m)).makespan <= simulate(longer).makespan


@settings(max_examples=15)
@given(st.integers(2, 10), st.data())
def test_1f1b_v_keeps_2_thirds_of_2p_chunks_and_2_more_and_never_idles_longer_than_1f1b(p, data):
    m = data.draw(st.integers(2 * p, 3 * p))
    timeline = simulate(one_f_one_b_v(p, m))
    assert max(timeline.peak_activations) == 2 * (2 * p // 3 + 1)
    assert timeline.makespan - 6 * m < 6 * (p - 1)


@settings(max_examples=60)
@given(st.sampled_from([zb_v, v_half, v_min, one_f_one_b_v]), st.integers(1, 8), st.integers(1, 20))
def test_any_number_of_microbatches_runs_on_the_v(make, p, m):
    schedule = make(p, m)
    validate(schedule)
    assert [schedule.holders(stage) for stage in range(2 * p)] == [(min(s, 2 * p - 1 - s),) for s in range(2 * p)]
    assert simulate(schedule, Costs(3, 2, 1, 1)).makespan >= 12 * m
