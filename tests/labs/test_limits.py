"""What the checks say at each limit of clipping: the stored numbers are those of trainers that run."""

import pytest

from parlab.labs import Suspect, checks_by_limit
from parlab.labs.limits import LIMITS, checked
from parlab.labs.silent_bugs import BUGS, MAX_NORM, PRICES, SEES


def same(one, other):
    for check in PRICES:
        assert one.differences[check] == pytest.approx(other.differences[check], rel=2e-3, abs=0)
    assert one.right_norms == pytest.approx(other.right_norms, rel=2e-3)
    assert one.norms == pytest.approx(other.norms, rel=2e-3)


@pytest.mark.parametrize(
    ("bug", "limit"), [("extra mean", 0.1), ("extra mean", 10.0), ("copies counted", 10.0), ("ends not summed", 1.0)]
)
def test_what_is_stored_is_what_the_checks_say(bug, limit):
    same(checks_by_limit()[limit][bug], checked(bug, limit))


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("bug", BUGS)
def test_all_that_is_stored_is_what_the_checks_say(bug, limit):
    same(checks_by_limit()[limit][bug], checked(bug, limit))


def test_only_ten_losses_depend_on_the_limit():
    assert tuple(checks_by_limit()) == LIMITS
    for limit, of_limit in checks_by_limit().items():
        for bug, (differences, *_) in of_limit.items():
            assert {c for c, x in differences.items() if x and c != "ten losses"} == set(SEES[bug]) - {"ten losses"}
            if limit == MAX_NORM:
                assert (differences["ten losses"] > 0) == ("ten losses" in SEES[bug])


def test_ten_losses_miss_the_extra_mean_where_every_step_is_clipped_and_the_copies_where_none_is():
    for limit, of_limit in checks_by_limit().items():
        for bug, missed in (("extra mean", 10), ("copies counted", 0)):
            differences, *norms = of_limit[bug]
            clipped = [sum(norm > limit for norm in steps) for steps in norms]
            assert (differences["ten losses"] == 0) == (clipped == [missed, missed])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_on_two_more_models_too(seed):
    def losses_see(bug, limit):
        return Suspect(bug, seed, max_norm=limit).difference("ten losses")

    assert losses_see("extra mean", 0.1) == 0
    assert losses_see("extra mean", 1.0) > 0.01
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
