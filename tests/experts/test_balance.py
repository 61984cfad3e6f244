"""The bias of lesson 10, on other seeds of the weights than the one that the lesson shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parlab import run
from parlab.labs.seeds import RATE, loads_of_seeds, rows_to_experts
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer

SOURCE = MarkovSource()
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "initializer_range": 0.3}
CONFIG = MixtralConfig(vocab_size=SOURCE.vocab_size, **SIZES, **EXPERTS)
SMALL = replace(CONFIG, initializer_range=0.02)  # the weights of lesson 10


def trained(comm, seed, bias_rate, steps=60):
    model = Mixtral.random(CONFIG, seed=seed, dtype="float64", xp=np)
    trainer = Trainer(Mesh(comm, dp=4, ep=4), model, AdamW(lr=1e-2), bias_rate=bias_rate)
    batches = [SOURCE.batch(step, batch_size=8, length=32, xp=np) for step in range(steps)]
    losses = [trainer.step(*batch).loss for batch in batches]
    return fullest(trainer, batches[-1][0]), np.mean(losses[-10:])


def fullest(trainer, tokens):
    """The rows of the fullest rank over the mean."""
    loads = np.reshape(rows_to_experts(trainer, tokens)[0], (4, 4, 2)).sum(axis=(0, 2))
    return loads.max() / loads.mean()


FULLEST = [(1, 1.27, 1.19), (2, 2.12, 1.16), (3, 1.45, 1.25), (4, 1.15, 1.27), (5, 2.00, 1.14)]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "without", "with_bias"), FULLEST)
def test_with_five_seeds_the_bias_holds_the_fullest_rank_at_1_27_and_the_loss_within_0_024(seed, without, with_bias):
    unguided, loss = run(trained, 4, seed, 0.0).results[0]
    guided, loss_with_bias = run(trained, 4, seed, 0.05).results[0]
    assert unguided == pytest.approx(without, abs=0.005)
    assert guided == pytest.approx(with_bias, abs=0.005)
    assert -0.0015 < loss_with_bias - loss < 0.024


def over_the_last_ten(comm, seed, bias_rate, steps=60):
    """The load of the fullest rank over the mean, as lesson 10 measures it: of the untrained weights on the last ten
    batches; the last ten of those before each step and the one after the last; and the loss.
    """
    model = Mixtral.random(SMALL, seed=seed, dtype="float64", xp=np)
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
