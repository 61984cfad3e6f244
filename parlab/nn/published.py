"""Published models by name. `models.toml` holds their sizes and the sources."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from parlab.nn.config import Config, GPTConfig, LlamaConfig

_sizes = tomllib.loads((files("parlab.nn") / "models.toml").read_text(encoding="utf-8"))
_llamas = {name: LlamaConfig(*sizes) for name, sizes in _sizes["llama"].items()}
_gpts = {name: GPTConfig(*sizes) for name, sizes in _sizes["gpt"].items()}

MODELS: dict[str, Config] = {**_llamas, **_gpts}
LLAMA_7B, LLAMA_8B, LLAMA_70B, LLAMA_405B = (_llamas[f"llama-{size}"] for size in ("7b", "8b", "70b", "405b"))
GPT_22B, GPT_175B = _gpts["gpt-22b"], _gpts["gpt-175b"]
