"""Schedules executed on arrays: the serial loss and gradients, and what cannot run refused."""

import numpy as np
import pytest

from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.pipeline import (
    Action,
    Schedule,
    execute,
    gpipe,
    interleaved_one_f_one_b,
    interpreter,
    naive,
    one_f_one_b,
    partition,
    run_schedule,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.world import run
from tests.libraries import EACH_LIBRARY
from tests.nn.parity import relative_error
from tests.pipeline.models import (
    CONFIG,
    TanhStage,
    name_of,
    off_serial,
    serial,
    tanh_model,
    together,
)


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
@pytest.mark.parametrize("schedule", [interleaved_one_f_one_b(2, 4, 2), zb_h1(4, 4), zb_v(2, 3)], ids=name_of)
def test_loss_and_gradients_on_other_libraries_are_the_serial_ones_to_1e_12(schedule, xp):
    model, batch, target, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches, xp)
    results = run(run_schedule, schedule.num_ranks, schedule, model, inputs, targets).results
    assert off_serial(results, model, batch, target) <= 1e-12


@pytest.mark.parametrize("schedule", [interleaved_one_f_one_b(2, 4, 2), zb_h1(4, 4)], ids=name_of)
def test_invariant_that_a_rank_keeps_nothing_after_its_last_action(schedule, monkeypatch):
    made = []

    class Kept(interpreter.Interpreter):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(execute, "Interpreter", Kept)
    model, _, _, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches)
    run(run_schedule, schedule.num_ranks, schedule, model, inputs, targets)
    assert len(made) == schedule.num_ranks
    for rank in made:
        kept = [rank.requests, rank.activations, rank.received_gradients, rank.caches, rank.pendings]
        assert not any(kept)


@pytest.mark.parametrize(
    "schedule", [naive(4, 4), gpipe(4, 4), interleaved_one_f_one_b(2, 4, 2), zb_h1(4, 4), zb_h2(4, 4)], ids=name_of
)
def test_schedules_that_sum_in_the_same_order_give_the_same_bits(schedule):
    model, _, _, inputs, targets = tanh_model(4, 4)
    loss, gradients = together(run(run_schedule, schedule.num_ranks, schedule, model, inputs, targets).results)
    expected_loss, expected = together(run(run_schedule, 4, one_f_one_b(4, 4), model, inputs, targets).results)
    assert loss == expected_loss
    assert all((gradients[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize(
    "schedule",
    [
        one_f_one_b(8, 8),
        interleaved_one_f_one_b(2, 4, 4),
        zb_h1(4, 5),
        zb_v(2, 3),  # both ends are on one rank
    ],
    ids=name_of,
)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_a_small_llama_has_the_serial_loss_and_gradients_to_1e_12(schedule, tied):
    config = LlamaConfig(**{**vars(CONFIG), "tie_word_embeddings": tied})
    model = Llama.random(config, seed=3, xp=np, dtype="float64")
    tokens = np.random.default_rng(4).integers(13, size=(schedule.num_microbatches * 2, 6))  # [m·B, S + 1]
    expected_loss, expected = model.loss_and_gradients(tokens[:, :-1], tokens[:, 1:])
    inputs, targets = (
        np.split(tokens[:, :-1], schedule.num_microbatches),
        np.split(tokens[:, 1:], schedule.num_microbatches),
    )
    stages = model.stages(partition(8, schedule.num_stages))
    results = run(run_schedule, schedule.num_ranks, schedule, stages, inputs, targets).results
    (loss,) = (loss for loss, _ in results if loss is not None)
    assert abs(loss - expected_loss) <= 1e-12 * expected_loss
    for name in expected:
        parts = [gradients[name] for _, gradients in results if name in gradients]
        apart = schedule.rank_of(0, 0) != schedule.rank_of(schedule.num_stages - 1, 0)
        assert len(parts) == 1 + (tied and name == "model.embed_tokens.weight" and apart)
        assert relative_error(sum(parts), expected[name]) <= 1e-12


def test_microbatches_of_unequal_size_count_by_their_targets():
    model, batch, target, _, _ = tanh_model(3, 4)
    cuts = [slice(0, 1), slice(1, 6), slice(6, 12)]
    inputs, targets = [batch[c] for c in cuts], [target[c] for c in cuts]
    results = run(run_schedule, 3, one_f_one_b(3, 3), model, inputs, targets).results
    assert off_serial(results, model, batch, target) <= 1e-12


class LossOf(TanhStage):
    """Its loss is the first number of its targets, a float32."""

    def forward(self, x, target=None):
        _, cache = super().forward(x, target)
        return target[0, 0], cache


def test_losses_in_float32_are_added_in_float64_16777216_and_1_is_16777217():
    batch = np.zeros((2, 1, 1), np.float32)
    stage = LossOf({"w": np.ones((1, 1), np.float32)}, "w")
    targets = np.float32([[[2**25]], [[2]]])  # each counts half
    ((loss, _),) = run(run_schedule, 1, one_f_one_b(1, 2), [stage], list(batch), list(targets)).results
    assert np.float32(2**24) + np.float32(1) == np.float32(2**24)
    assert loss == 2**24 + 1


def test_a_stage_on_three_ranks_is_summed_in_one_order_and_has_the_same_bits_on_each():
    schedule = Schedule([[Action(kind, 0, r + 3 * i) for i in range(2) for kind in "FB"] for r in range(3)])
    assert schedule.holders(0) == (0, 1, 2)
    model, batch, target, inputs, targets = tanh_model(1, 6)
    first, *others = [
        gradients["w0"] for _, gradients in run(run_schedule, 3, schedule, model, inputs, targets).results
    ]
    assert relative_error(first, serial(model, batch, target)[1]["w0"]) <= 1e-12
    assert all((other == first).all() for other in others)


# What cannot run


def own_stages(comm, schedule, model, inputs, targets, like):
    own = {s: model[s] for s in range(schedule.num_stages) if comm.rank in schedule.holders(s)}
    return run_schedule(comm, schedule, own, inputs, targets, like=like)


def test_a_rank_that_holds_only_its_own_stages_needs_to_be_told_what_comes():
    model, batch, target, inputs, targets = tanh_model(4, 4)
    arguments = (own_stages, 2, interleaved_one_f_one_b(2, 4, 2), model, inputs, targets)
    with pytest.raises(ValueError, match="like=None: without stage 1 this rank cannot tell what comes to stage 2"):
        run(*arguments, like=None)
    assert off_serial(run(*arguments, like=inputs[0]).results, model, batch, target) <= 1e-12


class Transposed(TanhStage):
    def backward_input(self, dy, cache):
        dx, pending = super().backward_input(dy, cache)
        return dx.T, pending


def test_a_gradient_of_the_wrong_shape_is_refused_where_it_is_made():
    model, _, _, inputs, targets = tanh_model(3, 4)
    model[1] = Transposed(model[1].weights, "w1")
    with pytest.raises(ValueError, match=r"stage 1, microbatch 0: backward gave shape \(5, 3\) .* of shape \(3, 5\)"):
        run(run_schedule, 3, one_f_one_b(3, 4), model, inputs, targets)
