"""The checks that several doors of this room share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import flag, instance, whole
from parlab.arrays import is_array
from parlab.nn.config import LlamaConfig


def matrix(name: str, value: Any) -> None:
    """Refuse what is no array with two axes."""
    if not is_array(value) or value.ndim != 2:
        raise ValueError(f"{name}={value!r:.60}: must be a matrix, an array with 2 axes")


def array(name: str, value: Any) -> None:
    """Refuse what is no array."""
    if not is_array(value):
        raise ValueError(f"{name}={value!r:.60}: must be an array")


def check_on_paper(config: Any, sequence_parallel: Any, **sizes: Any) -> None:
    """Refuse what is no LlamaConfig, a size that is no whole number from 1, or a flag that is none.

    Raises:
        ValueError: so it is.
    """
    instance("config", config, LlamaConfig)
    for name, size in sizes.items():
        whole(name, size, 1)
    flag("sequence_parallel", sequence_parallel)


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
