"""The checker of 10.balanced names what is wrong; a trainer that an answer balances is that of the library."""

import numpy as np
import pytest

from parlab import labs, run
from parlab.labs.seeds import rows_to_experts
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from tests.device import guarded, on_device
from tests.labs import answers
from tests.labs.answers import refused

SOURCE = MarkovSource()
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "initializer_range": 0.3}
CONFIG = MixtralConfig(vocab_size=SOURCE.vocab_size, **SIZES, **EXPERTS)


def best(scores, k):
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def with_bias(of):
    """An answer whose new bias is `of(bias, load, gamma, chosen, gates)`."""

    def answer(scores, bias, k, gamma):
        chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
        load = np.bincount(chosen.ravel(), minlength=len(bias))
        return chosen, gates, of(bias, load, gamma, chosen, gates)

    return answer


def with_gates(of):
    def answer(scores, bias, k, gamma):
        chosen, _, moved = answers.balanced(scores, bias, k, gamma)
        return chosen, of(scores, bias, chosen), moved

    return answer


def with_choice(of):
    """An answer that chooses by `of(scores, bias, k, gamma)`; gates and loads are those of its choice."""

    def answer(scores, bias, k, gamma):
        chosen = best(of(scores, bias, k, gamma), k)
        gates = softmax(np.take_along_axis(scores, chosen, axis=1))
        load = np.bincount(chosen.ravel(), minlength=len(bias))
        return chosen, gates, bias + gamma * np.sign(load.mean() - load)

    return answer


def in_place(scores, bias, k, gamma):
    """Right, but the bias that it was given is no longer the one of this step."""
    chosen, gates, moved = answers.balanced(scores, bias, k, gamma)
    bias[:] = moved
    return chosen, gates, bias


def test_a_bias_that_is_changed_in_place_is_refused_with_its_numbers_before_and_after():
    changed = "the argument bias has changed: [0.0, 0.0] became [-0.1, 0.1]"
    refused("10.balanced", in_place, f"{changed}|leave `bias` as it is, and return a new array")


def taken(of, chosen):
    return np.take_along_axis(of, chosen, axis=1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (with_bias(lambda b, load, g, *_: b + g * (load.mean() - load)), "the bias moves by the size of what is missi"),
        (with_bias(lambda b, load, g, *_: b + np.sign(load.mean() - load)), "gamma is missing"),
        (with_bias(lambda b, load, g, *_: g * np.sign(load.mean() - load)), "this is the change alone: add it to the"),
        (with_bias(lambda b, load, g, *_: b), "nothing moved"),
        (with_bias(lambda b, load, g, of, _: b + g * np.sign(len(of) / len(b) - load)), "the mean load is T · k/N"),
        (with_choice(lambda scores, bias, k, g: scores), "the bias is not in the choice: the best k of scores + bias"),
        (with_choice(lambda scores, bias, k, g: scores - bias), "the bias is subtracted in the choice; it is added"),
        (with_choice(lambda scores, bias, k, g: -scores - bias), "these are the worst k: argsort ascends"),
        (with_gates(lambda scores, bias, chosen: taken(softmax(scores), chosen)), "the softmax is over all N experts"),
        (with_gates(lambda scores, bias, chosen: np.exp(taken(scores, chosen))), "a token's gates add up to 1"),
        (with_gates(lambda scores, bias, chosen: taken(scores, chosen)), "these are the scores; the gates are"),
        (lambda *given: answers.balanced(*given)[2], "expected three arrays: chosen [T, k], gates [T, k], the new"),
        (lambda *given: answers.balanced(*given)[:2], "returned 2 values, expected three arrays"),
        (lambda *given: (answers.balanced(*given)[0] * 1.0, 0, 0), "chosen: returned float64 of shape (2, 1), expect"),
        (lambda scores, bias, k, gamma: (scores, 0, 0), "expected whole numbers of shape (2, 1)"),
        (lambda *given: (answers.balanced(*given)[0] + 2, 0, 0), "chosen: returned experts 2 to 2, there are 0 to 1"),
    ],
)
def test_a_mistake_in_the_balance_is_refused_with_its_cause(answer, said):
    refused("10.balanced", answer, said)


