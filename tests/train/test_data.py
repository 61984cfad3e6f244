"""The order of the samples: a permutation an epoch, that nothing but the seed decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.train import Samples


@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 3))
def test_each_epoch_takes_every_window_once_and_targets_are_the_next_tokens(N, length, seed):
    if length >= N:
        with pytest.raises(ValueError, match=rf"length={length}: .* more than {N} tokens"):
            Samples(np.arange(N), length, seed)
        return
    samples = Samples(np.arange(N), length, seed)
    for epoch in range(2):
        tokens, targets = samples.batch(epoch * samples.epoch_size, samples.epoch_size)
        assert sorted(tokens[:, 0].tolist()) == list(range(0, N - length, length))
        assert (targets == tokens + 1).all()


@given(st.integers(0, 30), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_batches_of_any_sizes_go_on_where_the_last_one_ended_over_the_ends_of_epochs(first, sizes):
    samples = Samples(np.arange(23), 3, seed=2)
    together, _ = samples.batch(first, sum(sizes))
    starts = np.cumsum([0, *sizes[:-1]]) + first
    parts = [samples.batch(int(start), size)[0] for start, size in zip(starts, sizes, strict=True)]
    assert np.array_equal(np.concatenate(parts), together)


def test_another_epoch_and_another_seed_have_another_order():
    orders = {tuple(Samples(np.arange(99), 2, seed).batch(first, 49)[0][:, 0]) for seed in (0, 1) for first in (0, 49)}
    assert len(orders) == 4
