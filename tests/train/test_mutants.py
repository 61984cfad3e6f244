"""The mistakes that people make when strategies meet, each made on purpose: which check sees it, which is blind.

Six more are the silent bugs of lesson 07: `tests/labs/test_silent_bugs.py`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import parlab.pipeline.execute
import parlab.train.step
import tests.train.models
from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.pipeline import one_f_one_b
from parlab.train import Mesh, Trainer
from parlab.zero import LossScale
from parlab.zero.shards import cut_blocks
from tests.train.models import batches, faults, model

case = partial(tests.train.models.case, B=4, layers=2)


def seen(change, *args, **kwargs):
    """Which checks see it, where without the change none sees anything."""
    assert faults(case(*args, **kwargs), 2) == set()
    return faults(case(*args, **kwargs), 2, change=change)


def positions_a_range(trainer):
    cp = trainer.parts.job.mesh.cp
    rotary = trainer.parts.model.llama.blocks[0].attention.inside.rotary
    rotary.positions = lambda length: np.arange(cp.rank * length, (cp.rank + 1) * length)


def test_rotary_positions_a_range_are_seen_under_zigzag_and_striped_and_right_under_contiguous():
    for layout in ("zigzag", "striped"):
        assert {"loss", "gradients"} <= seen(positions_a_range, cp=2, layout=layout)
    assert seen(positions_a_range, cp=2, layout="contiguous") == set()


def test_the_same_rows_on_every_replica_are_seen_by_loss_and_gradients():
    def change(trainer):
        mesh = trainer.parts.job.mesh
        mesh.dp = SimpleNamespace(rank=0, size=mesh.dp.size)

    assert {"loss", "gradients"} <= seen(change, dp=2)


def test_context_parallelism_left_out_of_zeros_group_is_seen_by_copies_that_differ(monkeypatch):
    assert faults(case(cp=2, dp=2)) == set()
    right = Mesh.__init__

    def without(self, comm, **axes):
        right(self, comm, **axes)
        self.data = self.dp

    monkeypatch.setattr(Mesh, "__init__", without)
    assert {"gradients", "copies"} <= faults(case(cp=2, dp=2))


def by_data_group(trainer):
    job, replica = trainer.parts.job, trainer.parts.replica
    replica.model_parallel = replica.model_parallel._replace(holders=job.mesh.data)


def test_clipping_by_each_parts_own_norm_is_seen_by_the_norm_and_by_clipped_copies_and_not_by_gradients():
    assert seen(by_data_group, pp=2, tied=True) == {"norm"}
    wrong = seen(by_data_group, tp=2, max_norm=0.1)
    assert {"norm", "weights", "copies"} <= wrong
    assert "gradients" not in wrong


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_an_overflow_on_one_rank_skips_all_and_by_each_parts_own_norm_some_alone(zero):
    tokens, targets = batches(4, 8)[0]

    def program(comm, change):
        mesh = Mesh(comm, dp=2, pp=2)
        trainer = Trainer(mesh, model(), AdamW(), zero=zero, loss_scale=LossScale(8.0))
        replica = trainer.parts.replica
        right = replica.add_gradients

        def add(block, gradients):
            if comm.rank == 0:
                gradients = {name: x * np.inf for name, x in gradients.items()}
            right(block, gradients)

        replica.add_gradients = add
        change(trainer)
        result = trainer.step(tokens, targets)
        return result.skipped, trainer.progress["loss_scale"]

    assert run(program, 4, id).results == [(True, 4.0)] * 4
    if zero:
        assert [skipped for skipped, _ in run(program, 4, by_data_group).results] == [True, False, True, False]


@pytest.mark.parametrize("zero", [1, 2])
def test_blocks_cut_where_the_last_one_ended_drift_apart_by_bits_on_six_data_ranks(monkeypatch, zero):
    six = case(dp=3, cp=2, tp=2, tied=True, heads=1, B=3, zero=zero)
    assert faults(six) == set()

    monkeypatch.setattr(
        "parlab.zero.zero.cut_blocks", lambda shapes, groups, how: cut_blocks(shapes, groups, "together")
    )
    assert faults(six) == {"copies"}


def uneven(**axes):
    return case(**axes)._replace(ignored=4)


@pytest.mark.parametrize("axes", [{"dp": 2}, {"cp": 2}], ids=str)
def test_a_mean_of_the_ranks_means_is_seen_by_loss_and_gradients_where_targets_are_uneven_alone(monkeypatch, axes):
    assert faults(uneven(**axes), 2) == set()
    right = parlab.train.step.run_schedule
    monkeypatch.setattr(
        parlab.train.step, "run_schedule", lambda *args, target_tokens, **options: right(*args, **options)
    )
    assert {"loss", "norm", "gradients"} <= faults(uneven(**axes), 2)
    assert faults(case(**axes), 2) == set()


def test_a_mean_of_the_microbatches_means_is_seen_by_loss_and_gradients_where_targets_are_uneven_alone(monkeypatch):
    monkeypatch.setattr(
        parlab.pipeline.execute, "_shares", lambda targets, target_tokens: [1 / len(targets)] * len(targets)
    )
    assert {"loss", "norm", "gradients"} <= faults(uneven(pp=2, dp=2), 2)
    assert faults(case(pp=2, dp=2), 2) == set()


def test_schedules_own_microbatches_are_weighted_once():
    """A second mean over microbatches is the usual one: the losses are right, and the gradients m times too small."""

    def change(trainer):
        trainer.parts.replica.guard.terms *= trainer.parts.job.schedule.num_microbatches

    wrong = seen(change, pp=2, schedule=one_f_one_b(2, 4))
    assert {"gradients", "norm"} <= wrong
    assert "loss" not in wrong
