"""Loss scales, overflows and master weights, in real float16."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import run
from parlab.arrays import to_numpy
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW, gradient_norm
from parlab.zero import LossScale, forward_backward
from parlab.zero.zero import Zero
from tests.zero.models import STAGES, add_all, batches, model, replica_of, same_bits, toy

HALF = {"dtype": "float16"}
every_stage = pytest.mark.parametrize("stage", STAGES)


def snapshot(replica):
    """Weights, masters and moments of this rank, as bits."""
    state = [x.copy() for M in replica.M.values() for x in (M.master, M.mean, M.square)]
    return [*replica.full_weights().values(), *state]


def halves(seed, scale=1.0):
    """Gradients whose sums float16 has exactly, whatever power of two up to 65536 they are multiplied by."""
    return {name: np.float16(2**-7) * np.sign(x) * scale for name, x in toy(seed, "float32").items()}


def broken(gradients, value):
    gradients["b"][1, 1] = value
    return gradients


@every_stage
@pytest.mark.parametrize("value", [-np.inf, np.nan], ids=["-inf", "nan"])
def test_one_overflow_on_one_rank_skips_the_step_on_all_4_halves_the_scale_and_touches_no_bit(stage, value):
    def program(comm):
        replica = replica_of(comm, toy(0, "float32"), stage, **HALF)
        add_all(replica, halves(1, replica.loss_scale))
        assert not replica.step().skipped
        before = snapshot(replica)
        gradients = halves(2, replica.loss_scale)
        add_all(replica, broken(gradients, value) if comm.rank == 2 else gradients)
        result = replica.step()
        untouched = all(np.array_equal(a, b) for a, b in zip(before, snapshot(replica), strict=True))
        return (
            result.skipped,
            result.loss_scale,
            replica.loss_scale,
            replica.guard.steps,
            replica.guard.skipped,
            untouched,
        )

    assert run(program, 4).results == [(True, 2.0**15, 2.0**15, 1, 1, True)] * 4


@every_stage
@pytest.mark.parametrize(
    ("ranks", "values", "skipped"),
    [
        (1, (40_000,), False),
        (2, (40_000,), True),  # the sum over ranks
        (1, (40_000, 40_000), True),  # the sum over microbatches
        (2, (1, 70_000), True),  # the conversion
        (2, (10_000, 10_000), False),
    ],
)
def test_an_overflow_that_only_a_sum_or_the_conversion_has_skips_the_step_and_warns_of_nothing(
    stage, ranks, values, skipped
):
    def program(comm):
        replica = replica_of(comm, {"w": np.ones(5, np.float32)}, stage, microbatches=len(values), **HALF)
        for value in values:
            replica.add_gradients("w", {"w": np.full(5, value, np.float32)})
        return replica.step().skipped

    assert run(program, ranks).results == [skipped] * ranks


@every_stage
def test_gradients_of_1e_minus_8_vanish_in_float16_and_survive_with_a_scale(stage):
    """Nothing between 0 and 6e-8 is there in float16."""

    def program(comm, scale):
        adam = AdamW(lr=0.1, eps=1e-12, weight_decay=0.0)
        replica = replica_of(comm, {"w": np.ones(3, np.float32)}, stage, optimizer=adam, loss_scale=scale, **HALF)
        replica.add_gradients("w", {"w": np.full(3, 1e-8 * replica.loss_scale, np.float16)})
        replica.step()
        return replica.full_weights()["w"]

    scaled, unscaled = (run(program, 2, LossScale(value)).results[0] for value in (2.0**16, 1.0))
    assert scaled == pytest.approx(np.full(3, 0.9), abs=1e-3)
    assert (unscaled == 1).all()


@every_stage
def test_100_steps_of_1e_minus_5_move_a_master_to_0_999_where_float16_alone_stays_at_1(stage):
    """Below 1, float16's neighbours are 2⁻¹¹ apart: a single step of 1e-5 is rounded away."""

    def program(comm):
        adam = AdamW(lr=1e-5, weight_decay=0.0)
        replica = replica_of(comm, {"w": np.ones(3, np.float32)}, stage, optimizer=adam, **HALF)
        seen = []
        for _ in range(100):
            replica.add_gradients("w", {"w": np.full(3, replica.loss_scale / 4, np.float16)})
            replica.step()
            seen.append(float(replica.full_weights()["w"][0]))
        return seen

    seen = run(program, 2).results[1]
    assert seen[0] == 1.0 == float(np.float16(1) - np.float16(1e-5))
    assert seen[-1] == float(np.float16(0.999))


