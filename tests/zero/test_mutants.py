"""The usual mistakes, each made on purpose and caught, and what gives it away: ranks that differ from each other, or
ranks that agree on what is not serial training.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.world import Comm, MismatchError, RequestError, WorldError
from parlab.zero import LossScale, Zero, elements_sent
from parlab.zero.data_parallel import DataParallel
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.precision import StepGuard
from parlab.zero.shards import FlatLayout
from parlab.zero.stages import Weights
from parlab.zero.state import OptimizerShard
from tests.nn.parity import worst_error
from tests.zero.models import LR, NUM_PARAMS, STAGES, add_all, model, replica_of, timed, toy, trained

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
sharded = pytest.mark.parametrize("stage", [1, 2, 3])


@every_stage
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("options", [{}, SCALED, CLIPPED, SCALED | {"bad": 1}], ids=str)
def test_an_unbroken_run_is_right(stage, options, microbatches):
    assert wrong(stage, microbatches=microbatches, **options) == set()


@every_stage
@pytest.mark.parametrize("count", ["ranks alone", "microbatches alone", "one too many"])
def test_a_mean_over_the_wrong_count_is_caught_though_adam_hides_all_but_its_eps(monkeypatch, stage, count):
    right = StepGuard.of
    counts = {"ranks alone": SIZE, "microbatches alone": 2, "one too many": SIZE * 2 + 1}
    monkeypatch.setattr(StepGuard, "of", lambda parts, *rest: right(counts[count], *rest))
    assert wrong(stage, microbatches=2) == {SERIAL}


@every_stage
def test_a_shards_last_element_never_updated_is_caught(monkeypatch, stage):
    right = OptimizerShard.update

    def without_last(self, *arguments):
        last = self.master[-1:].copy()
        new = right(self, *arguments)
        new[-1:] = last
        return new

    monkeypatch.setattr(OptimizerShard, "update", without_last)
    assert wrong(stage) == {SERIAL}


@sharded
def test_moments_shifted_by_one_rank_against_their_masters_are_caught(monkeypatch, stage):
    """4 ranks own 3 of 12 weights each, so that nothing but the numbers tells."""
    right = OptimizerShard.update

    def shifted(self, *arguments):
        for moment in (self.mean, self.square):
            moment[...] = self.comm.sendrecv(moment, self.comm.right, self.comm.left)
        return right(self, *arguments)

    options = {"size": 4, "blocks": {"all": ("a", "b", "c")}}
    assert wrong(stage, **options) == set()
    monkeypatch.setattr(OptimizerShard, "update", shifted)
    assert wrong(stage, **options) == {SERIAL}


@pytest.mark.parametrize(("stage", "microbatches"), [(0, 1), (1, 2)])
def test_a_gradient_whose_buffer_is_reused_too_early_is_caught(monkeypatch, stage, microbatches):
    """One buffer for all blocks: it is not free while it waits for its bucket, or for the other microbatches."""
    right, buffers = FlatLayout.pack, threading.local()

    def reusing(self, arrays, dtype):
        flat = right(self, arrays, dtype)
        if not hasattr(self, "packed_before"):  # the weights
            self.packed_before = True
            return flat
        if not hasattr(buffers, "only"):
            buffers.only = np.empty(flat.size + 99)
        buffers.only[: self.size] = flat
        return buffers.only[: self.size]

    monkeypatch.setattr(FlatLayout, "pack", reusing)
    assert wrong(stage, microbatches=microbatches) == {SERIAL}


@pytest.mark.parametrize("stage", [2, 3])
def test_a_gradient_freed_before_the_other_microbatches_have_come_is_caught(monkeypatch, stage):
    right = ShardedGradients.add

    def freeing(self, gradients, complete):
        right(self, gradients, complete)
        self.finish()
        if not complete:
            self.free()

    monkeypatch.setattr(ShardedGradients, "add", freeing)
    monkeypatch.setattr(ShardedGradients, "shard", lambda self: self.sum)
    assert wrong(stage, microbatches=1) == set()
    assert wrong(stage, microbatches=2) == {SERIAL}


@every_stage
def test_a_microbatch_that_overwrites_instead_of_adding_is_caught(monkeypatch, stage):
    add_to_bucket, add, finish = DataParallel._add, WholeGradients.add, ShardedGradients.finish

    def overwriting_in_buckets(self, block, gradients, complete):
        self._gradients.pop(block, None)
        add_to_bucket(self, block, gradients, complete)

    def overwriting_whole(self, gradients, complete):
        self.whole = None
        add(self, gradients, complete)

    def overwriting_shard(self):
        self.sum = self.sum if self.request is None else None
        finish(self)

    monkeypatch.setattr(DataParallel, "_add", overwriting_in_buckets)
    monkeypatch.setattr(WholeGradients, "add", overwriting_whole)
    monkeypatch.setattr(ShardedGradients, "finish", overwriting_shard)
    assert wrong(stage, microbatches=1) == set()
    assert wrong(stage, microbatches=2) == {SERIAL}


class Done:
    """The request of a message that was never sent."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        return self.value


