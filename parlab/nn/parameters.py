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
# transformers 5 writes the count of one model under another one's name
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


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
    layer, fields = layer_parameters(config), _Fields(config)
    L, dense_layers = fields["num_hidden_layers"], _dense_layers(fields)
    embedding = fields["vocab_size"] * fields["hidden_size"]
    embeddings = embedding if config.get("tie_word_embeddings") else 2 * embedding
    total = embeddings + fields["hidden_size"] + L * layer.attention
    total += dense_layers * layer.dense_mlp + (L - dense_layers) * (layer.beside_experts + layer.experts * layer.expert)
    idle = (L - dense_layers) * (layer.experts - fields["num_experts_per_tok"]) * layer.expert
    return Parameters(total, total - idle)


class LayerParameters(NamedTuple):
    """How many numbers the parts of a layer hold. A layer has its dense MLP or its mixture, not both."""

    attention: int  # with the layer's two norms
    dense_mlp: int  # 0 where no layer has one
    beside_experts: int  # the router, its bias and the shared experts
    expert: int  # one routed expert
    experts: int  # how many there are


def layer_parameters(config: Mapping[str, Any]) -> LayerParameters:
    """Count the weights of a layer. Arguments and errors as for `parameters`."""
    kind = config.get("model_type")
    if kind not in EXPERTS:
        raise ValueError(f"model_type={kind!r}: use one of {', '.join(EXPERTS)}")
    if config.get("attention_bias"):
        raise ValueError("attention_bias=True: only weights without biases are counted")
    fields = _Fields(config)
    count, width = EXPERTS[kind]
    E, N = fields["hidden_size"], _number_of_experts(fields, count)
    expert = 3 * E * fields[width]  # gate, up and down
    beside = E * N
    if kind == "deepseek_v3":
        beside += N + fields["n_shared_experts"] * expert  # N: the bias that balances the load
    dense_mlp = 3 * E * fields["intermediate_size"] if _dense_layers(fields) else 0
    return LayerParameters(_attention(kind, fields) + 2 * E, dense_mlp, beside, expert, N)


def _number_of_experts(fields: _Fields, usual: str) -> int:
    """By its `usual` name, or by the one that a file has instead."""
    found = {name: fields[name] for name in (usual, *COUNTS) if fields.config.get(name) is not None}
    if len(set(found.values())) > 1:
        raise ValueError(f"config.json says {' and '.join(f'{name}={count}' for name, count in found.items())}: which?")
    return next(iter(found.values())) if found else fields[usual]


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


def _dense_layers(fields: _Fields) -> int:
    """Layers whose MLP is an ordinary one."""
    kind = fields.config["model_type"]
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
