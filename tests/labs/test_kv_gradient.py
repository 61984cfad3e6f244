"""The accident of 2023 in the small: K and V's part of dx is not summed, and the copies that were compared agree."""

import numpy as np
import pytest

from parlab.labs import copies_alike, forget_kv_sum
from parlab.tensor import gradients_of_ranks
from tests.tensor.models import model, text


@pytest.mark.parametrize("size", [2, 4])
def test_all_gradients_behind_the_last_attention_of_the_backward_are_wrong_and_no_other_and_the_loss_is_right(size):
    serial = model(num_key_value_heads=1)
    tokens, targets = text()
    loss, right = serial.loss_and_gradients(tokens, targets)
    found_loss, found = gradients_of_ranks(serial, tokens, targets, size, forget_kv_sum)
    assert np.isclose(found_loss, loss, rtol=1e-12)
    last = f"model.layers.{serial.config.num_hidden_layers - 1}."
    for name, gradient in right.items():
        before = name.startswith((last, "model.norm", "lm_head")) and name != f"{last}input_layernorm.weight"
        assert np.allclose(found[name], gradient, rtol=1e-9, atol=1e-12) == before, name


def test_the_copies_of_k_and_v_agree_and_those_of_the_norms_in_front_of_attention_differ():
    alike = copies_alike(model(num_key_value_heads=1), *text(), forget_kv_sum)
    norms = {name for name in alike if "norm" in name}
    assert {name for name in alike if not alike[name]} == {
        name for name in norms if name.endswith("input_layernorm.weight")
    }
    assert {name.split(".")[-2] for name in alike.keys() - norms} == {"k_proj", "v_proj"}


def test_with_2_key_value_heads_on_2_ranks_the_5_norms_alone_are_copies_and_agree_in_a_right_step():
    alike = copies_alike(model(num_key_value_heads=2), *text(), lambda parallel: None)
    assert len(alike) == 2 * model().config.num_hidden_layers + 1
    assert all("norm" in name and same for name, same in alike.items())