@sharded
def test_a_reduce_scatter_that_was_dropped_is_caught(monkeypatch, stage):
    def own_part(comm, x, *, counts, ranks_per_node):
        start = sum(counts[: comm.rank])
        return Done(x[start : start + counts[comm.rank]].copy())

    monkeypatch.setattr(Comm, "ireduce_scatter", own_part)
    assert wrong(stage) == {SERIAL}


def test_an_all_reduce_that_was_dropped_is_caught_by_ranks_that_differ(monkeypatch):
    monkeypatch.setattr(Comm, "iall_reduce", lambda comm, x, **nodes: Done(x.copy()))
    assert wrong(0) == {RANKS, SERIAL}


def test_shards_that_nodes_do_not_reduce_among_each_other_are_caught_by_ranks_that_differ(monkeypatch):
    options = {"size": 4, "ranks_per_node": 2, "repeat_on_nodes": True}
    assert wrong(2, **options) == set()
    monkeypatch.setattr(Comm, "iall_reduce", lambda comm, x, **nodes: Done(x.copy()))
    assert wrong(2, **options) == {RANKS, SERIAL}


@sharded
def test_counts_of_two_ranks_swapped_on_all_of_them_are_caught(monkeypatch, stage):
    """Two ranks with half of 12 weights each: the shapes fit, the owners do not."""
    right = FlatLayout.__init__

    def swapped(self, arrays, counts, rank):
        right(self, arrays, counts, rank)
        self.own = slice(6, 12) if rank == 0 else slice(0, 6)

    options = {"size": 2, "blocks": {"all": ("a", "b", "c")}}
    assert wrong(stage, **options) == set()
    monkeypatch.setattr(FlatLayout, "__init__", swapped)
    assert SERIAL in wrong(stage, **options)


@sharded
def test_counts_of_two_ranks_swapped_on_one_of_them_are_a_mismatch_that_shows_both_calls(monkeypatch, stage):
    right = FlatLayout.__init__

    def swapped(self, arrays, counts, rank):
        right(self, arrays, [counts[0], counts[2], counts[1]] if rank == 0 else counts, rank)

    monkeypatch.setattr(FlatLayout, "__init__", swapped)
    with pytest.raises(MismatchError, match=r"(?s)counts=\[0, 1, 0\].*counts=\[0, 0, 1\]"):
        wrong(stage)


@every_stage
def test_a_loss_scale_not_divided_out_is_caught(monkeypatch, stage):
    right = StepGuard.factor

    def undivided(self, gradients, comm):
        return right(self, gradients, comm) * self.loss_scale

    monkeypatch.setattr(StepGuard, "factor", undivided)
    assert wrong(stage, **SCALED) == {SERIAL}


@sharded
def test_clipping_by_the_shards_own_norm_is_caught(monkeypatch, stage):
    right = StepGuard.factor
    monkeypatch.setattr(StepGuard, "factor", lambda self, gradients, comm: right(self, gradients, None))
    assert wrong(stage, **CLIPPED) == {SERIAL}


@pytest.mark.parametrize("stage", [1, 2])
def test_an_overflow_decided_by_one_rank_alone_leaves_the_others_waiting_for_its_weights(monkeypatch, stage):
    right = StepGuard.factor
    monkeypatch.setattr(StepGuard, "factor", lambda self, gradients, comm: right(self, gradients, None))
    with pytest.raises(WorldError):
        wrong(stage, bad=1, **SCALED)


def test_an_overflow_decided_by_one_rank_alone_is_not_serial_in_stage_3_whose_step_sends_no_weights(monkeypatch):
    right = StepGuard.factor
    monkeypatch.setattr(StepGuard, "factor", lambda self, gradients, comm: right(self, gradients, None))
    assert wrong(3, bad=1, **SCALED) == {SERIAL}


