"""The serial Mixtral: a Llama whose MLPs are mixtures of experts. It is the model that expert parallelism is held to.

>>> from parlab.arrays import generator
>>> config = MixtralConfig(vocab_size=11, hidden_size=8, intermediate_size=6, num_hidden_layers=2,
...                        num_attention_heads=2, num_local_experts=4, num_experts_per_tok=2)
>>> model = Mixtral.random(config, seed=1)
>>> tokens = generator(2).integers(11, size=(3, 6))  # [B, S + 1]
>>> loss, gradients = model.loss_and_gradients(tokens[:, :-1], tokens[:, 1:])
>>> round(loss, 1), sorted(gradients) == sorted(model.weights)  # an untrained model guesses: log 11 = 2.4
(2.4, True)

Source: Jiang et al. 2024, "Mixtral of experts"; names and files as in Hugging Face's transformers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from parlab.arguments import amount
from parlab.arrays import Array
from parlab.nn.config import ONLY, REQUIRED, LlamaConfig
from parlab.nn.layers import Block, Core
from parlab.nn.llama import Llama, decoder_block, load_as
from parlab.nn.moe import Experts, MixtureOfExperts
from parlab.nn.rotary import Rotary
from parlab.nn.router import Router


@dataclass(frozen=True)
class MixtralConfig(LlamaConfig):
    """A Llama's fields, and those of its experts; `intermediate_size` is an expert's.

    Raises:
        ValueError: as `LlamaConfig`; more experts a token than there are.
    """

    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    architecture: ClassVar[str] = "MixtralForCausalLM"
    required: ClassVar[tuple[str, ...]] = (*REQUIRED, "num_local_experts", "num_experts_per_tok")
    only: ClassVar[Mapping[str, Any]] = ONLY | {
        "model_type": "mixtral",
        "sliding_window": None,
        "router_jitter_noise": 0.0,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts_per_tok > self.num_local_experts:
            chosen, experts = self.num_experts_per_tok, self.num_local_experts
            raise ValueError(f"num_experts_per_tok {chosen} is more than num_local_experts {experts}")

    @property
    def mlp_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the router and the experts of one layer: w1 is the gate, w3 up, w2 down."""
        E, M, N = self.hidden_size, self.intermediate_size, self.num_local_experts
        shapes: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate": (E, N)}
        for expert in range(N):
            prefix = f"block_sparse_moe.experts.{expert}"
            shapes |= {f"{prefix}.w1": (E, M), f"{prefix}.w2": (M, E), f"{prefix}.w3": (E, M)}
        return shapes


class Mixtral(Llama):
    """A configuration, its weights by Hugging Face name, and the layers that read them.

    Args:
        auxiliary: α. The gradients are those of the cross-entropy plus, of each layer, α N Σ f_i P_i over the tokens of
            the call. (transformers takes f and P over all layers together, and f k times as large.)
        bias_rate: γ of the bias that balances without a loss; `rebalance` moves it after a step.
        the rest: as for `Llama`.

    Raises:
        ValueError: as `Llama`; a negative auxiliary or bias_rate.
    """

    config: MixtralConfig

    def __init__(
        self,
        config: MixtralConfig,
        weights: dict[str, Array],
        *,
        auxiliary: float = 0.0,
        bias_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        amount("auxiliary", auxiliary)
        amount("bias_rate", bias_rate)
        self.balance: dict[str, Any] = {"auxiliary": auxiliary, "bias_rate": bias_rate}
        self.routers: list[Router] = []  # of each layer
        super().__init__(config, weights, **kwargs)

    def block(self, layer: int, config: LlamaConfig, weights: Mapping[str, Array], rotary: Rotary, core: Core) -> Block:
        """Layer number `layer`: a decoder block whose MLP is a mixture of experts, with a softmax over the chosen."""
        assert isinstance(config, MixtralConfig)
        prefix = f"model.layers.{layer}.block_sparse_moe"
        N, k = config.num_local_experts, config.num_experts_per_tok
        router = Router(weights, f"{prefix}.gate.weight", N, k, **self.balance)
        self.routers.append(router)
        mlp = MixtureOfExperts(router, Experts(weights, f"{prefix}.experts", range(N)))
        return decoder_block(config, weights, layer, rotary, core, mlp)

    def rebalance(self) -> None:
        """Move the bias of every layer by the loads of all backwards since the last call: once a step."""
        for router in self.routers:
            router.rebalance(router.counted)


def load(folder: str | os.PathLike[str], *, xp: Any = None, dtype: str | None = None, **kwargs: Any) -> Mixtral:
    """Read a folder that `Mixtral.save` or transformers wrote. Arguments and errors as for `parlab.nn.llama.load`."""
    return load_as(Mixtral, MixtralConfig, folder, xp, dtype, **kwargs)
