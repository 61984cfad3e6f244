"""The optimizer's state of a piece: bitwise the whole optimizer's, and no larger than its piece."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.arrays import asarray, to_numpy
from parlab.nn.optimizer import AdamW
from parlab.zero import shard_range
from parlab.zero.state import OptimizerShard
from tests.libraries import LIBRARIES

HYPER = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1}
COUNT = 11


def draw(seed):
    return np.random.default_rng(seed).normal(size=COUNT)


@pytest.mark.parametrize(
    ("size", "xp"), [*((size, np) for size in (1, 2, 3, 4, 7, 13)), *((3, xp) for xp in LIBRARIES[1:])]
)
def test_shards_updated_apart_join_to_what_the_whole_optimizer_makes_to_the_bit(size, xp):
    weights, optimizer = {"w": asarray(draw(0), xp)}, AdamW(**HYPER)
    for step in range(1, 6):
        optimizer.step(weights, {"w": asarray(draw(step), xp) * 0.25})

    def program(comm):
        own = shard_range(COUNT, comm.rank, comm.size)
        piece = slice(own.start, own.stop)
        shard = OptimizerShard(comm, asarray(draw(0)[piece], xp), xp.float64, offload=None)
        for step in range(1, 6):
            found = shard.update(AdamW(**HYPER), asarray(draw(step)[piece], xp), 0.25, step, None)
        return to_numpy(found)

    assert np.array_equal(np.concatenate(run(program, size).results), to_numpy(weights["w"]))
