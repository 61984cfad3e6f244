"""Numbers of weights of published mixtures, to the last digit."""

from __future__ import annotations

import pytest

from parlab.nn.mixtral import MixtralConfig
from parlab.nn.parameters import parameters
from parlab.nn.published_mixtures import MIXTURES
from tests.nn.transformers_reference import MIXTURES as STORED

MIXTRAL, DEEPSEEK_V3 = MIXTURES["mixtral-8x7b"], MIXTURES["deepseek-v3"]
COUNTS = {
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral-8x22b": (140_630_071_296, 39_161_468_928),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "deepseek-v3": (671_026_419_200, 37_552_297_472),
}


@pytest.mark.parametrize("name", COUNTS)
def test_total_and_active_parameters_to_the_last_digit(name):
    assert parameters(MIXTURES[name]) == COUNTS[name]


@pytest.mark.parametrize("name", STORED)
def test_the_count_of_a_small_mixtral_is_that_of_its_arrays(name):
    config = MixtralConfig(**STORED[name])
    assert parameters(config.to_dict()).total == config.num_parameters


def test_every_second_layer_of_a_qwen3_may_be_dense():
    halves = parameters(MIXTURES["qwen3-30b-a3b"] | {"decoder_sparse_step": 2})
    experts, dense = 128 * 3 * 2048 * 768 + 2048 * 128, 3 * 2048 * 6144
    assert parameters(MIXTURES["qwen3-30b-a3b"]).total - halves.total == 24 * (experts - dense)
    assert parameters(MIXTURES["qwen3-30b-a3b"] | {"mlp_only_layers": [0, 5]}).total == COUNTS["qwen3-30b-a3b"][
        0
    ] - 2 * (experts - dense)


def test_a_latent_attention_without_a_narrow_q_has_a_whole_matrix_instead():
    whole = parameters(MIXTURES["deepseek-v3"] | {"q_lora_rank": None})
    narrow = 1536 * (7168 + 1 + 128 * 192)
    assert whole.total - parameters(MIXTURES["deepseek-v3"]).total == 61 * (7168 * 128 * 192 - narrow)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_4_layers_of_a_qwen3_have_3_077_065_216_weights_by_the_old_and_by_transformers_5s_name_of_the_field(name):
    """Of `Qwen3MoeConfig(num_hidden_layers=4)`, whose heads have 2048/32 dimensions; the value is transformers' own."""
    config = {**MIXTURES["qwen3-30b-a3b"], "num_hidden_layers": 4, "head_dim": None}
    config[name] = config.pop("num_experts")
    assert parameters(config).total == 3_077_065_216


def test_a_file_that_says_both_64_and_128_experts_is_refused():
    config = MIXTURES["qwen3-30b-a3b"] | {"num_local_experts": 64}
    with pytest.raises(ValueError, match="num_experts=128 and num_local_experts=64"):
        parameters(config)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (MIXTRAL | {"model_type": "llama"}, "model_type='llama': use one of mixtral, qwen3_moe, deepseek_v3"),
        (MIXTURES["qwen3-30b-a3b"] | {"attention_bias": True}, "attention_bias=True"),
        ({"model_type": "mixtral", "vocab_size": 5}, "config.json of a mixtral lacks hidden_size"),
        (MIXTRAL | {"num_local_experts": 2.5}, "num_local_experts=2.5: must be a whole number"),
    ],
)
def test_other_configurations_are_refused_by_name(config, text):
    with pytest.raises(ValueError, match=text):
        parameters(config)
