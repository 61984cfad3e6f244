"""Lesson 02's bug that raises no error: positions that are counted as one stretch, where zigzag has two."""

import math

import numpy as np
import pytest

from parlab import labs
from parlab.sequence import positions

STRETCH = np.arange(128).reshape(4, 32)


def test_with_true_positions_the_losses_are_those_of_one_rank_to_1e_12_and_with_one_stretch_not():
    (alone,) = labs.recall_losses([range(128)], steps=1)
    assert labs.recall_losses(positions(128, 4, "zigzag"), steps=1) == [pytest.approx(alone, abs=1e-12)]
    (wrong,) = labs.recall_losses(STRETCH, steps=1)
    assert 1e-6 < abs(wrong - alone) < 1e-3  # less than bf16 resolves


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_wrong_positions_end_at_1_3_or_more_and_true_ones_at_0_7_or_less(seed):
    true, wrong = (labs.recall_losses(places, seed=seed)[-1] for places in (positions(128, 4, "zigzag"), STRETCH))
    assert 6 / 128 * math.log(16) < true < 0.7 < 1.3 < wrong
