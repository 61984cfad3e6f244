"""A whole model's step on ranks against the serial step."""

import numpy as np
import pytest

from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_waiting_bytes
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.pipeline import (
    gpipe,
    interleaved_one_f_one_b,
    kept_bytes,
    losses_of_steps,
    one_f_one_b,
    simulate,
    step_of_ranks,
    zb_h1,
)
from tests.nn.parity import relative_error
from tests.pipeline.models import name_of, peak_but_for_sent, simulated_bytes

CONFIG = LlamaConfig(
    vocab_size=5, hidden_size=4, intermediate_size=8, num_hidden_layers=4, num_attention_heads=2, initializer_range=0.3
)
MODEL = Llama.random(CONFIG, seed=1, dtype="float64")
TOKENS = np.random.default_rng(2).integers(5, size=(8, 3))


@pytest.mark.parametrize(
    "schedule", [gpipe(2, 4), one_f_one_b(4, 8), interleaved_one_f_one_b(2, 2, 2), zb_h1(4, 4)], ids=name_of
)
def test_loss_and_every_gradient_are_the_serial_ones_to_1e_12(schedule):
    loss, gradients = MODEL.loss_and_gradients(TOKENS, TOKENS)
    done = step_of_ranks(schedule, MODEL, TOKENS, TOKENS)
    assert abs(done.loss - loss) <= 1e-12 * loss
    assert done.gradients.keys() == gradients.keys()
    assert max(relative_error(done.gradients[name], gradients[name]) for name in gradients) <= 1e-12
    assert done.timeline.size == schedule.num_ranks


def test_what_change_returns_takes_a_stages_place():
    seen = []
    step_of_ranks(gpipe(2, 2), MODEL, TOKENS, TOKENS, lambda stage: seen.append(stage.weight_names) or stage)
    assert len(seen) == 2
    assert set(seen[0]) | set(seen[1]) == set(MODEL.weights)


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 8), interleaved_one_f_one_b(2, 2, 2)], ids=name_of)
def test_losses_are_those_of_serial_steps_on_the_same_batches_and_the_weights_too(schedule):
    serial, parallel = (Llama.random(CONFIG, seed=3, dtype="float64") for _ in range(2))
    batches = [(TOKENS, TOKENS), (TOKENS[::-1], TOKENS), (TOKENS, TOKENS[:, ::-1])]
    optimizer, expected = AdamW(lr=0.1), []
    for batch in batches:
        loss, gradients = serial.loss_and_gradients(*batch)
        optimizer.step(serial.weights, gradients)
        expected.append(loss)
    assert losses_of_steps(schedule, parallel, batches, AdamW(lr=0.1)) == pytest.approx(expected, rel=1e-9)
    assert max(relative_error(parallel.weights[name], serial.weights[name]) for name in serial.weights) <= 1e-9


def test_each_step_is_of_changed_stages():
    seen = []
    model = Llama.random(CONFIG, seed=3, dtype="float64")
    change = lambda stage: seen.append(stage.weight_names) or stage  # noqa: E731
    losses_of_steps(gpipe(2, 2), model, [(TOKENS, TOKENS)] * 3, AdamW(), change)
    assert len(seen) == 3 * 2


def test_microbatches_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(ValueError, match="tokens: 8 sequences cannot be cut into 3 microbatches"):
        step_of_ranks(gpipe(2, 3), MODEL, TOKENS, TOKENS)


@pytest.mark.parametrize(
    "schedule", [gpipe(4, 4), one_f_one_b(4, 8), interleaved_one_f_one_b(2, 2, 2), zb_h1(4, 8)], ids=name_of
)
def test_the_bytes_of_a_microbatch_add_up_to_those_that_a_run_of_the_schedule_holds(schedule):
    rows = TOKENS.shape[0] // schedule.num_microbatches
    kept = kept_bytes(MODEL, TOKENS[:rows], TOKENS[:rows], schedule.num_stages)
    ran, shown = step_of_ranks(schedule, MODEL, TOKENS, TOKENS).timeline, simulate(schedule)
    tables = 2 * 3 * 2 * 8  # cos and sin, [S, D] in float64: one for all microbatches
    for rank in range(schedule.num_ranks):
        # the norms' gradients of the first microbatch, made by I, stay as the sum; rank 0 is fullest before its first W
        norms = (2 + (rank == 3)) * 4 * 8 if schedule.name.startswith("ZB-H1") and rank else 0
        expected = tables + norms + max(simulated_bytes(shown, rank, *kept, message=rows * 3 * 4 * 8))
        assert peak_but_for_sent(ran, rank) == expected


@pytest.mark.parametrize(("hidden", "inner", "heads"), [(8, 12, 2), (32, 64, 4), (64, 128, 4)])
def test_from_i_to_w_a_block_keeps_no_more_bytes_than_before_but_for_the_gradients_of_two_norms(hidden, inner, heads):
    sizes = dict(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=3, num_attention_heads=heads)
    model, tokens = Llama.random(LlamaConfig(vocab_size=5, **sizes), dtype="float64"), TOKENS[:2]
    kept = kept_bytes(model, tokens, tokens, 3)
    of_norms = 2 * hidden * 8
    assert 0.9 * kept.activation[1] < kept.pending[1] - of_norms <= kept.activation[1]
    assert kept.pending[1] - of_norms == sum(block_waiting_bytes(model.config, *tokens.shape, itemsize=8).values())
