"""Equal work: contiguous chunks."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
import pytest

from parlab.arrays import asarray
from parlab.sequence import (
    Chunk,
    causal_work,
    imbalance,
    packed_work,
    split_by_work,
    split_equal,
)
from parlab.sequence.splitting.chunks import even_stops
from tests.libraries import LIBRARIES

PACKED = [0, 700, 1500, 1620, 2900, 2901, 3800, 4096]  # of 1 to 1280 tokens


def largest(sizes, stops):
    return max(sum(sizes[start:stop]) for start, stop in pairwise([0, *stops]))


def test_causal_work_of_4_is_1_2_3_4_and_of_documents_starts_anew():
    assert causal_work(4) == [1, 2, 3, 4]
    assert packed_work([0, 3, 4, 6]) == [1, 2, 3, 1, 1, 2]
    assert sum(packed_work(PACKED)) == sum(n * (n + 1) // 2 for n in np.diff(PACKED).tolist())


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("work", [causal_work(4096), packed_work(PACKED)], ids=["causal", "packed"])
def test_the_work_splits_slowest_rank_is_within_5_percent_of_the_mean(work, ranks):
    assert imbalance(split_by_work(work, ranks), work, ranks) <= 1.05
    assert imbalance(split_equal(4096, 4096 // ranks, ranks=ranks), causal_work(4096), ranks) > 1.4


def test_400_random_works_are_split_as_brute_force_would():
    draw = random.Random(10)
    for _ in range(400):
        S = draw.randint(1, 9)
        n = draw.randint(1, S)
        sizes = [draw.choice([0, 1, 2, 5, 9, draw.random()]) for _ in range(S)]
        best = min(largest(sizes, [*cuts, S]) for cuts in combinations(range(1, S), n - 1))
        assert largest(sizes, even_stops(sizes, n)) == pytest.approx(best, rel=1e-11)


def test_work_may_be_an_array_and_overlaps_are_counted_once():
    for xp in LIBRARIES:
        assert split_by_work(asarray([1.0, 1, 2], xp), 2) == [Chunk(0, 0, 0, 2), Chunk(1, 1, 2, 3)]
    assert imbalance(split_equal(10, 6, 2, ranks=2), [1] * 10, 2) == 6 / 5  # 6 and 4
    assert imbalance(split_equal(4, 2, ranks=2), [0] * 4, 2) == 1
