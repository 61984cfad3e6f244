"""Collectives of arrays of any shape, owner and library, whatever the timing."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.arrays import owning_buffer
from parlab.world import collectives, per_rank, run

ALL_REDUCES = ("ring", "recursive_doubling", "rabenseifner", "circulant")


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_an_array_without_axes_stays_an_array_without_axes(xp, algorithm):
    def program(comm, x):
        reduced = comm.reduce(x, 1)
        return [comm.all_reduce(x, algorithm=algorithm), comm.broadcast(x), x if reduced is None else reduced]

    for results in run(program, 3, xp.asarray(2.0)).results:
        for result in results:
            assert type(result) is type(xp.asarray(2.0))
            assert result.shape == ()


def test_collectives_take_views_in_any_memory_order_and_leave_them_unchanged():
    base = np.arange(48.0).reshape(6, 8)
    view = base.T[::2, ::-1]  # [4, 6], neither C nor Fortran order
    before = view.copy()

    def program(comm, x):
        return [
            comm.all_reduce(x),
            comm.all_gather(x),
            comm.reduce_scatter(x),
            comm.all_to_all(x, 0, 1),
            comm.broadcast(x),
            comm.scatter(x),
        ]

    first = run(program, 2, view).results
    second = run(program, 2, np.ascontiguousarray(view)).results
    for a, b in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_a_collective_returns_is_the_ranks_own_and_may_be_changed(size):
    def program(comm, x):
        results = [
            comm.all_reduce(x),
            comm.all_reduce(x, algorithm="recursive_doubling"),
            comm.all_reduce(x, algorithm="rabenseifner"),
            comm.all_gather(x),
            comm.reduce_scatter(x),
            comm.all_to_all(x, 0, 0),
            comm.broadcast(x),
            comm.scatter(x),
            comm.gather(x),
            comm.reduce(x),
        ]
        pieces = [x[i :: comm.size] for i in range(comm.size)]
        results += collectives.pairwise_all_to_all(comm, pieces)
        for result in results:
            if result is not None:
                assert owning_buffer(result).nbytes == result.nbytes  # it keeps no larger array alive
                result += comm.rank + 1
        return float(x.sum())

    assert run(program, size, per_rank([np.ones(6)] * size)).results == [6.0] * size
