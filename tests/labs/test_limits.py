"""What ten losses miss at each limit of clipping."""

from itertools import product

import pytest

from parlab.labs import Suspect

LIMITS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MISSED = {"extra mean": 10, "copies counted": 0}  # by bug: where so many of ten steps are clipped
QUICK = (("extra mean", 0.05), ("copies counted", 10.0))


@pytest.mark.parametrize(
    ("bug", "limit"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in product(MISSED, LIMITS)],
)
def test_ten_losses_miss_the_extra_mean_where_every_step_is_clipped_and_the_copies_where_none_is(bug, limit):
    suspect = Suspect(bug, max_norm=limit)
    clipped = [sum(norm > limit for norm in steps) for steps in suspect.norms.values()]
    assert (suspect.difference("ten losses") == 0) == (clipped == [MISSED[bug]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_on_two_more_models_too(seed):
    def losses_see(bug, limit):
        return Suspect(bug, seed, max_norm=limit).difference("ten losses")

    assert losses_see("extra mean", 0.1) == 0
    assert 0 < losses_see("extra mean", 20.0) < 1e-5
    assert losses_see("copies counted", 0.1) > 0
    assert losses_see("copies counted", 20.0) == 0


@pytest.mark.slow
def test_where_some_steps_are_clipped_ten_losses_tell_the_extra_mean_by_4_to_13_percent_on_4_models():
    off = [Suspect("extra mean", seed, max_norm=1.0).difference("ten losses") for seed in range(4)]
    assert off == pytest.approx([0.12, 0.098, 0.13, 0.039], rel=0.03)


def test_a_limit_of_0_is_refused():
    with pytest.raises(ValueError, match="max_norm=0: must be a number greater than 0"):
        Suspect("extra mean", max_norm=0)
