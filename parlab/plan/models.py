"""The models that a plan can be made for: published sizes, and what the formulas need of any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from parlab.arguments import whole
from parlab.nn import LlamaConfig


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT: layer norms, biases, whole S × S weights of attention, GELU between E and 4E, dropout, a head
    tied to the embedding. The fields have Hugging Face's names.

    Raises:
        ValueError: a size that is not a positive whole number, or heads that do not divide.

    >>> config = GPTConfig(vocab_size=51200, hidden_size=12288, num_hidden_layers=96, num_attention_heads=96)
    >>> round(config.num_parameters / 1e9)
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
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide among num_attention_heads {self.num_attention_heads}"
            )

    @property
    def num_parameters(self) -> int:
        """12E² + 13E a layer, the two embeddings, and the last norm."""
        E = self.hidden_size
        tables = (self.vocab_size + self.max_position_embeddings) * E
        return self.num_hidden_layers * (12 * E * E + 13 * E) + tables + 2 * E


Config = LlamaConfig | GPTConfig


class Sizes(NamedTuple):
    """What the formulas need: the letters of the shapes, and parameters. `layer_whole` are those of a layer that tensor
    parallelism leaves on every rank (norms, and biases after a row layer), `layer_cut` the others."""

    E: int
    L: int
    H: int
    G: int
    D: int
    M: int
    V: int
    fused: bool  # attention tile by tile, causal alone; otherwise whole S × S weights, with dropout
    layer_cut: int
    layer_whole: int
    first: int  # the embedding
    last: int  # final norm and head

    @property
    def up(self) -> int:
        """Columns of the MLP's first product."""
        return 2 * self.M if self.fused else self.M


def sizes(config: Config) -> Sizes:
    """Of either kind.

    Raises:
        ValueError: another kind of configuration.

    >>> found = sizes(LLAMA_8B)
    >>> found.L * (found.layer_cut + found.layer_whole) + found.first + found.last == LLAMA_8B.num_parameters
    True
    """
    if isinstance(config, GPTConfig):
        E, H, V = config.hidden_size, config.num_attention_heads, config.vocab_size
        first = (V + config.max_position_embeddings) * E
        # A tied head is a copy on the last stage; where there is one stage alone, `estimate` takes it off again
        return Sizes(
            E, config.num_hidden_layers, H, H, E // H, 4 * E, V, False, 12 * E * E + 7 * E, 6 * E, first, V * E + 2 * E
        )
    if not isinstance(config, LlamaConfig):
        raise ValueError(f"config={config!r:.60}: a LlamaConfig or a GPTConfig is needed")
    E, H, G, D = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    M, V = config.intermediate_size, config.vocab_size
    cut = 2 * E * (H + G) * D + 3 * E * M
    return Sizes(E, config.num_hidden_layers, H, G, D, M, V, True, cut, 2 * E, V * E, V * E + E)


def _llama(layers: int, E: int, M: int, H: int, G: int, V: int) -> LlamaConfig:
    return LlamaConfig(V, E, M, layers, H, G)


# Llama: Touvron et al. 2023, table 2; Llama 2: Touvron et al. 2023, table 1; Llama 3: Dubey et al. 2024, table 3
LLAMA_7B = _llama(32, 4096, 11008, 32, 32, 32000)
LLAMA_13B = _llama(40, 5120, 13824, 40, 40, 32000)
LLAMA_30B = _llama(60, 6656, 17920, 52, 52, 32000)
LLAMA_65B = _llama(80, 8192, 22016, 64, 64, 32000)
LLAMA_8B = _llama(32, 4096, 14336, 32, 8, 128256)
LLAMA_70B = _llama(80, 8192, 28672, 64, 8, 128256)
LLAMA_405B = _llama(126, 16384, 53248, 128, 8, 128256)

# Korthikanti et al. 2022, table 3
GPT_22B = GPTConfig(51200, 6144, 48, 64)
GPT_175B = GPTConfig(51200, 12288, 96, 96)
GPT_530B = GPTConfig(51200, 20480, 105, 128)
GPT_1T = GPTConfig(51200, 25600, 128, 160)

MODELS: dict[str, Config] = {
    name.lower().replace("_", "-"): model for name, model in globals().items() if isinstance(model, Config)
}