@every_stage
def test_a_skipped_step_that_counts_for_adams_bias_is_caught(monkeypatch, stage):
    right = StepGuard.factor

    def counting(self, gradients, comm):
        factor = right(self, gradients, comm)
        self.steps += factor is None
        return factor

    monkeypatch.setattr(StepGuard, "factor", counting)
    assert wrong(stage, **SCALED) == set()
    assert wrong(stage, bad=1, **SCALED) == {SERIAL}


@every_stage
def test_an_overflow_that_is_not_looked_for_poisons_the_model(monkeypatch, stage):
    def careless(self, gradients, comm):
        self.steps += 1
        return self.mean / self.loss_scale

    monkeypatch.setattr(StepGuard, "factor", careless)
    assert wrong(stage, **SCALED) == set()
    assert np.isnan(outcome(stage, bad=1, **SCALED)[0]["a"]).any()


@pytest.mark.parametrize("stage", [1, 2])
def test_weights_not_gathered_after_the_step_are_caught_by_ranks_that_differ(monkeypatch, stage):
    def update(self, shard):
        self.shard[...] = shard

    monkeypatch.setattr(Weights, "update", update)
    assert wrong(stage) == {RANKS, SERIAL}


LATER = {"overlap_gather": True}


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("options", [{}, SCALED | {"bad": 1}], ids=str)
def test_unbroken_steps_without_a_forward_between_wait_for_the_gathers_of_the_step_before(stage, options):
    assert wrong(stage, **options, **LATER) == set()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_forward_that_does_not_wait_for_a_blocks_new_weights_is_caught_by_their_stand_ins(monkeypatch, stage):
    assert trained(stage, 2, 2, **LATER)
    monkeypatch.setattr(Weights, "open", lambda self: self.views)
    with pytest.raises(RuntimeError, match="is being gathered after a step: use it inside"):
        trained(stage, 2, 2, **LATER)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_gather_that_nobody_waits_for_is_caught_at_the_end_of_the_program(monkeypatch, stage):
    def forgetting(self):
        self.request = None
        self.params.update(self.views)

    monkeypatch.setattr(Weights, "finish", forgetting)
    with pytest.raises(RequestError, match="returned without waiting for iall_gather"):
        wrong(stage, **LATER)


def test_another_block_kept_than_the_last_is_caught_by_the_bytes(monkeypatch):
    right, start = Weights.__init__, model()
    last = sum(start.weights[name].size for name in start.weight_blocks["head"])

    def keeping_the_first(self, comm, layout, params, dtype, block, per_node, *, sharded, keep):
        right(self, comm, layout, params, dtype, block, per_node, sharded=sharded, keep=block == "embedding")

    def sent():
        timeline = timed(3, 3, keep_last_block=True)
        return sum(timeline.bytes_sent(rank) for rank in range(3))

    expected = 8 * elements_sent(NUM_PARAMS[False], 3, 3, last_block=last)
    assert sent() == expected
    monkeypatch.setattr(Weights, "__init__", keeping_the_first)
    assert sent() != expected


KEPT = [{}, {"keep_after_forward": True}, {"keep_last_block": True}, {"prefetch": 2}]


@pytest.mark.parametrize("options", KEPT, ids=str)
def test_gathered_weights_that_outlive_a_step_are_caught(monkeypatch, options):
    """What the evaluation gathered ahead and did not use."""

    def update(self, shard):
        self.finish()
        self.shard[...] = shard

    monkeypatch.setattr(Weights, "update", update)
    assert stale_weights(**options) == {SERIAL}


@pytest.mark.parametrize("options", KEPT, ids=str)
def test_unbroken_weights_are_gathered_anew_after_a_step(options):
    assert stale_weights(**options) == set()


def stale_weights(**options):
    """Whether weights ever differ from serial training's, where an evaluation breaks off just before each step."""

    def program(comm):
        zero = Zero(comm, toy(0), 3, AdamW(lr=LR), **options)
        seen = []
        for _ in range(STEPS):
            seen.append(zero.full_weights())
            add_all(zero, toy(1))
            for name in "ab":  # c is gathered ahead
                with zero.weights(name):
                    pass
            zero.step()
        return seen

    weights, optimizer, errors = toy(0), AdamW(lr=LR), []
    for seen in zip(*run(program, SIZE).results, strict=True):
        errors += [worst_error([one[name] for name in weights], list(weights.values())) for one in seen]
        optimizer.step(weights, toy(1))
    return set() if max(errors) <= 1e-12 else {SERIAL}
