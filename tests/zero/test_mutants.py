"""The usual mistakes, each made on purpose and caught, and what gives it away: ranks that differ from each other, or
ranks that agree on what is not serial training.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.world import Comm, WorldError
from parlab.zero import LossScale
from parlab.zero.gradients import ShardedGradients
from parlab.zero.precision import StepGuard
from parlab.zero.state import OptimizerShard
from parlab.zero.weights import WholeWeights
from tests.nn.parity import worst_error
from tests.zero.models import LR, STAGES, add_all, replica_of, toy

SIZE, STEPS = 3, 4
RANKS, SERIAL = "ranks differ", "not serial"
SCALED = {"loss_scale": LossScale(1024.0)}
CLIPPED = {"max_norm": 1.0}


def gradient(step, rank, part):
    return toy(1 + 100 * step + 10 * rank + part)


def outcome(stage, size=SIZE, microbatches=1, bad=None, **options):
    """Each rank's weights after STEPS steps, the second with a NaN on rank `bad`."""

    def program(comm):
        replica = replica_of(comm, toy(0), stage, microbatches=microbatches, **options)
        for step in range(STEPS):
            for part in range(microbatches):
                scaled = {name: x * replica.loss_scale for name, x in gradient(step, comm.rank, part).items()}
                if step == 1 and comm.rank == bad:
                    scaled["a"][0] = math.nan
                add_all(replica, scaled)
            replica.step()
        return replica.full_weights()

    return run(program, size).results


def serial(size=SIZE, microbatches=1, bad=None, max_norm=None, **options):
    weights, optimizer = toy(0), AdamW(lr=LR)
    for step in range(STEPS):
        if step == 1 and bad is not None:
            continue
        parts = [gradient(step, rank, part) for rank in range(size) for part in range(microbatches)]
        mean = {name: sum(part[name] for part in parts) / len(parts) for name in weights}
        optimizer.step(weights, mean if max_norm is None else clip_gradients(mean, max_norm)[0])
    return weights


def wrong(stage, **options):
    """What gives the run away."""
    found, expected = outcome(stage, **options), serial(**options)
    different = any(not np.array_equal(one[name], found[0][name]) for one in found for name in expected)
    error = max(worst_error([one[name] for name in expected], list(expected.values())) for one in found)
    return ({RANKS} if different else set()) | ({SERIAL} if error > 1e-12 else set())


every_stage = pytest.mark.parametrize("stage", STAGES)


@every_stage
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("options", [{}, SCALED, CLIPPED, SCALED | {"bad": 1}], ids=str)
def test_an_unbroken_run_is_right(stage, options, microbatches):
    assert wrong(stage, microbatches=microbatches, **options) == set()


class Done:
    """The request of a message that was never sent."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        return self.value


def never_updating_the_last_element(right):
    def update(self, *arguments):
        last = self.master[-1:].copy()
        new = right(self, *arguments)
        new[-1:] = last
        return new

    return update


def keeping_its_own_part(right):
    def ireduce_scatter(comm, x, *, counts):
        start = sum(counts[: comm.rank])
        return Done(x[start : start + counts[comm.rank]].copy())

    return ireduce_scatter


def keeping_its_own_sum(right):
    return lambda comm, x: Done(x.copy())


def deciding_alone(right):
    return lambda comm, x, **how: x


def counting_a_skipped_step(right):
    def factor(self, squares):
        found = right(self, squares)
        self.steps += found is None
        return found

    return factor


def overwriting_the_sum(right):
    def finish(self):
        if self.leaving is not None:
            self.sums.pop(self.leaving.block, None)
        right(self)

    return finish


def telling_nobody(right):
    def update(self, shard):
        self.shard[...] = shard

    return update


NODES = {"size": 4, "ranks_per_node": 2}
MUTANTS = {  # stages, options, the method and its mistake, and the traces of it
    "a mean over the ranks alone": (
        (STAGES, {"microbatches": 2}),
        (StepGuard, "of", lambda right: lambda terms, *rest: right(SIZE, *rest)),
        {SERIAL},
    ),
    "an element never updated": ((STAGES, {}), (OptimizerShard, "update", never_updating_the_last_element), {SERIAL}),
    "no reduce-scatter": (([1, 2, 3], {}), (Comm, "ireduce_scatter", keeping_its_own_part), {SERIAL}),
    "no all-reduce": (([0], {}), (Comm, "iall_reduce", keeping_its_own_sum), {RANKS, SERIAL}),
    "no sum between nodes": (([2], NODES), (Comm, "iall_reduce", keeping_its_own_sum), {RANKS, SERIAL}),
    "a scale not divided out": (
        (STAGES, SCALED),
        (StepGuard, "decide", lambda right: lambda self, *rest: right(self, *rest) * self.loss_scale),
        {SERIAL},
    ),
    "clipping by a shard's own norm": (([1, 2, 3], CLIPPED), (Comm, "all_reduce", deciding_alone), {SERIAL}),
    "an overflow decided alone": (([3], SCALED | {"bad": 1}), (Comm, "all_reduce", deciding_alone), {SERIAL}),
    "a skipped step that counts": (
        (STAGES, SCALED | {"bad": 1}),
        (StepGuard, "decide", counting_a_skipped_step),
        {SERIAL},
    ),
    "a microbatch that overwrites": (
        ([2, 3], {"microbatches": 2}),
        (ShardedGradients, "_finish", overwriting_the_sum),
        {SERIAL},
    ),
    "no gather after the step": (([1, 2], {}), (WholeWeights, "put", telling_nobody), {RANKS, SERIAL}),
}


@pytest.mark.parametrize(
    ("stage", "options", "mistake", "traces"),
    [(stage, options, *rest) for (stages, options), *rest in MUTANTS.values() for stage in stages],
    ids=[f"{name}, stage {stage}" for name, ((stages, _), *_) in MUTANTS.items() for stage in stages],
)
def test_a_mistake_makes_ranks_differ_or_is_not_serial(monkeypatch, stage, options, mistake, traces):
    owner, method, make = mistake
    monkeypatch.setattr(owner, method, make(getattr(owner, method)))
    assert wrong(stage, **options) == traces


@pytest.mark.parametrize("stage", [1, 2])
def test_an_overflow_decided_by_one_rank_alone_leaves_the_others_waiting_for_its_weights(monkeypatch, stage):
    monkeypatch.setattr(Comm, "all_reduce", deciding_alone(Comm.all_reduce))
    with pytest.raises(WorldError):
        wrong(stage, bad=1, **SCALED)


LATER = {"overlap_gather": True}


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("options", [{}, SCALED | {"bad": 1}], ids=str)
def test_unbroken_steps_without_a_forward_between_wait_for_the_gathers_of_the_step_before(stage, options):
    assert wrong(stage, **options, **LATER) == set()
