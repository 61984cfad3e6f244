"""The stored trainings of lesson 10 are trainings that run."""

import pytest

from parlab.labs import seeds


def test_a_stored_seed_is_that_of_a_training_that_runs_now():
    plain, biased = seeds.loads_of_seeds()[41]
    for load, rate in ((plain, 0.0), (biased, seeds.RATE)):
        assert seeds.trained(41, rate) == pytest.approx(load, abs=2e-4)
