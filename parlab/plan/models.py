"""The models that a plan can be made for: published sizes, and what the formulas need of any of them."""

from __future__ import annotations

from dataclasses import dataclass

from parlab.arguments import whole
from parlab.nn import LlamaConfig


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT: layer norms, biases, whole S × S weights of attention, GELU between E and 4E, dropout, a head
    tied to the embedding. The fields have Hugging Face's names.

    Raises:
        ValueError: a size that is not a positive whole number, or heads that do not divide.

    >>> round(GPTConfig(51200, hidden_size=12288, num_hidden_layers=96, num_attention_heads=96).num_parameters / 1e9)
    175
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        for name in vars(self):
            whole(name, getattr(self, name), 1)
        E, H = self.hidden_size, self.num_attention_heads
        if E % H:
            raise ValueError(f"hidden_size {E} does not divide among num_attention_heads {H}")

    @property
    def num_parameters(self) -> int:
        """12E² + 13E a layer, the two embeddings, and the last norm."""
        E, rows = self.hidden_size, self.vocab_size + self.max_position_embeddings
        return self.num_hidden_layers * (12 * E * E + 13 * E) + rows * E + 2 * E


Config = LlamaConfig | GPTConfig


class Sizes:
    """What the formulas need of either kind: the letters of the shapes, and parameters.

    Raises:
        ValueError: another kind of configuration.
    """

    def __init__(self, config: Config) -> None:
        if not isinstance(config, Config):
            raise ValueError(f"config={config!r:.60}: a LlamaConfig or a GPTConfig is needed")
        self.config, self.E, self.L = config, config.hidden_size, config.num_hidden_layers
        self.H, self.V, E = config.num_attention_heads, config.vocab_size, config.hidden_size
        self.fused = isinstance(config, LlamaConfig)  # attention: tile by tile, causal alone; or S × S, with dropout
        if isinstance(config, LlamaConfig):
            self.G, self.D, self.M = config.num_key_value_heads, config.head_dim, config.intermediate_size
            self.up, norm, cut, whole, positions = 2 * self.M, E, 0, 0, 0
        else:
            self.G, self.D, self.M = self.H, E // self.H, 4 * E
            self.up, norm, cut, whole, positions = 4 * E, 2 * E, 7 * E, 2 * E, config.max_position_embeddings
        # Of a layer: what tensor parallelism cuts, and leaves on every rank: norms, and biases after a row layer
        self.layer_cut, self.layer_whole = (
            2 * E * (self.H + self.G) * self.D + E * (self.up + self.M) + cut,
            2 * norm + whole,
        )
        self.first, self.last = (self.V + positions) * E, self.V * E + norm  # a tied head is a copy on the last stage


# Vocabulary, E, M, layers, heads, key/value heads.
# Llama: Touvron et al. 2023, table 2; Llama 2: Touvron et al. 2023, table 1; Llama 3: Dubey et al. 2024, table 3
LLAMA_7B = LlamaConfig(32000, 4096, 11008, 32, 32)
LLAMA_13B = LlamaConfig(32000, 5120, 13824, 40, 40)
LLAMA_30B = LlamaConfig(32000, 6656, 17920, 60, 52)
LLAMA_65B = LlamaConfig(32000, 8192, 22016, 80, 64)
LLAMA_8B = LlamaConfig(128256, 4096, 14336, 32, 32, 8)
LLAMA_70B = LlamaConfig(128256, 8192, 28672, 80, 64, 8)
LLAMA_405B = LlamaConfig(128256, 16384, 53248, 126, 128, 8)

# Vocabulary, E, layers, heads: Korthikanti et al. 2022, table 3
GPT_22B = GPTConfig(51200, 6144, 48, 64)
GPT_175B = GPTConfig(51200, 12288, 96, 96)
GPT_530B = GPTConfig(51200, 20480, 105, 128)
GPT_1T = GPTConfig(51200, 25600, 128, 160)

MODELS: dict[str, Config] = {
    name.lower().replace("_", "-"): model for name, model in globals().items() if isinstance(model, Config)
}
