"""ZeRO of a replica that is itself cut: its norm, its cuts, its order of use, and its state piece by piece."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.zero import DataParallel, LossScale, Zero
from parlab.zero.replica import ModelParallel
from tests.zero.models import STAGES, TOY, add_all, replica_of, toy

every_stage = pytest.mark.parametrize("stage", STAGES)


def cut_of(comm, stage, shares=None, times=1):
    shares = dict.fromkeys(TOY, 1.0) | (shares or {})
    return ModelParallel(comm.split(comm.rank) if stage == 0 else comm, shares, dict.fromkeys(TOY, times))


def made(comm, stage, cut, **options):
    if stage == 0:
        return DataParallel(comm, toy(0), AdamW(lr=0.1), model_parallel=cut, **options)
    return Zero(comm, toy(0), stage, AdamW(lr=0.1), model_parallel=cut, **options)


@every_stage
def test_a_weight_with_two_copies_counts_half_in_the_norm_which_is_asked_for_without_clipping(stage):
    def program(comm):
        replica = made(comm, stage, cut_of(comm, stage, {"b": 0.5}))
        add_all(replica, toy(1))
        return replica.step().norm

    a, b, c = (float((x**2).sum()) for x in toy(1).values())
    assert all(norm == pytest.approx(math.sqrt(a + b / 2 + c), rel=1e-14) for norm in run(program, 3).results)


@every_stage
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_times_add_up_to_a_ranks_mean_only_the_ranks_divide_and_the_scale_is_divided_out_after_a_skip_too(stage, scale):
    def program(comm):
        scaled = {"loss_scale": LossScale(scale)}
        replica = made(comm, stage, cut_of(comm, stage, times=2), **scaled)
        found = []
        for step in range(3):
            replica.begin()
            with pytest.raises(ValueError, match=r"full_gradients\(\): there is no last step; call step\(\) first"):
                replica.full_gradients()
            for seed in (1, 2):
                bad = math.nan if step == 1 and comm.rank == 1 else 1.0
                gradients = toy(10 * step + seed + 2 * comm.rank)
                add_all(replica, {name: bad * replica.loss_scale * x for name, x in gradients.items()})
            found.append((replica.step().skipped, replica.full_gradients()))
        return found

    for found in run(program, 2).results:
        assert [skipped for skipped, _ in found] == [False, True, False]
        for step in (0, 2):
            for name in TOY:
                mean = sum(toy(10 * step + seed)[name] for seed in (1, 2, 3, 4)) / 2
                assert np.allclose(found[step][1][name], mean, rtol=1e-14)


@every_stage
def test_blocks_of_a_cut_replica_are_cut_alike_whatever_stands_before_them(stage):
    """So copies of a weight on several ranks are summed in one order. A whole replica deals out what is left over."""
    sizes = {"a": 5, "b": 7}

    def counts(comm, whole):
        params, cut = {name: np.ones(n) for name, n in sizes.items()}, cut_of(comm, stage)
        made_of = ModelParallel(cut.comm, dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, 1))
        replica = replica_of(comm, params, stage, model_parallel=None if whole else made_of)
        return [block.layout.counts for block in replica._blocks.values()]

    alone = [[5], [7]]
    assert run(counts, 3, whole=False).results == [[[2, 2, 1], [3, 2, 2]] if stage else alone] * 3
    assert run(counts, 3, whole=True).results == [[[2, 2, 1], [2, 2, 3]] if stage else alone] * 3


def test_stage_3_gathers_ahead_what_the_given_order_opens_next_and_nothing_else():
    """An order that jumps: the guess by numbers would gather for nothing."""
    order = ["a", "c", "a", "b"]

    def program(comm):
        replica = made(comm, 3, cut_of(comm, 3))
        replica.begin(order)
        for block in order:
            with replica.weights(block):
                comm.compute("use", seconds=1.0)
        add_all(replica, toy(1))
        replica.step()
        replica.full_weights()  # in no order: it was that step's

    timeline = run(program, 2).timeline
    sizes = {name: math.prod(shape) for name, shape in TOY.items()}
    sent = sum(t.nbytes for t in timeline.transfers if t.name == "all_gather")
    assert sent == 8 * (sum(sizes[name] for name in order) + 12)
    in_use = [wait for wait in timeline.waits if wait.rank == 0 and wait.name == "request" and wait.start < 4e12]
    assert len(in_use) == 1


@pytest.mark.parametrize("stage", [2, 3])
def test_accumulated_gradients_are_reduced_once_and_are_the_same(stage):
    def program(comm, accumulate):
        replica = made(comm, stage, cut_of(comm, stage, times=3), accumulate=accumulate)
        for seed in (1, 2, 3):
            add_all(replica, toy(seed))
        replica.step()
        return replica.full_gradients()

    once, each = (run(program, 2, accumulate) for accumulate in (True, False))
    sent = [sum(t.nbytes for t in done.timeline.transfers if t.name == "reduce_scatter") for done in (once, each)]
    assert sent == [8 * 12, 3 * 8 * 12]
    assert all(np.allclose(once.results[1][name], each.results[1][name], rtol=1e-14) for name in TOY)


@every_stage
def test_state_written_into_another_replica_makes_it_go_on_bit_for_bit(stage):
    def program(comm):
        one, other = (made(comm, stage, cut_of(comm, stage)) for _ in range(2))
        add_all(one, toy(1))
        one.step()
        for source, target in zip(one.state(), other.state(), strict=True):
            for x, y in zip(source[2:], target[2:], strict=True):
                y[...] = x
        other.restore(one.progress)
        assert other.progress == one.progress == {"steps": 1, "skipped": 0}
        for replica in (one, other):
            replica.begin()
            add_all(replica, toy(2))
            replica.step()
        return all((one.full_weights()[name] == x).all() for name, x in other.full_weights().items())

    assert run(program, 3).results == [True] * 3
