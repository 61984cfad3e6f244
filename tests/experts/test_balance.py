"""The bias of lesson 10, on other seeds of the weights than the one that the lesson shows."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import labs, run
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer

SOURCE = MarkovSource()
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "initializer_range": 0.3}
CONFIG = MixtralConfig(vocab_size=SOURCE.vocab_size, **SIZES, **EXPERTS)


def trained(comm, seed, bias_rate, steps=60):
    model = Mixtral.random(CONFIG, seed=seed, dtype="float64", xp=np)
    trainer = Trainer(Mesh(comm, dp=4, ep=4), model, AdamW(lr=1e-2), bias_rate=bias_rate)
    batches = [SOURCE.batch(step, batch_size=8, length=32, xp=np) for step in range(steps)]
    losses = [trainer.step(*batch).loss for batch in batches]
    return fullest(trainer, batches[-1][0]), np.mean(losses[-10:])


def fullest(trainer, tokens):
    """The rows of the fullest rank over the mean."""
    loads = np.reshape(trainer.rows_to_experts(tokens)[0], (4, 4, 2)).sum(axis=(0, 2))
    return loads.max() / loads.mean()


FULLEST = [(1, 1.27, 1.19), (2, 2.12, 1.16), (3, 1.45, 1.25), (4, 1.15, 1.27), (5, 2.00, 1.14)]


@pytest.mark.parametrize(
    ("seed", "without", "with_bias"),
    [pytest.param(*of_seed, marks=[] if of_seed[0] == 2 else pytest.mark.slow) for of_seed in FULLEST],
)
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
@pytest.mark.parametrize(
    ("seeds", "begin_and_end", "made_worse", "held_at", "loss_changed"),
    [
        (range(1, 21), (12, 12), 12, 1.42, (-0.0044, 0.0255)),
        (range(21, 41), (16, 15), 11, 1.21, (-0.0114, 0.0184)),
    ],
    ids=("1 to 20", "21 to 40"),
)
def test_of_40_seeds_28_begin_and_27_end_unfair_and_the_bias_holds_all_at_1_42(
    seeds, begin_and_end, made_worse, held_at, loss_changed
):
    plain = {seed: run(over_the_last_ten, 4, seed, 0.0).results[0] for seed in seeds}
    guided = {seed: run(over_the_last_ten, 4, seed, 0.05).results[0] for seed in seeds}
    unfair = tuple(sum(plain[seed][when] >= 1.6 for seed in seeds) for when in (0, 1))
    assert unfair == begin_and_end
    assert sum(plain[seed][1] > plain[seed][0] for seed in seeds) == made_worse
    assert max(guided[seed][1] for seed in seeds) == pytest.approx(held_at, abs=0.006)
    changed = [guided[seed][2] - plain[seed][2] for seed in seeds]
    assert (min(changed), max(changed)) == pytest.approx(loss_changed, abs=1e-4)


@pytest.mark.slow
def test_a_rate_of_001_is_slow_and_after_300_steps_holds_five_seeds_at_1_14_to_1_24():
    """After 60 steps the two seeds that began unfair still are."""
    assert min(run(over_the_last_ten, 4, seed, 0.01).results[0][1] for seed in (2, 5)) > 1.6
    held = [run(over_the_last_ten, 4, seed, 0.01, 300).results[0][1] for seed in range(1, 6)]
    assert (min(held), max(held)) == pytest.approx((1.144, 1.237), abs=0.002)


BATCHES = [SOURCE.batch(step, batch_size=8, length=32, xp=np) for step in range(60)]


def loads_of_experts(model, tokens):
    """Rows of each expert over their mean, of the serial model."""
    hidden, _ = model.embedding.forward(tokens)
    parts = model.blocks[0].forward(hidden)[1]["mlp"]
    chosen = next(part.chosen for part in parts if hasattr(part, "chosen"))
    return np.bincount(np.ravel(chosen), minlength=8) / (chosen.size / 8)


def before_and_after(seed):
    """The loads on the last ten batches: untrained, and each after a step of the last ten."""
    model, optimizer = Mixtral.random(CONFIG, seed=seed, dtype="float64", xp=np), AdamW(lr=1e-2)
    untrained = np.mean([loads_of_experts(model, tokens) for tokens, _ in BATCHES[-10:]], axis=0)
    trained = []
    for tokens, targets in BATCHES:
        _, gradients = model.loss_and_gradients(tokens, targets)
        optimizer.step(model.weights, gradients)
        trained.append(loads_of_experts(model, tokens))
    return untrained, np.mean(trained[-10:], axis=0)


@pytest.mark.slow
def test_of_40_seeds_the_expert_with_most_rows_at_first_grows_in_21():
    found = [before_and_after(seed) for seed in range(1, 41)]
    assert sum(after[before.argmax()] > before.max() for before, after in found) == 21


def test_the_loads_of_experts_are_shares_of_their_mean_and_in_seed_2_the_fullest_expert_grows():
    before, after = before_and_after(2)
    assert before.sum() == pytest.approx(8) == after.sum()
    assert after[before.argmax()] > before.max()


def test_after_10_steps_two_biases_are_at_most_1_apart_and_a_tokens_best_and_fifth_best_scores_2_3():
    """So the table of lesson 10 finds the fullest rank no nearer to the mean."""
    seen = []

    def rule(scores, bias, k, rate):
        ranked = np.sort(scores, axis=1)
        seen.append((np.ptp(bias), np.mean(ranked[:, -1] - ranked[:, -5])))
        return labs.balanced(scores, bias, k, rate)

    def program(comm):
        model = Mixtral.random(CONFIG, seed=2, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm, dp=4, ep=4), model, AdamW(lr=1e-2), bias_rate=0.05)
        labs.balance_by(trainer, rule if comm.rank == 0 else labs.balanced)
        for tokens, targets in BATCHES[:11]:
            trainer.step(tokens, targets)

    run(program, 4)
    apart, further = seen[10]
    assert apart == pytest.approx(2 * 10 * 0.05)
    assert further == pytest.approx(2.33, abs=0.01)
