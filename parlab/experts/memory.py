"""The bytes of a mixture's weights, gradients and optimizer state on one rank.

The weights beside the experts are cut by tensor parallelism and sharded over dp · cp; the experts are dealt out over
ep, cut over etp, and sharded over edp = dp · cp · tp / (ep · etp).

Source: NVIDIA 2026, arXiv 2603.07685, section 3.3 and table 3; Megatron-LM, megatron/core/transformer/moe/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arguments import whole
from parlab.nn.parameters import layer_parameters


class MixtureMemory(NamedTuple):
    """Of one rank."""

    dense: int  # numbers in the weights that are no routed experts
    experts: int  # numbers in its routed experts
    weights_and_gradients: float  # bytes
    optimizer: float  # bytes


def mixture_memory(
    config: Mapping[str, Any],
    moe_layers: int,
    *,
    dense_layers: int = 0,
    dp: int = 1,
    cp: int = 1,
    tp: int = 1,
    ep: int = 1,
    etp: int = 1,
    weight_bytes: int = 2,
    gradient_bytes: int = 4,
    optimizer_bytes: int = 12,
) -> MixtureMemory:
    """Of a rank with some layers of a model, without embeddings and head.

    Args:
        config: what `config.json` holds, as for `parlab.nn.parameters.parameters`.
        moe_layers, dense_layers: of this rank: layers with experts, and with a dense MLP.
        dp, cp, tp: of the weights beside the experts.
        ep, etp: of the experts; ep · etp divides dp · cp · tp.
        weight_bytes, gradient_bytes, optimizer_bytes: a number. The optimizer's state is sharded as ZeRO's stage 1 has
            it.

    Raises:
        ValueError: sizes that are no whole numbers from 1, or do not divide; or a configuration that is not known.

    >>> mixtral = dict(model_type="mixtral", vocab_size=32000, hidden_size=4096, intermediate_size=14336,
    ...                num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
    ...                num_experts_per_tok=2)
    >>> mixture_memory(mixtral, 32, dp=8, ep=8).experts == 32 * 3 * 4096 * 14336  # one expert a layer
    True
    """
    counts = {"dp": dp, "cp": cp, "tp": tp, "ep": ep, "etp": etp}
    for name, value in counts.items():
        whole(name, value, 1)
    whole("moe_layers", moe_layers, 0)
    whole("dense_layers", dense_layers, 0)
    layer = layer_parameters(config)
    if layer.experts % ep:
        raise ValueError(f"ep={ep}: does not divide the {layer.experts} experts")
    if dp * cp * tp % (ep * etp):
        raise ValueError(f"ep={ep}, etp={etp}: their product does not divide dp · cp · tp = {dp * cp * tp}")
    beside = (moe_layers + dense_layers) * layer.attention + moe_layers * layer.beside_experts
    dense = (beside + dense_layers * layer.dense_mlp) // tp
    experts = moe_layers * layer.experts // ep * layer.expert // etp
    edp = dp * cp * tp // (ep * etp)
    optimizer = optimizer_bytes * (dense / (dp * cp) + experts / edp)
    return MixtureMemory(dense, experts, (weight_bytes + gradient_bytes) * (dense + experts), optimizer)
