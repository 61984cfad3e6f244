"""The optimizer's step behind a schedule: with a norm that all wait for, and with one that is checked afterwards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import Costs, gpipe, one_f_one_b, simulate, zb_h2, zb_v


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(0, 9), st.integers(1, 9))
def test_post_validation_leaves_zb_v_without_idle_time_where_a_common_norm_costs_p_minus_1_slots(p, more, step):
    m = 2 * p - 1 + more
    costs = Costs(optimizer=step)  # of a stage, and a rank has two
    whole, after = (simulate(zb_v(p, m), costs, post_validation=late) for late in (False, True))
    assert (whole.longest_stage, after.longest_stage) == (6 * m + p - 1 + 2 * step, 6 * m + 2 * step)
    assert after.bubble_fraction("longest_stage") == 0
    assert whole.longest_stage == whole.makespan


def test_the_timeline_shows_the_step_of_each_rank_and_the_wait_before_it_p3_m5_c1():
    """Without post-validation the news of the last rank to be done has to reach all others, a hop at a time."""
    schedule, costs = zb_h2(3, 5), Costs(transfer=1, optimizer=4)
    plain = simulate(schedule, Costs(transfer=1))
    done = [max(span.end for span in plain.computes if span.rank == rank) for rank in range(3)]
    for late in (False, True):
        timeline = simulate(schedule, costs, post_validation=late)
        steps = {span.rank: (span.start, span.end) for span in timeline.computes if span.name == "optimizer"}
        knows = [max(done[q] + abs(r - q) for q in range(r + 1 if late else 3)) for r in range(3)]
        assert steps == {r: (knows[r], knows[r] + 4) for r in range(3)}
        assert timeline.makespan == max(knows) + 4
        assert [timeline.busy(r) for r in range(3)] == [plain.busy(r) + 4 for r in range(3)]
        for r in range(3):
            assert sum(idle.end - idle.start for idle in timeline.idle(r)) == timeline.makespan - timeline.busy(r)


@pytest.mark.parametrize("late", [False, True])
def test_without_a_cost_of_the_optimizer_nothing_changes(late):
    assert simulate(one_f_one_b(4, 8), post_validation=late).makespan == 33
    assert simulate(one_f_one_b(4, 8), Costs(optimizer=[1, 2, 3, 4]), post_validation=late).makespan > 33


def test_a_negative_or_short_cost_of_the_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer"):
        Costs(optimizer=-1)
    with pytest.raises(ValueError, match="optimizer has 2 costs, but the schedule has 4 stages"):
        simulate(one_f_one_b(4, 8), Costs(optimizer=[1, 2]))


def test_news_of_the_norm_travels_like_the_slowest_message_and_the_ranks_step_at_20_24_and_28():
    """The ranks end their backwards at 20, 14 and 10; the slowest transfer takes 4."""
    timeline = simulate(gpipe(3, 1), Costs(transfer=[1, 4, 2], optimizer=1))
    assert [(step.rank, step.start) for step in timeline.computes if step.name == "optimizer"] == [
        (0, 20),
        (1, 24),
        (2, 28),
    ]
