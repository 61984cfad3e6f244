"""The rules of the figures' arguments, by name. A figure that needs another rule has it beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from parlab.arguments import Rule, amount, flag, instance, optional, whole
from parlab.nn.config import LlamaConfig
from parlab.plan.arguments import count, float_itemsize
from parlab.world import Cluster
from parlab.zero import StateBytes


def within(name: str, value: Any, most: int, least: int = 1) -> None:
    """Refuse a number that is not whole, or not from `least` to `most`: more cannot be drawn."""
    if not least <= whole(name, value) <= most:
        raise ValueError(f"{name}={value!r:.60}: must be a whole number from {least} to {most}")


def among(name: str, value: Any, choices: Sequence[int]) -> None:
    """Refuse anything but one of these whole numbers."""
    if whole(name, value) not in choices:
        raise ValueError(f"{name}={value!r:.60}: use one of {', '.join(map(str, choices))}")


def numbers(name: str, value: Any) -> None:
    """Refuse anything but a list of whole numbers, one or more."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str) or not len(value):
        raise ValueError(f"{name}={value!r:.60}: a list of whole numbers is needed")
    for place, number in enumerate(value):
        whole(f"{name}[{place}]", number)


def mapping(name: str, value: Any) -> None:
    """Refuse anything but values by name, one or more."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{name}={value!r:.60}: must have one value or more, by name")


size = partial(count, most=2**31)  # beyond, the products of several have no place on an axis
RULES: dict[str, Rule] = {
    **dict.fromkeys(("S", "P", "size", "nodes", "tokens"), size),
    "ranks_per_node": optional(size),
    "itemsize": float_itemsize,
    "documents": numbers,
    **dict.fromkeys(("found", "expected"), mapping),
    "causal": flag,
    "sequence_parallel": flag,
    "asked": flag,
    "step": amount,
    "latency": amount,
    "cluster": partial(instance, kind=Cluster),
    "config": partial(instance, kind=LlamaConfig),
    "state": partial(instance, kind=StateBytes),
}
