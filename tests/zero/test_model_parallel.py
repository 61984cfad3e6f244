"""The gradients of a replica that is itself cut; `tests/train` sees its norm, its cuts and its order of use."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import run
from parlab.zero import LossScale
from parlab.zero.arguments import ModelParallel
from parlab.zero.pieces import full_gradients
from tests.zero.models import STAGES, TOY, add_all, replica_of, toy


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_times_add_up_to_a_ranks_mean_only_the_ranks_divide_and_the_scale_is_divided_out_after_a_skip_too(stage, scale):
    def program(comm):
        own = comm.split(comm.rank) if stage == 0 else comm
        cut = ModelParallel(own, in_norm=dict.fromkeys(TOY, 1.0), expected=dict.fromkeys(TOY, 2))
        replica = replica_of(comm, toy(0), stage, model_parallel=cut, loss_scale=LossScale(scale))
        found = []
        for step in range(3):
            replica.begin()
            with pytest.raises(ValueError, match=r"full_gradients\(\): there is no last step; call step\(\) first"):
                full_gradients(replica)
            for seed in (1, 2):
                bad = math.nan if step == 1 and comm.rank == 1 else 1.0
                gradients = toy(10 * step + seed + 2 * comm.rank)
                add_all(replica, {name: bad * replica.loss_scale * x for name, x in gradients.items()})
            found.append((replica.step().skipped, full_gradients(replica)))
        return found

    for found in run(program, 2).results:
        assert [skipped for skipped, _ in found] == [False, True, False]
        for step in (0, 2):
            for name in TOY:
                mean = sum(toy(10 * step + seed)[name] for seed in (1, 2, 3, 4)) / 2
                assert np.allclose(found[step][1][name], mean, rtol=1e-14)
