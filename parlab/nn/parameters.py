"""Numbers in the weights of a mixture of experts, from the fields of its `config.json`: all, and those a token uses.

Mixtral, Qwen3-MoE and DeepSeek-V3 are known. They differ in their attention (grouped heads; grouped heads with norms
of q and k; latent q and kv), and in what stands beside the routed experts (nothing; nothing; a shared expert, a bias of
the router, and three dense layers).

Sources: transformers' MixtralConfig, Qwen3MoeConfig and DeepseekV3Config, whose field names these are; DeepSeek-AI
2024, "DeepSeek-V3 technical report", section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arguments import whole

EXPERTS = {  # by model_type: the fields that say how many experts there are, and how wide one is
    "mixtral": ("num_local_experts", "intermediate_size"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
    "deepseek_v3": ("n_routed_experts", "moe_intermediate_size"),
}


class Parameters(NamedTuple):
    """How many numbers a model's weights hold, and how many of them one token meets, both embeddings included."""

    total: int
    active: int


def parameters(config: Mapping[str, Any]) -> Parameters:
    """Count the weights of a mixture of experts.

    Args:
        config: what `config.json` holds.

    Raises:
        ValueError: another `model_type`, a field that is missing, or biases, which none of the three has.

    >>> mixtral = dict(model_type="mixtral", vocab_size=32000, hidden_size=4096, intermediate_size=14336,
    ...                num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
    ...                num_experts_per_tok=2)
    >>> parameters(mixtral)
    Parameters(total=46702792704, active=12879925248)
    """
    kind = config.get("model_type")
    if kind not in EXPERTS:
        raise ValueError(f"model_type={kind!r}: use one of {', '.join(EXPERTS)}")
    if config.get("attention_bias"):
        raise ValueError("attention_bias=True: only weights without biases are counted")
    fields = _Fields(config)
    count, width = EXPERTS[kind]
    E, L, V, N = (fields[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size", count))
    expert = 3 * E * fields[width]  # gate, up and down

    dense_layers = _dense_layers(kind, fields)
    moe_layers = L - dense_layers
    dense_mlp = 3 * E * fields["intermediate_size"] if dense_layers else 0
    router = E * N
    shared = 0
    if kind == "deepseek_v3":
        router += N  # the bias that balances the load
        shared = fields["n_shared_experts"] * expert

    norms = 2 * E
    embeddings = V * E if config.get("tie_word_embeddings") else 2 * V * E
    total = embeddings + E + L * (_attention(kind, fields) + norms)
    total += dense_layers * dense_mlp + moe_layers * (router + shared + N * expert)
    idle = moe_layers * (N - fields["num_experts_per_tok"]) * expert
    return Parameters(total, total - idle)


def _attention(kind: str, fields: _Fields) -> int:
    """The projections of one layer, and the norms inside it."""
    E, H = fields["hidden_size"], fields["num_attention_heads"]
    if kind == "deepseek_v3":
        return _latent_attention(E, H, fields)
    D = fields.get("head_dim") or E // H
    G = fields["num_key_value_heads"]
    projections = E * H * D + 2 * E * G * D + H * D * E  # q; k and v; o
    return projections + (2 * D if kind == "qwen3_moe" else 0)


def _latent_attention(E: int, H: int, fields: _Fields) -> int:
    """Multi-head latent attention: q and kv go through a narrow space, with a norm there."""
    latent_kv, rotary, D, value = (
        fields[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    latent_q = fields.get("q_lora_rank")
    q = latent_q * (E + 1 + H * (D + rotary)) if latent_q else E * H * (D + rotary)
    kv = E * (latent_kv + rotary) + latent_kv + latent_kv * H * (D + value)
    return q + kv + H * value * E


def _dense_layers(kind: str, fields: _Fields) -> int:
    """Layers whose MLP is an ordinary one."""
    if kind == "deepseek_v3":
        return fields["first_k_dense_replace"]
    if kind == "qwen3_moe":
        chosen, step = fields.config.get("mlp_only_layers") or [], fields.get("decoder_sparse_step") or 1
        return sum(layer in chosen or (layer + 1) % step > 0 for layer in range(fields["num_hidden_layers"]))
    return 0


class _Fields:
    """The whole numbers of a configuration; one that is missing is named."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __getitem__(self, name: str) -> int:
        if name not in self.config:
            raise ValueError(f"config.json of a {self.config['model_type']} lacks {name}")
        return whole(name, self.config[name], 0)

    def get(self, name: str) -> int | None:
        """None where the field is missing, or null."""
        return None if self.config.get(name) is None else self[name]
