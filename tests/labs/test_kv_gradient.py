"""The accident of 2023 in the small: K and V's part of dx is not summed, and the copies that were compared agree."""

import numpy as np
import pytest

from parlab import run
from parlab.labs import forget_kv_sum
from parlab.tensor import ParallelLlama, gradients_of_ranks
from tests.tensor.models import model, text


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_gradients_behind_the_last_attention_of_the_backward_are_wrong_and_no_other_and_the_loss_is_right(
    size, seed
):
    serial = model(num_key_value_heads=1)
    tokens, targets = text(seed=seed)
    loss, right = serial.loss_and_gradients(tokens, targets)
    found_loss, found = gradients_of_ranks(serial, tokens, targets, size, forget_kv_sum)
    assert np.isclose(found_loss, loss, rtol=1e-12)
    last = f"model.layers.{serial.config.num_hidden_layers - 1}."
    for name, gradient in right.items():
        before = name.startswith((last, "model.norm", "lm_head")) and name != f"{last}input_layernorm.weight"
        assert np.allclose(found[name], gradient, rtol=1e-9, atol=1e-12) == before, name


def test_the_copies_of_k_and_v_agree_and_those_of_the_norms_in_front_of_attention_differ():
    serial = model(num_key_value_heads=1)
    tokens, targets = text()

    def gradients(comm):
        parallel = ParallelLlama.from_full(comm, serial)
        forget_kv_sum(parallel)
        return parallel.loss_and_gradients(tokens, targets)[1]

    first, second = run(gradients, 2).results
    copies = {name for name in first if "norm" in name or "k_proj" in name or "v_proj" in name}
    differ = {name for name in copies if (first[name] != second[name]).any()}
    assert differ == {name for name in copies if name.endswith("input_layernorm.weight")}
