"""The two walks past all ranks."""

import numpy as np
import pytest

from parlab import run
from parlab.world.collectives.walks import around_ring, partners


@pytest.mark.parametrize("ranks_per_node", [None, 1, 2, 3, 6])
def test_6_ranks_meet_every_other_once_each_way_and_in_each_step_the_peer_expects_it(ranks_per_node):
    of_rank = run(lambda comm: list(partners(comm, ranks_per_node)), 6).results
    for rank, steps in enumerate(of_rank):
        others = set(range(6)) - {rank}
        assert len(steps) == 5
        assert {dst for dst, _ in steps} == {src for _, src in steps} == others
        assert all(of_rank[dst][step][1] == rank for step, (dst, _) in enumerate(steps))


def test_values_that_make_2_0_and_1_hops_around_3_ranks_are_none_where_they_stopped():
    def program(comm):
        walk = around_ring(comm, np.array(comm.rank), "x", hops=[2, 0, 1])
        return [(source, None if x is None else int(x)) for source, x in walk]

    assert run(program, 3).results == [
        [(0, 0), (2, 2), (1, None)],
        [(1, 1), (0, 0), (2, None)],
        [(2, 2), (1, None), (0, 0)],
    ]


def test_hops_of_2_6_microseconds_hide_behind_4_products_of_3():
    def program(comm):
        for _ in around_ring(comm, np.zeros(2000)):  # 1 µs, and 16 000 bytes at 10 GB/s
            with comm.compute("product", seconds=3e-6):
                pass

    done = run(program, 4).timeline
    assert (done.makespan, done.waits) == (12_000_000, [])
