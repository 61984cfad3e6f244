"""Gradients of one block, in memory."""

from __future__ import annotations

import numpy as np

from parlab import run
from parlab.zero.gradients import WholeGradients
from parlab.zero.shards import FlatLayout, shard_sizes

VALUES = np.arange(1.0, 8.0)


def test_whole_gradients_keep_this_ranks_own_beside_its_shard_of_the_sum():
    """In place: no second copy of the shard is held beside them."""

    def program(comm):
        (counts,) = shard_sizes([7], comm.size)
        layout = FlatLayout({"w": (7,)}, counts, comm)
        gradients = WholeGradients({"w": layout}, np.float64)
        gradients.add("w", {"w": (comm.rank + 1) * VALUES}, complete=True)
        gradients.reduced()
        expected = (comm.rank + 1) * VALUES
        expected[layout.own] = 6 * VALUES[layout.own]
        return (gradients.whole["w"] == expected).all()

    assert run(program, 3).results == [True] * 3
