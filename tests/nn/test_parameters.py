"""Numbers of weights of published mixtures, to the last digit."""

from __future__ import annotations

import pytest

from parlab.nn.mixtral import MixtralConfig
from parlab.nn.parameters import parameters
from tests.nn.transformers_reference import MIXTURES

MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
MIXTRAL_8X22B = MIXTRAL | {
    "vocab_size": 32768,
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
PUBLISHED = {
    "Mixtral 8x7B": (MIXTRAL, 46_702_792_704, 12_879_925_248),
    "Mixtral 8x22B": (MIXTRAL_8X22B, 140_630_071_296, 39_161_468_928),
    "Qwen3-30B-A3B": (QWEN3_30B, 30_532_122_624, 3_353_032_704),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_419_200, 37_552_297_472),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_and_active_parameters_to_the_last_digit(name):
    config, total, active = PUBLISHED[name]
    assert parameters(config) == (total, active)


def test_deepseek_v3_without_the_input_embedding_has_36_625_618_432_active():
    assert parameters(DEEPSEEK_V3).active - 129280 * 7168 == 36_625_618_432


def test_routed_experts_are_97_4_percent_of_deepseek_v3():
    routed = 58 * 256 * 44_040_192
    assert routed == 653_908_770_816
    assert round(100 * routed / parameters(DEEPSEEK_V3).total, 1) == 97.4


@pytest.mark.parametrize("name", MIXTURES)
def test_the_count_of_a_small_mixtral_is_that_of_its_arrays(name):
    config = MixtralConfig(**MIXTURES[name])
    assert parameters(config.to_dict()).total == config.num_parameters


def test_every_second_layer_of_a_qwen3_may_be_dense():
    halves = parameters(QWEN3_30B | {"decoder_sparse_step": 2})
    experts, dense = 128 * 3 * 2048 * 768 + 2048 * 128, 3 * 2048 * 6144
    assert parameters(QWEN3_30B).total - halves.total == 24 * (experts - dense)
    assert parameters(QWEN3_30B | {"mlp_only_layers": [0, 5]}).total == PUBLISHED["Qwen3-30B-A3B"][1] - 2 * (
        experts - dense
    )


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (MIXTRAL | {"model_type": "llama"}, "model_type='llama': use one of mixtral, qwen3_moe, deepseek_v3"),
        (QWEN3_30B | {"attention_bias": True}, "attention_bias=True"),
        ({"model_type": "mixtral", "vocab_size": 5}, "config.json of a mixtral lacks hidden_size"),
        (MIXTRAL | {"num_local_experts": 2.5}, "num_local_experts=2.5: must be a whole number"),
    ],
)
def test_other_configurations_are_refused_by_name(config, text):
    with pytest.raises(ValueError, match=text):
        parameters(config)
