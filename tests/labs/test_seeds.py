"""The stored trainings of lesson 10 are trainings that run."""

import numpy as np
import pytest

from parlab import run
from parlab.labs import seeds
from parlab.nn import AdamW
from parlab.train import Mesh, Trainer
from tests.train.models import EXPERTS, batches, model


def test_a_stored_seed_is_that_of_a_training_that_runs_now():
    plain, biased = seeds.loads_of_seeds()[41]
    for load, rate in ((plain, 0.0), (biased, seeds.RATE)):
        assert seeds.trained(41, rate) == pytest.approx(load, abs=2e-4)


@pytest.mark.parametrize(("dp", "ep"), [(2, 2), (4, 2)])
def test_rows_to_experts_are_the_serial_choices_of_each_ranks_sequences_and_change_no_weight(dp, ep):
    serial, (tokens, _) = model(**EXPERTS), batches(8, 4)[0]

    def program(comm):
        trainer = Trainer(Mesh(comm, dp=dp, ep=ep), serial, AdamW(), bias_rate=0.1)
        before = trainer.full_weights()
        tables = seeds.rows_to_experts(trainer, tokens)
        same = all((before[name] == x).all() for name, x in trainer.full_weights().items())
        return tables, same, [sum(router.counted) for router in trainer.parts.model.routers.values()]

    expected = []
    hidden, _ = serial.embedding.forward(tokens)
    for block in serial.blocks:
        hidden, cache = block.forward(hidden)
        chosen = cache["mlp"].router.routing.chosen.reshape(dp, -1)
        expected.append([np.bincount(of_rank, minlength=4).tolist() for of_rank in chosen])
    for rank, (tables, same, counted) in enumerate(run(program, dp).results):
        group = slice(rank // ep * ep, rank // ep * ep + ep)  # ep: consecutive ranks of dp
        assert [np.asarray(table).tolist() for table in tables] == [of_layer[group] for of_layer in expected]
        assert same
        assert counted == 4 * [0]
