"""The checker of 10.mean_gradient names the wrong group; a training with experts' gradients ep times too large."""

import numpy as np
import pytest

from parlab import labs, run
from parlab.nn import AdamW, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.train.mixture import is_expert
from tests.labs.answers import refused

SIZES = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
CONFIG = MixtralConfig(vocab_size=5, num_local_experts=4, num_experts_per_tok=2, **SIZES)


@pytest.mark.parametrize(
    ("group_of", "mean", "said"),
    [
        (lambda mesh, of_expert: None, False, "nothing was summed: the sum is over mesh.data, whose ranks all have"),
        (lambda mesh, of_expert: None if of_expert else mesh.data, False, "the sum is over mesh.edp, the ranks with"),
        (lambda mesh, of_expert: mesh.edp if of_expert else mesh.dp, True, "the mean over a part of mesh.data: every"),
        (lambda mesh, of_expert: mesh.edp, False, "summed over a part of mesh.data: every rank of it has this weight"),
    ],
)
def test_a_gradient_summed_over_no_or_another_group_is_told_which_ranks_have_the_weight(group_of, mean, said):
    def answer(mesh, of_expert, gradient):
        group = group_of(mesh, of_expert)
        total = gradient if group is None else group.all_reduce(gradient)
        return total / (group.size if mean and not of_expert else mesh.data.size)

    refused("10.mean_gradient", answer, said)


@pytest.mark.slow
def test_after_30_steps_the_planted_bug_is_seen_by_the_norm_and_not_by_the_loss():
    right, wrong = labs.thirty_steps(bug=False), labs.thirty_steps(bug=True)
    assert wrong[0].loss == pytest.approx(right[0].loss, rel=1e-12)
    assert wrong[-1].loss == pytest.approx(right[-1].loss, rel=1e-4)
    assert wrong[0].norm > 1.2 * right[0].norm


def test_what_is_no_trainer_has_no_place_for_the_bug():
    with pytest.raises(ValueError, match="trainer=None: must be a Trainer"):
        labs.ep_times_too_large(None)


@pytest.mark.parametrize("ep", [2, 4])
def test_the_planted_bug_multiplies_the_gradients_of_experts_by_ep_and_no_other(ep):
    def gradients(comm, bug):
        model = Mixtral.random(CONFIG, seed=0, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm, dp=4, ep=ep), model, AdamW(), zero=2)
        if bug:
            labs.ep_times_too_large(trainer)
        tokens = np.arange(16).reshape(4, 4) % 5
        trainer.step(tokens, tokens[::-1])
        return trainer.full_gradients()

    right, wrong = (run(gradients, 4, bug).results[0] for bug in (False, True))
    for name, gradient in right.items():
        np.testing.assert_allclose(wrong[name], (ep if is_expert(name) else 1) * gradient, rtol=1e-12)