@pytest.mark.parametrize(
    "answer",
    [
        with_bias(lambda b, load, g, *_: b - g * (load.mean() - load)),
        with_bias(lambda b, load, g, *_: b + g * (load.mean() - load) / load.sum()),
        with_bias(lambda b, load, g, *_: b + g * np.sign(np.median(load) - load)),
        with_bias(lambda b, load, g, *_: b + g * np.sign(load[load > 0].mean() - load)),
        with_bias(lambda b, load, g, chosen, gates: b + g * np.sign(chosen.size // len(b) - load)),
        with_choice(lambda scores, bias, k, g: 0 * scores + bias),
        with_choice(lambda scores, bias, k, g: scores + answers.balanced(scores, bias, k, g)[2]),
        with_gates(lambda scores, bias, chosen: taken(scores + bias, chosen)),
        with_gates(lambda scores, bias, chosen: np.full(chosen.shape, 1 / chosen.shape[1])),
        with_gates(lambda scores, bias, chosen: softmax(taken(scores, np.sort(chosen)))),
    ],
)
def test_a_rare_mistake_in_the_balance_is_refused_with_its_numbers_and_with_no_cause_that_is_another_ones(answer):
    assert "likely cause" not in refused("10.balanced", answer, "expected")


def trained(comm, rule, bias_rate=0.05, steps=3, move=np.asarray):
    start = Mixtral.random(CONFIG, seed=2, dtype="float64", xp=np)
    model = Mixtral(CONFIG, {name: move(w) for name, w in start.weights.items()})
    trainer = Trainer(Mesh(comm, dp=4, ep=2), model, AdamW(lr=1e-2), bias_rate=bias_rate)
    if rule:
        labs.balance_by(trainer, rule)
    *batches, last = (SOURCE.batch(step, batch_size=8, length=16, xp=np) for step in range(steps + 1))
    losses = [trainer.step(*map(move, batch)).loss for batch in batches]
    biases = [trainer.parts.model.routers[layer].bias for layer in (0, 1)]
    return losses, biases, rows_to_experts(trainer, move(last[0]))


def test_a_trainer_balanced_by_an_answer_is_the_librarys_losses_biases_and_rows():
    """Two layers: each has its own bias."""
    for ours, librarys in zip(run(trained, 4, answers.balanced).results, run(trained, 4, None).results, strict=True):
        assert ours[0] == pytest.approx(librarys[0], rel=1e-12)
        assert np.asarray(ours[1]) == pytest.approx(np.asarray(librarys[1]), abs=1e-12)
        assert ours[2] == librarys[2]
        assert ours[1][0] != ours[1][1]


def test_on_a_device_a_rule_gets_numpys_scores_and_the_training_is_that_of_numpy():
    def rule(scores, *given):
        assert type(scores) is np.ndarray
        return answers.balanced(scores, *given)

    with guarded():
        device = run(trained, 4, rule, move=on_device).results[1]
    host = run(trained, 4, rule).results[1]
    assert device[0] == pytest.approx(host[0], rel=1e-12)
    assert device[1:] == host[1:]


def test_a_rule_with_the_sign_turned_around_makes_a_trainer_unfair():
    """So it is the answer that runs, and not the library."""

    def turned(scores, bias, k, gamma):
        chosen, gates, moved = answers.balanced(scores, bias, k, gamma)
        return chosen, gates, 2 * bias - moved

    (_, _, right), (_, _, wrong) = (run(trained, 4, rule, 0.3, 6).results[0] for rule in (answers.balanced, turned))
    right, wrong = (np.sum(tables[0], axis=0) for tables in (right, wrong))
    assert wrong.max() / wrong.mean() > 3 > 2.3 > right.max() / right.mean()


def test_a_trainer_without_a_bias_rate_or_on_another_mesh_is_refused_by_name():
    def without(comm):
        labs.balance_by(Trainer(Mesh(comm, dp=2, ep=2), Mixtral.random(CONFIG, seed=2, xp=np), AdamW()), labs.balanced)

    def cut(comm):
        trainer = Trainer(Mesh(comm, tp=2), Mixtral.random(CONFIG, seed=2, xp=np), AdamW(), bias_rate=0.1)
        labs.balance_by(trainer, labs.balanced)

    for program, said in ((without, "bias_rate=0.0"), (cut, "tp=2")):
        with pytest.raises(ValueError, match=f"trainer: a Mixtral on dp and ep alone.*{said}"):
            run(program, 2)
    with pytest.raises(ValueError, match="trainer="):
        labs.balance_by(3, labs.balanced)
