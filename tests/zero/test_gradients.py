"""Gradients of one block: whose they are after each call, and when what was whole dies."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.shards import FlatLayout, cut

COUNT = 7
VALUES = np.arange(1.0, COUNT + 1)


def gradients_of(comm, kind):
    (counts,) = cut([COUNT], comm.size)
    layout = FlatLayout({"w": VALUES}, counts, comm.rank)
    return kind(comm, layout, np.float64), layout.own


@pytest.mark.parametrize("kind", [WholeGradients, ShardedGradients])
@pytest.mark.parametrize("microbatches", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_a_shard_is_the_sum_over_ranks_and_microbatches_of_this_ranks_elements(kind, microbatches, size):
    """Rank r brings (r + 1) · value in each microbatch; 9 ranks leave two without an element."""

    def program(comm):
        gradients, own = gradients_of(comm, kind)
        for part in range(microbatches):
            gradients.add({"w": (comm.rank + 1) * VALUES}, complete=part == microbatches - 1)
        return gradients.reduced().copy(), own

    for found, own in run(program, size).results:
        assert (found == microbatches * size * (size + 1) / 2 * VALUES[own]).all()


def test_whole_gradients_keep_this_ranks_own_beside_its_shard_of_the_sum():
    """In place: no second copy of the shard is held beside them."""

    def program(comm):
        gradients, own = gradients_of(comm, WholeGradients)
        gradients.add({"w": (comm.rank + 1) * VALUES}, complete=True)
        gradients.reduced()
        expected = (comm.rank + 1) * VALUES
        expected[own] = 6 * VALUES[own]
        return (gradients.whole == expected).all()

    assert run(program, 3).results == [True] * 3
