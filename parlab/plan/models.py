"""The models that a plan can be made for: published sizes, and what the formulas need of any of them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from parlab.nn import GPTConfig, LlamaConfig
from parlab.world import CLASSROOM, DGX_A100, DGX_H100


def read_table(name: str) -> dict[str, Any]:
    """A file of numbers that stands beside this one."""
    return tomllib.loads((files("parlab.plan") / name).read_text(encoding="utf-8"))


Config = LlamaConfig | GPTConfig

_published = read_table("models.toml")
MODELS: dict[str, Config] = {name: LlamaConfig(*sizes) for name, sizes in _published["llama"].items()}
MODELS |= {name: GPTConfig(*sizes) for name, sizes in _published["gpt"].items()}
LLAMA_7B, LLAMA_8B, LLAMA_70B, LLAMA_405B = (MODELS[f"llama-{size}"] for size in ("7b", "8b", "70b", "405b"))
GPT_22B, GPT_175B = MODELS["gpt-22b"], MODELS["gpt-175b"]
CLUSTERS = {"dgx_h100": DGX_H100, "dgx_a100": DGX_A100, "classroom": CLASSROOM}


class Sizes:
    """What the formulas need of either kind: the letters of the shapes, and parameters."""

    def __init__(self, config: Config) -> None:
        if not isinstance(config, Config):
            raise ValueError(f"config={config!r:.60}: a LlamaConfig or a GPTConfig is needed")
        self.config, self.V, self.L = config, config.vocab_size, config.num_hidden_layers
        self.E, self.H = E, H = config.hidden_size, config.num_attention_heads
        self.fused = isinstance(config, LlamaConfig)  # attention: tile by tile, causal alone; or S × S, with dropout
        self.tied = not isinstance(config, LlamaConfig) or config.tie_word_embeddings  # a GPT's head is the embedding
        # Of a layer: what tensor parallelism cuts, and leaves on every rank: norms, and biases after a row layer
        if isinstance(config, LlamaConfig):
            self.G, self.D, self.M = config.num_key_value_heads, config.head_dim, config.intermediate_size
            self.up, norm, cut, whole, positions = 2 * self.M, E, 0, 0, 0
        else:
            self.G, self.D, self.M = H, E // H, 4 * E
            self.up, norm, cut, whole, positions = 4 * E, 2 * E, 7 * E, 2 * E, config.max_position_embeddings
        self.layer_matrices = 2 * E * (H + self.G) * self.D + E * (self.up + self.M)
        self.layer_cut, self.layer_whole = self.layer_matrices + cut, 2 * norm + whole
        self.first, self.last = (self.V + positions) * E, self.V * E + norm  # a tied head is a copy on the last stage
