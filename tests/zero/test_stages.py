"""What a `Zero` promises in every stage."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.world import MismatchError
from parlab.zero.prefetch import Prefetch
from tests.zero.models import STAGES, add_all, replica_of, same_bits, toy

every_stage = pytest.mark.parametrize("stage", STAGES)


@every_stage
@pytest.mark.parametrize("differs", ["weights", "optimizer"])
def test_weights_or_an_optimizer_of_each_ranks_own_are_a_mismatch_and_not_garbage(stage, differs):
    """One weight, or the rate: a step would average gradients of two models."""

    def program(comm):
        params, optimizer = toy(0), AdamW()
        last = params[max(params)]
        if comm.rank == 1 and differs == "weights":
            last[...] += 1e-6
        if comm.rank == 1 and differs == "optimizer":
            optimizer = AdamW(lr=0.002)
        replica_of(comm, params, stage, optimizer=optimizer)

    with pytest.raises(MismatchError, match="weights or optimizer differ from rank to rank"):
        run(program, 3)


@every_stage
def test_gradients_are_copied_so_that_the_caller_may_reuse_their_memory_at_once(stage):
    def program(comm, reuse):
        replica = replica_of(comm, toy(0), stage)
        buffers = toy(1)
        for name in reversed(replica.block_names):
            replica.add_gradients(name, {name: buffers[name]})
            if reuse:
                buffers[name][...] = np.nan
        replica.step()
        return replica.full_weights()

    reused, left = (run(program, 3, reuse).results[2] for reuse in (True, False))
    assert same_bits(reused, left)


@every_stage
def test_full_weights_are_copies(stage):
    def program(comm):
        replica = replica_of(comm, toy(0), stage)
        for x in replica.full_weights().values():
            x[...] = np.nan
        return replica.full_weights()

    assert same_bits(run(program, 2).results[0], toy(0))


@every_stage
def test_a_step_inside_weights_is_refused_and_after_it_goes_on(stage):
    """Its weights would change under the hands of whoever computes with them; in stage 3 they would be stale."""

    def program(comm):
        replica = replica_of(comm, toy(0), stage)
        add_all(replica, toy(1))
        with replica.weights("b"), pytest.raises(ValueError, match=r"step\(\) inside `with weights\('b'\)`: leave it"):
            replica.step()
        assert replica.guard.steps == 0
        replica.step()
        return replica.guard.steps

    assert run(program, 3).results == [1] * 3


@every_stage
def test_a_block_may_be_used_twice_at_once_and_stays_until_the_last_has_left_it(stage):
    def program(comm):
        replica = replica_of(comm, {"w": np.ones(3)}, stage)
        with replica.weights("w") as outer:
            with replica.weights("w") as inner:
                assert inner["w"] is outer["w"]
            return float(outer["w"].sum())

    assert run(program, 2).results == [3.0, 3.0]


@every_stage
def test_an_error_inside_weights_gives_the_block_back(stage):
    def program(comm):
        replica = replica_of(comm, {"w": np.ones(3)}, stage)
        with pytest.raises(ZeroDivisionError), replica.weights("w"):
            raise ZeroDivisionError
        assert stage < 3 or replica.W["w"].users == 0
        replica.add_gradients("w", {"w": np.ones(3)})
        return replica.step().skipped

    assert run(program, 2).results == [False, False]


@every_stage
def test_gradients_may_come_in_any_order_and_without_their_weights_having_been_used(stage):
    def program(comm, order):
        replica = replica_of(comm, toy(0), stage)
        for name in order:
            replica.add_gradients(name, {name: toy(1)[name]})
        replica.step()
        return replica.full_weights()

    found = [run(program, 3, order).results[1] for order in ("abc", "cba", "bca")]
    for one in found[1:]:
        for name in one:
            assert one[name] == pytest.approx(found[0][name], rel=1e-15)


@every_stage
def test_strided_and_transposed_gradients_land_where_they_belong(stage):
    def program(comm, strided):
        replica = replica_of(comm, {"w": np.zeros((2, 3))}, stage)
        gradient = np.arange(6.0).reshape(3, 2).T - 2.5
        replica.add_gradients("w", {"w": gradient if strided else gradient.copy()})
        replica.step()
        return replica.full_weights()

    assert same_bits(run(program, 2, True).results[0], run(program, 2, False).results[0])


def test_in_the_order_aba_that_a_step_was_told_b_is_gathered_beside_a_then_a_then_none():
    prefetch = Prefetch("abc")
    prefetch.begin("aba")
    assert [prefetch.after(block, alone=True) for block in "aba"] == ["b", "a", None]
