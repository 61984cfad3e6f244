"""Configurations of published mixtures of experts: the fields of their `config.json` that say how large they are.

Sources: the models' `config.json` on Hugging Face: mistralai/Mixtral-8x7B-v0.1, mistralai/Mixtral-8x22B-v0.1,
Qwen/Qwen3-30B-A3B, deepseek-ai/DeepSeek-V3.
"""

from __future__ import annotations

from typing import Any

from parlab.nn.mixtral import MixtralConfig

MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "mixtral-8x22b": {
        "model_type": "mixtral",
        "vocab_size": 32768,
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "num_hidden_layers": 56,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
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
    },
    "deepseek-v3": {
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
    },
}

MIXTRALS: dict[str, MixtralConfig] = {
    name: MixtralConfig.from_dict({"architectures": ["MixtralForCausalLM"], **fields})
    for name, fields in MIXTURES.items()
    if fields["model_type"] == "mixtral"
}
"""Those that this package also trains and plans."""
