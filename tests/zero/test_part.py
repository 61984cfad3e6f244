"""ZeRO of a replica that is itself cut: its norm, its cuts, its order of use, and its state piece by piece."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.zero import DataParallel, Zero
from parlab.zero.replica import Part
from parlab.zero.shards import cut
from tests.zero.models import STAGES, TOY, add_all, toy

every_stage = pytest.mark.parametrize("stage", STAGES)


def part_of(comm, stage, shares=None, parts=1):
    shares = dict.fromkeys(TOY, 1.0) | (shares or {})
    return Part(comm.split(comm.rank) if stage == 0 else comm, shares, dict.fromkeys(TOY, parts))


def made(comm, stage, part, **options):
    if stage == 0:
        return DataParallel(comm, toy(0), AdamW(lr=0.1), part=part, **options)
    return Zero(comm, toy(0), stage, AdamW(lr=0.1), part=part, **options)


@every_stage
def test_a_weight_with_two_copies_counts_half_in_the_norm_which_is_asked_for_without_clipping(stage):
    def program(comm):
        replica = made(comm, stage, part_of(comm, stage, {"b": 0.5}))
        add_all(replica, toy(1))
        return replica.step().norm

    a, b, c = (float((x**2).sum()) for x in toy(1).values())
    assert all(norm == pytest.approx(math.sqrt(a + b / 2 + c), rel=1e-14) for norm in run(program, 3).results)


@every_stage
def test_parts_add_up_to_a_ranks_mean_and_only_the_ranks_divide(stage):
    def program(comm):
        replica = made(comm, stage, part_of(comm, stage, parts=2))
        for seed in (1, 2):
            add_all(replica, toy(seed + 2 * comm.rank))
        replica.step()
        return replica.full_gradients()

    for name in TOY:
        mean = sum(toy(seed)[name] for seed in (1, 2, 3, 4)) / 2
        assert all(np.allclose(found[name], mean, rtol=1e-14) for found in run(program, 2).results)


def test_blocks_cut_apart_are_cut_alike_whatever_stands_before_them():
    assert cut([7], 3) == [[3, 2, 2]]
    assert cut([5, 7], 3)[1] != cut([6, 7], 3)[1]


@pytest.mark.parametrize(("prefetch", "waits"), [(0, 4), (1, 1)])
def test_stage_3_gathers_ahead_what_the_given_order_opens_next_and_nothing_else(prefetch, waits):
    """An order that jumps: the guess by numbers would gather for nothing."""
    order = ["a", "c", "a", "b"]

    def program(comm):
        replica = made(comm, 3, part_of(comm, 3), prefetch=prefetch)
        replica.begin(order)
        for block in order:
            with replica.weights(block):
                comm.compute("use", seconds=1.0)
        add_all(replica, toy(1))
        replica.step()

    timeline = run(program, 2).timeline
    sizes = {name: math.prod(shape) for name, shape in TOY.items()}
    sent = sum(t.nbytes for t in timeline.transfers if t.name == "all_gather")
    assert sent == 8 * sum(sizes[name] for name in order)
    in_use = [wait for wait in timeline.waits if wait.rank == 0 and wait.name == "request" and wait.start < 4e12]
    assert len(in_use) == waits


@pytest.mark.parametrize("stage", [2, 3])
def test_accumulated_gradients_are_reduced_once_and_are_the_same(stage):
    def program(comm, accumulate):
        replica = made(comm, stage, part_of(comm, stage, parts=3), accumulate=accumulate)
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
        one, other = (made(comm, stage, part_of(comm, stage)) for _ in range(2))
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
