"""A whole model's step on ranks against the serial step."""

import numpy as np
import pytest

from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.pipeline import gpipe, interleaved_one_f_one_b, one_f_one_b, step_of_ranks, zb_h1
from tests.pipeline.models import error, name_of

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
    assert max(error(done.gradients[name], gradients[name]) for name in gradients) <= 1e-12
    assert done.timeline.size == schedule.num_ranks


def test_what_change_returns_takes_a_stages_place():
    seen = []
    step_of_ranks(gpipe(2, 2), MODEL, TOKENS, TOKENS, lambda stage: seen.append(stage.weight_names) or stage)
    assert len(seen) == 2
    assert set(seen[0]) | set(seen[1]) == set(MODEL.weights)


def test_microbatches_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(ValueError, match="tokens: 8 sequences cannot be cut into 3 microbatches"):
        step_of_ranks(gpipe(2, 3), MODEL, TOKENS, TOKENS)
