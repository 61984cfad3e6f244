"""The settings of a run: the model, the text and the training, and the form of a file of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from parlab.arguments import amount, instance, one_of, positive, whole
from parlab.arguments import text as check_text
from parlab.nn import LlamaConfig, MixtralConfig
from parlab.nn.config import REQUIRED

BUILT_IN = {"llama-pocket": "training_run.toml", "mixtral-pocket": "mixtral_pocket.toml"}  # in the folder of parlab
TABLES = {  # of a file of settings, and the names in each
    "model": tuple(field.name for field in fields(MixtralConfig) if field.name not in ("vocab_size", "other")),
    "data": ("text", "characters", "length", "batch"),
    "training": ("steps", "lr", "warmup_steps", "weight_decay", "max_norm", "dtype", "seed", "auxiliary", "bias_rate"),
}


@dataclass(frozen=True)
class Settings:
    """The model, the text and the training; `training_run.toml`, beside this folder, explains each field."""

    model: Mapping[str, Any]
    text: str | None = None
    characters: int = 65536
    length: int = 64
    batch: int = 16
    steps: int = 250
    lr: float = 4e-3
    warmup_steps: int = 25
    weight_decay: float = 0.1
    max_norm: float | None = 1.0
    dtype: str = "float32"
    seed: int = 0
    auxiliary: float = 0.0
    bias_rate: float = 0.0

    def __post_init__(self) -> None:
        _check_values(self)
        _check_model(self)

    @property
    def has_experts(self) -> bool:
        """Whether the model is a Mixtral."""
        return "num_local_experts" in self.model

    def config(self, vocab_size: int) -> LlamaConfig:
        """The configuration of the model, a Mixtral's if it has experts."""
        return (MixtralConfig if self.has_experts else LlamaConfig)(vocab_size=vocab_size, **self.model)


def read_settings(path: Path | None = None, model: str = "llama-pocket") -> Settings:
    """Read a file; None: the built-in one of `model`, one of BUILT_IN.

    Raises:
        ValueError: with the file's name: a table, a name or a value that is none of `Settings`; another model.
    """
    one_of("model", model, tuple(BUILT_IN))
    try:
        tables = tomllib.loads((path or files("parlab") / BUILT_IN[model]).read_text(encoding="utf-8"))
        for table, values in tables.items():
            one_of("table", table, tuple(TABLES))
            if not isinstance(values, dict):
                raise ValueError(f"{table}={values!r:.60}: must be a table, [{table}]")
            for name in values:
                one_of(f"name in [{table}]", name, TABLES[table])
        return Settings(tables.get("model", {}), **tables.get("data", {}), **tables.get("training", {}))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_values(settings: Settings) -> None:
    """Refuse a value that a setting cannot have, and steps that are no more than the warmup's."""
    instance("model", settings.model, Mapping)
    if settings.text is not None:
        check_text("text", settings.text)
    for count in ("characters", "length", "batch", "steps"):
        whole(count, getattr(settings, count), 1)
    positive("lr", settings.lr, finite=True)
    whole("warmup_steps", settings.warmup_steps, 0)
    amount("weight_decay", settings.weight_decay)
    if settings.max_norm is not None:
        positive("max_norm", settings.max_norm)
    one_of("dtype", settings.dtype, ("float32", "float64"))
    whole("seed", settings.seed, 0)
    amount("auxiliary", settings.auxiliary)
    amount("bias_rate", settings.bias_rate)
    if settings.steps <= settings.warmup_steps:
        warmup = f"warmup_steps={settings.warmup_steps}"
        raise ValueError(f"steps={settings.steps}: must be more than {warmup}: use more, or set fewer warmup_steps")


def _check_model(settings: Settings) -> None:
    """Refuse a model that is none of parlab's, and a balance of experts where it has none."""
    for name in settings.model:
        one_of("name in [model]", name, TABLES["model"])
    if missing := [name for name in REQUIRED if name in TABLES["model"] and name not in settings.model]:
        raise ValueError(f"[model] lacks {', '.join(missing)}")
    settings.config(vocab_size=1)  # which refuses wrong sizes
    if (settings.auxiliary or settings.bias_rate) and not settings.has_experts:
        raise ValueError(f"auxiliary={settings.auxiliary}, bias_rate={settings.bias_rate}: the model has no experts")
