"""Gradients of one block: whose they are after each call, and when what was whole dies."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from parlab import run
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.shards import FlatLayout, Group, cut

COUNT = 7
VALUES = np.arange(1.0, COUNT + 1)


def gradients_of(comm, kind):
    (counts,) = cut([COUNT], comm.size)
    layout = FlatLayout({"w": VALUES}, counts, comm.rank)
    return kind(Group(comm, None), layout, np.float64), layout.own


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
    def program(comm):
        gradients, own = gradients_of(comm, WholeGradients)
        gradients.add({"w": (comm.rank + 1) * VALUES}, complete=True)
        gradients.reduced()
        expected = (comm.rank + 1) * VALUES
        expected[own] = 6 * VALUES[own]
        return (gradients.whole == expected).all()

    assert run(program, 3).results == [True] * 3


def test_sharded_gradients_are_whole_only_until_they_are_reduced():
    def program(comm):
        gradients, _ = gradients_of(comm, ShardedGradients)
        gradients.add({"w": VALUES}, complete=False)
        leaving = weakref.ref(gradients.leaving)
        on_its_way = leaving() is not None
        gradients.finish()
        return on_its_way, leaving() is None, gradients.sum.size

    assert run(program, 3).results == [(True, True, n) for n in (3, 2, 2)]


@pytest.mark.parametrize(("kind", "reductions"), [(WholeGradients, 1), (ShardedGradients, 3)])
def test_3_microbatches_are_reduced_once_where_they_are_kept_whole_and_3_times_where_they_are_not(kind, reductions):
    def program(comm):
        gradients, _ = gradients_of(comm, kind)
        for part in range(3):
            gradients.add({"w": VALUES}, complete=part == 2)
        gradients.reduced()

    timeline = run(program, 3).timeline
    assert sum(timeline.bytes_sent(rank) for rank in range(3)) == reductions * 2 * COUNT * 8
