"""DualPipe and DualPipeV: PyTorch's listing, the published idle time and peaks, what each rank holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import Costs, Pair, Schedule, dualpipe, dualpipe_v, simulate, validate
from tests.pipeline.models import DATA


def test_dualpipe_v_p4_m10_is_the_file_of_pytorchs_tests():
    assert dualpipe_v(4, 10) == Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv")


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(0, 12), st.integers(1, 9))
def test_dualpipe_idles_half_p_minus_1_times_the_pair_plus_b_minus_3w_and_keeps_p_plus_1(half, more, unit):
    p = 2 * half
    schedule = dualpipe(p, 2 * p + 2 * more)
    timeline = simulate(schedule, Costs(unit, unit, unit, pair=3 * unit))
    assert timeline.longest_stage - timeline.busy(0) == (half - 1) * (3 * unit + 2 * unit - 3 * unit)
    assert timeline.peak_activations == [p + 1] * p


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 9))
def test_dualpipe_v_idles_p_minus_1_times_the_pair_plus_b_minus_3w_and_keeps_2p_plus_1(p, more, unit):
    timeline = simulate(dualpipe_v(p, 2 * p + more), Costs(unit, unit, unit, pair=3 * unit))
    assert timeline.longest_stage - timeline.busy(0) == (p - 1) * (3 * unit + 2 * unit - 3 * unit)
    assert timeline.peak_activations == [min(2 * p + 1, 2 * (2 * p + more))] * p


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(0, 6))
def test_half_of_dualpipes_microbatches_enter_at_each_end_and_each_stage_is_on_two_ranks(half, more):
    p = 2 * half
    schedule = dualpipe(p, 2 * p + 2 * more)
    validate(schedule)
    m = schedule.num_microbatches
    assert [schedule.holders(stage) for stage in range(p)] == [tuple(sorted({s, p - 1 - s})) for s in range(p)]
    assert [schedule.rank_of(0, i) for i in range(m)] == [0] * (m // 2) + [p - 1] * (m // 2)
    pairs = [slot for row in schedule.ranks for slot in row if isinstance(slot, Pair)]
    assert all((pair.F.microbatch < m // 2) != (pair.B.microbatch < m // 2) for pair in pairs)
