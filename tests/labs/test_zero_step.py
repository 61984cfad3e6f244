"""The passes of lesson 06, counted in runs: 2, 2, k + 1 and 3k (Rajbhandari et al. 2020, section 7)."""

import pytest

from parlab import labs


@pytest.mark.parametrize("microbatches", [1, 4])
def test_stages_0_to_3_send_2_2_k_plus_1_and_3k_passes(microbatches):
    counted = [labs.passes(stage, microbatches) for stage in range(4)]
    assert counted == [2, 2, microbatches + 1, 3 * microbatches]


def test_the_step_takes_options_of_zero_and_refuses_another_stage():
    kept = labs.zero_step(3, keep_after_forward=True).timeline
    assert 3 * kept.bytes_sent(0) == pytest.approx(2 * labs.zero_step(3).timeline.bytes_sent(0), rel=0.01)
    with pytest.raises(ValueError, match="stage=4"):
        labs.zero_step(4)
