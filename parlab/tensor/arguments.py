"""The rules for this room's arguments, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, flag, instance, one_of, optional, text, whole
from parlab.arrays import is_array
from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.world import Cluster


def matrix(name: str, value: Any) -> None:
    """Refuse what is no array with two axes."""
    if not is_array(value) or value.ndim != 2:
        raise ValueError(f"{name}={value!r:.60}: must be a matrix, an array with 2 axes")


def _array(name: str, value: Any) -> None:
    if not is_array(value):
        raise ValueError(f"{name}={value!r:.60}: must be an array")


def _function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name}={value!r:.60}: must be a function")


_positive: Rule = partial(whole, least=1)

RULES: dict[str, Rule] = {
    "config": partial(instance, kind=LlamaConfig),
    "model": partial(instance, kind=Llama),
    "cluster": partial(instance, kind=Cluster),
    "weights": partial(instance, kind=Mapping),
    "weight": matrix,
    **dict.fromkeys(("x", "dy", "logits"), _array),
    "targets": _array,
    "tokens": _array,
    "name": text,
    "prefix": text,
    **dict.fromkeys(("B", "S", "size", "itemsize", "s", "b", "h", "a", "t", "head_dim"), _positive),
    "vocab_size": optional(_positive),
    "dropout_rate": partial(amount, below=1),
    "seed": partial(whole, least=0),
    **dict.fromkeys(("backward", "sequence_parallel", "overlap", "dropout"), flag),
    "recompute": partial(one_of, choices=("none", "selective", "full")),
    "algorithm": partial(one_of, choices=("ring", "hierarchical")),
    **dict.fromkeys(("change", "step"), _function),
}


def check_names(weights: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse weights that lack one of `names`.

    Raises:
        ValueError: with the first name that is missing.
    """
    for name in names:
        if name not in weights:
            raise ValueError(f"weights hold no {name!r}: look at prefix, or at the names of the model")


def heads_of(weight: Any, head_dim: int) -> int:
    """How many heads of `head_dim` columns a matrix `[in, heads · head_dim]` has.

    Raises:
        ValueError: the columns are no heads of this size.
    """
    columns: int = weight.shape[1]
    if columns % head_dim:
        raise ValueError(f"head_dim={head_dim}: must divide the {columns} columns of the weights")
    return columns // head_dim
