"""The small Llama of lesson 04, and how it learns where a stage keeps one microbatch's activations instead of all."""

import pytest

from parlab import labs
from parlab.pipeline import one_f_one_b, step_of_ranks


class OneSlot:
    def __init__(self, stage):
        self.stage = stage

    def forward(self, x, *targets):
        y, self.kept = self.stage.forward(x, *targets)
        return y, self.kept

    def backward(self, dy, kept):
        return self.stage.backward(dy, self.kept)


@pytest.mark.parametrize(("m", "wrong"), [(1, 0), (2, 28), (8, 28)])
def test_with_one_slot_the_28_arrays_of_all_stages_but_the_last_are_wrong_and_the_loss_is_right(m, wrong):
    """The last stage, a layer of nine arrays with the norm and the head behind it, keeps one microbatch at a time."""
    model, (tokens, targets) = labs.four_layers(), labs.token_before(2)
    loss, right = model.loss_and_gradients(tokens, targets)
    done = step_of_ranks(one_f_one_b(4, m), model, tokens, targets, OneSlot)
    assert abs(done.loss - loss) <= 1e-12
    assert labs.wrong_arrays(done.gradients, right) == wrong
    assert labs.wrong_arrays(step_of_ranks(one_f_one_b(4, m), model, tokens, targets).gradients, right) == 0
    assert len(right) == labs.PIPELINE_GUESSES["arrays"][0]


@pytest.mark.slow
def test_of_40_seeds_the_luckiest_and_the_unluckiest_end_at_1_15_and_9_78_times_the_right_loss():
    for seed, times in ((40, 1.15), (21, 9.78)):
        bug, right = (labs.forty_losses(one_f_one_b(4, 4), seed, change) for change in (OneSlot, None))
        assert len(bug) == len(right) == 40
        assert bug[0] == pytest.approx(right[0], abs=1e-12)
        assert bug[-1] / right[-1] == pytest.approx(times, abs=0.005)
