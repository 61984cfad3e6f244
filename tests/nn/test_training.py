"""The serial training loop, step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW
from parlab.nn.training import train
from tests.nn.parity import assert_parity
from tests.nn.transformers_reference import SIZES, draw_tokens


def test_each_of_3_steps_is_adamws_by_gradients_of_norm_one_half():
    by_hand, trained = (Llama.random(LlamaConfig(**SIZES), dtype="float64") for _ in range(2))
    batches = [draw_tokens(seed) for seed in range(3)]
    optimizer, losses = AdamW(0.1), []
    for batch in batches:
        loss, gradients = by_hand.loss_and_gradients(*batch)
        norm = math.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values()))
        assert norm > 0.5
        optimizer.step(by_hand.weights, {name: 0.5 / norm * x for name, x in gradients.items()})
        losses.append(loss)
    found = train(trained, batches, AdamW(0.1), max_norm=0.5)
    assert found == pytest.approx(losses, rel=1e-12)
    assert_parity(list(trained.weights.values()), list(by_hand.weights.values()))
