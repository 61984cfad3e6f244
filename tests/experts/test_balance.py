"""The bias of lesson 10, on other seeds of the weights than the one that the lesson shows."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.labs.seeds import RATE, loads_of_seeds
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer

SOURCE = MarkovSource()
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
CONFIG = MixtralConfig(vocab_size=SOURCE.vocab_size, **SIZES, **EXPERTS)


def fullest(trainer, tokens):
    """The rows of the fullest rank over the mean."""
    loads = np.reshape(trainer.rows_to_experts(tokens)[0], (4, 4, 2)).sum(axis=(0, 2))
    return loads.max() / loads.mean()


def over_the_last_ten(comm, seed, bias_rate, steps=60):
    """The load of the fullest rank over the mean, as lesson 10 measures it: of the untrained weights on the last ten
    batches; the last ten of those before each step and the one after the last; and the loss.
    """
    model = Mixtral.random(CONFIG, seed=seed, dtype="float64", xp=np)
    trainer = Trainer(Mesh(comm, dp=4, ep=4), model, AdamW(lr=1e-2), bias_rate=bias_rate)
    batches = [SOURCE.batch(step, batch_size=8, length=32, xp=np) for step in range(steps)]
    untrained = [fullest(trainer, tokens) for tokens, _ in batches[-10:]]
    losses, loads = [], []
    for tokens, targets in batches:
        loads.append(fullest(trainer, tokens))
        losses.append(trainer.step(tokens, targets).loss)
    loads.append(fullest(trainer, tokens))
    return np.mean(untrained), np.mean(loads[-10:]), np.mean(losses[-10:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(41, 161, 12))
def test_the_stored_loads_of_lesson_10_from_one_rank_are_those_of_four(seed):
    for load, rate in zip(loads_of_seeds()[seed], (0.0, RATE), strict=True):
        assert run(over_the_last_ten, 4, seed, rate).results[0] == pytest.approx(tuple(load), abs=2e-4)