@every_stage
def test_where_clipping_asks_for_the_norm_a_nan_skips_the_step_without_a_loss_scale(stage):
    def program(comm):
        replica = replica_of(comm, toy(0), stage, max_norm=1.0)
        before = replica.full_weights()
        add_all(replica, broken(toy(1), np.nan) if comm.rank == 1 else toy(1))
        result = replica.step()
        return result.skipped, result.loss_scale, math.isnan(result.norm), same_bits(before, replica.full_weights())

    assert run(program, 3).results == [(True, 1.0, True, True)] * 3


@every_stage
def test_a_step_in_which_the_scale_grows_divides_by_the_scale_that_its_gradients_had(stage):
    def program(comm, interval):
        replica = replica_of(comm, toy(0), stage, loss_scale=LossScale(4.0, interval=interval), max_norm=1e6)
        norms = []
        for seed in (1, 2):
            add_all(replica, {name: replica.loss_scale * x for name, x in toy(seed).items()})
            norms.append(replica.step().norm)
        return norms, replica.loss_scale, replica.full_weights()

    (norms, grown, weights), (plain_norms, kept, plain) = (run(program, 3, every).results[0] for every in (1, 9))
    assert (grown, kept) == (16.0, 4.0)
    assert norms == plain_norms == pytest.approx([gradient_norm(toy(seed)) for seed in (1, 2)], rel=1e-14)
    assert same_bits(weights, plain)


def test_a_backward_pass_that_overflows_is_skipped_without_a_warning():
    """2³⁰ is infinite in float16."""
    start, (text,) = model(dtype="float32"), batches(1, 1)

    def program(comm):
        mine = Llama(start.config, dict(start.weights))
        options = {"blocks": mine.weight_blocks, "loss_scale": LossScale(2.0**30)}
        replica = replica_of(comm, mine.weights, 1, **options, **HALF)
        loss = forward_backward(replica, mine, *text)
        return replica.step().skipped, math.isfinite(loss)

    assert run(program, 1).results == [(True, True)]


def test_a_scale_moves_by_its_factors_and_never_to_infinity():
    scale = LossScale(2.0, growth=4.0, backoff=0.25, interval=2)
    values = []
    for overflow in (False, False, False, True, False, False):
        scale.update(overflow)
        values.append(scale.value)
    assert values == [2, 8, 8, 2, 2, 8]
    scale = LossScale(1.0, interval=1)
    for _ in range(3000):
        scale.update(overflow=False)
    assert scale.value == 2.0**1023


def test_an_overflow_at_the_least_scale_of_2_to_the_minus_14_is_an_error_that_names_it():
    """float16's smallest normal number: the backward begins with the scale. From 1 that is after 14 overflows."""
    scale = LossScale(1.0, interval=2)
    for _ in range(14):
        scale.update(overflow=True)
    assert scale.value == 2.0**-14 == np.finfo(np.float16).tiny
    with pytest.raises(FloatingPointError, match=r"loss scale 6\.10352e-05: a gradient overflows still, and no scale"):
        scale.update(overflow=True)
    for overflow in (False, False):
        scale.update(overflow)
    assert scale.value == 2.0**-13
    odd = LossScale(1e-4, backoff=0.5)
    odd.update(overflow=True)
    assert odd.value == 2.0**-14


@every_stage
def test_params_in_float16_have_float32_masters(stage):
    def program(comm):
        replica = replica_of(comm, toy(0, "float16"), stage)
        return str(replica.M["a"].master.dtype), str(to_numpy(replica.full_weights()["a"]).dtype), replica.loss_scale

    assert run(program, 2).results == [("float32", "float16", 65536.0)] * 2


def test_an_overflow_without_a_loss_scale_is_warned_of_as_ever():
    def program(comm):
        zero = Zero(comm, {"w": np.ones(2, np.float32)}, 1, AdamW(), microbatches=2)
        for _ in range(2):
            zero.add_gradients("w", {"w": np.full(2, 3e38, np.float32)})

    with pytest.raises(RuntimeWarning, match="overflow encountered in add"):
        run(program, 1)
