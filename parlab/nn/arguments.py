"""The rules of this room's arguments, by name; those of a configuration's fields are in `parlab.nn.config`."""

from __future__ import annotations

from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, instance, positive, whole
from parlab.nn.config import LlamaConfig


def alphabet(name: str, value: Any) -> None:
    """Refuse fewer than two characters, or one that stands there twice."""
    if not isinstance(value, str) or len(set(value)) != len(value) or len(value) < 2:
        raise ValueError(f"{name}={value!r:.60}: two or more characters are needed, each of them once")


def library(name: str, value: Any) -> None:
    """Refuse anything but an array library, or None for the usual one."""
    if value is not None and not hasattr(value, "int64"):
        raise ValueError(f"{name}={value!r:.60}: an array library such as numpy is needed, or None")


RULES: dict[str, Rule] = {
    "config": partial(instance, kind=LlamaConfig),
    "xp": library,
    "alphabet": alphabet,
    "concentration": partial(positive, finite=True),
    **dict.fromkeys(("order", "batch_size", "length", "total_steps"), partial(whole, least=1)),
    **dict.fromkeys(("seed", "step", "context", "warmup_steps"), partial(whole, least=0)),
    **dict.fromkeys(("peak", "floor", "auxiliary", "bias_rate"), amount),
}
