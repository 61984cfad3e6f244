"""The time of an update in another place."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import Cluster, run
from parlab.nn.optimizer import AdamW
from parlab.world import Link
from parlab.zero import Offload, Zero

CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9, memory_bandwidth=1e10)
PLACE = Offload(Link(1e-6, 1e9), memory_bandwidth=1e9)


def one_step(comm, count, dtype, offload):
    zero = Zero(comm, {"w": np.ones(count, np.float32)}, 2, AdamW(), dtype=dtype, offload=offload)
    zero.add_gradients("w", {"w": np.ones(count, np.float32)})
    zero.step()


def update_time(size, count, dtype, offload):
    """Picoseconds of rank 0's AdamW."""
    timeline = run(one_step, size, count, dtype, offload, cluster=CLUSTER).timeline
    return sum(span.end - span.start for span in timeline.computes if span.rank == 0)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "narrow"), [("float16", 2), (None, 4)])
def test_float16_and_float32_shards_travel_with_2_and_4_bytes_each_way_and_28_are_read_and_written_there(
    dtype, narrow, size
):
    """Master and two moments, each 4 bytes read and 4 written; 2 bytes of gradient read, 2 of weights written. Without
    masters the gradient has 4.
    """
    own = 1000 // size
    assert update_time(size, 1000, dtype, PLACE) == 2 * (10**6 + narrow * own * 1000) + 28 * own * 1000
    assert update_time(size, 1000, dtype, None) == 28 * own * 100


def test_a_rank_that_owns_nothing_of_a_block_takes_no_time_for_it():
    timeline = run(one_step, 3, 2, None, PLACE, cluster=CLUSTER).timeline
    assert [timeline.busy(rank) > 0 for rank in range(3)] == [True, True, False]
