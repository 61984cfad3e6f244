"""The serial Mixtral against Hugging Face's."""

from __future__ import annotations

import pytest
from safetensors.numpy import load_file

from parlab.nn import mixtral
from parlab.nn.mixtral import Mixtral, MixtralConfig
from tests.nn.test_llama import STORED, assert_agrees, live
from tests.nn.transformers_reference import (
    EAGER_EXPERTS,
    MIXTURES,
    draw_tokens,
    evaluate,
    float64_throughout,
    make_model,
)

STORED_HERE = STORED.parent / "mixtral"
every_mixture = pytest.mark.parametrize("name", MIXTURES)


@every_mixture
def test_logits_loss_and_gradients_equal_transformers_stored_to_1e_12(name, xp):
    model = mixtral.load(STORED_HERE / name, xp=xp, dtype="float64")
    expected = load_file(STORED_HERE / name / "expected.safetensors")
    tokens, targets = (xp.asarray(expected.pop(key)) for key in ("tokens", "targets"))
    assert_agrees(model, expected, tokens, targets, 1e-12)


@live
@every_mixture
def test_folders_written_here_open_in_transformers_and_agree_to_1e_12(name, tmp_path):
    from transformers import MixtralForCausalLM

    model = Mixtral.random(MixtralConfig(**MIXTURES[name]), seed=5, dtype="float64")
    model.save(tmp_path)
    tokens, targets = draw_tokens(5)
    with float64_throughout():
        theirs, report = MixtralForCausalLM.from_pretrained(tmp_path, output_loading_info=True, **EAGER_EXPERTS)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        expected = evaluate(theirs, tokens, targets)
    assert_agrees(model, expected, tokens, targets, 1e-12)


@live
@every_mixture
def test_folders_that_transformers_writes_open_here_and_agree_to_1e_12(name, tmp_path):
    tokens, targets = draw_tokens(6)
    with float64_throughout():
        theirs = make_model(MIXTURES[name], seed=6)
        expected = evaluate(theirs, tokens, targets)
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert_agrees(mixtral.load(tmp_path), expected, tokens, targets, 1e-12)


def test_a_saved_model_comes_back_to_the_bit_with_its_configuration(tmp_path):
    model = Mixtral.random(MixtralConfig(**MIXTURES["top_2_of_5"]), seed=1)
    model.save(tmp_path)
    again = mixtral.load(tmp_path)
    assert again.config == model.config
    assert all((again.weights[name] == weight).all() for name, weight in model.weights.items())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts_per_tok": 6}, "num_experts_per_tok 6 is more than num_local_experts 5"),
        ({"num_local_experts": 0}, "num_local_experts=0: must be a whole number, at least 1"),
        ({"model_type": "llama"}, "config.json has model_type='llama': only 'mixtral' is known here"),
        ({"sliding_window": 4096}, "config.json has sliding_window=4096: only None is known here"),
        ({"router_jitter_noise": 0.1}, "config.json has router_jitter_noise=0.1: only 0.0 is known here"),
    ],
)
def test_a_configuration_that_is_not_this_model_is_refused_by_name(changes, text):
    with pytest.raises(ValueError, match=text):
        MixtralConfig.from_dict(MIXTURES["top_2_of_5"] | changes)


@pytest.mark.parametrize("name", ["auxiliary", "bias_rate"])
def test_a_balance_below_0_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=-0.1: must be a number, at least 0"):
        Mixtral.random(MixtralConfig(**MIXTURES["top_2_of_5"]), **{name: -0.1})


def test_what_is_no_configuration_is_refused():
    with pytest.raises(ValueError, match="config='mixtral': must be a LlamaConfig"):
        Mixtral("mixtral", {})
