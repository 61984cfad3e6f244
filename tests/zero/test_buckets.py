"""Buckets: how many, of what, and when they leave."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import Cluster, run
from parlab.nn.optimizer import AdamW
from parlab.zero import Zero
from tests.nn.parity import assert_parity
from tests.zero.models import NUM_PARAMS, serial, trained

L, N_BLOCK, SIZE = 4, 840, 4
CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9, flops=1e12, memory_bandwidth=float("inf"))
REDUCE = 2 * (SIZE - 1) * (N_BLOCK // SIZE) * 8 * 1000  # picoseconds of a block's all-reduce: 1000 a byte


def backward(comm, duration, bucket_bytes, **options):
    """Of blocks that last as said, in picoseconds, and a step that takes no time."""
    params = {f"w{i}": np.ones(N_BLOCK) for i in range(L)}
    replica = Zero(comm, params, 0, AdamW(), bucket_bytes=bucket_bytes, **options)
    for name in reversed(replica.block_names):
        with comm.compute(f"backward {name}", seconds=duration / 1e12):
            pass
        replica.add_gradients(name, {name: np.ones(N_BLOCK)})
    replica.step()


def makespan(duration, bucket_bytes, **options):
    return run(backward, SIZE, duration, bucket_bytes, cluster=CLUSTER, **options).timeline.makespan


@pytest.mark.parametrize("duration", [REDUCE // 10, REDUCE, 2 * REDUCE, 3 * REDUCE])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_buckets_of_1_2_4_blocks_overlap_with_the_backward_of_those_before_them(blocks, duration):
    """The first bucket leaves when its blocks are computed, the last is waited for; between them the longer counts."""
    buckets, computed, reduced = L // blocks, blocks * duration, blocks * REDUCE
    expected = computed + (buckets - 1) * max(computed, reduced) + reduced
    assert makespan(duration, blocks * N_BLOCK * 8) == expected


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(1, 4), (6720, 4), (6721, 2), (13441, 2), (26880, 1)])
def test_a_bucket_leaves_at_the_block_that_fills_it(bucket_bytes, buckets):
    """Blocks of 840 · 8 = 6720 bytes: one more byte takes one more block; what is left leaves at the step."""
    timeline = run(backward, SIZE, 1, bucket_bytes).timeline
    assert timeline.messages(0) == buckets * 2 * (SIZE - 1)
    assert timeline.bytes_sent(0) == 2 * (SIZE - 1) * N_BLOCK * L * 8 // SIZE


@pytest.mark.parametrize("bucket_bytes", [1, 1000, 3000, 10**9])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_2_steps_are_serial_from_one_gradient_a_bucket_to_everything_in_one(bucket_bytes, microbatches):
    found = trained(0, 3, 2, microbatches, bucket_bytes=bucket_bytes, max_norm=1.0)
    assert NUM_PARAMS[False] * 8 > 1000
    expected = serial(3 * microbatches, 2, 1.0)
    assert_parity([found[name] for name in expected], list(expected.values()), 1e-12)


def test_with_microbatches_a_bucket_waits_for_the_last_one():
    def program(comm):
        replica = Zero(comm, {"w": np.ones(8)}, 0, AdamW(), bucket_bytes=1, microbatches=3)
        for _ in range(2):
            replica.add_gradients("w", {"w": np.ones(8)})

    assert run(program, 2).timeline.messages(0) == 0
