"""The rules for the arguments of this package, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, flag, instance, one_of, optional, positive, whole
from parlab.arrays import is_array
from parlab.pipeline.action_costs import Costs
from parlab.pipeline.amounts import without_arrays
from parlab.pipeline.memory import MemoryLimit
from parlab.pipeline.schedule import Schedule

METRICS = ("makespan", "longest_stage")


def layer_costs(name: str, value: Any) -> None:
    """Refuse anything but a list of numbers that are finite and at least 0."""
    numbers = without_arrays(value)
    if not isinstance(numbers, Sequence):
        raise ValueError(f"{name}={value!r:.60}: must be a list of numbers, one a layer")
    for layer, number in enumerate(numbers):
        amount(f"{name}[{layer}]", number)


def microbatches(name: str, value: Any) -> None:
    """Refuse anything but a list of arrays."""
    if not isinstance(value, Iterable) or isinstance(value, Mapping | str):
        raise ValueError(f"{name}={value!r:.60}: must be a list of arrays, one a microbatch")
    for number, array in enumerate(value):
        if not is_array(array):
            raise ValueError(f"{name}[{number}]={array!r:.60}: must be an array")


def memory_limit(name: str, value: Any) -> None:
    """Refuse anything but None, a number, one number a rank, or a `MemoryLimit`."""
    if value is not None and not isinstance(value, MemoryLimit):
        MemoryLimit(value)


size = partial(whole, least=1)

RULES: dict[str, Rule] = {
    "schedule": partial(instance, kind=Schedule),
    "like": optional(partial(instance, kind=Schedule)),
    "costs": partial(instance, kind=Costs),
    "memory_limit": memory_limit,
    "metric": partial(one_of, choices=METRICS),
    "p": size,
    "m": size,
    "chunks": size,
    "group": optional(size),
    "tries": optional(partial(whole, least=0)),
    "seconds": optional(amount),
    "post_validation": flag,
}
LAYER_RULES: dict[str, Rule] = {
    "num_layers": size,
    "num_stages": size,
    "costs": optional(layer_costs),
    "embedding": amount,
    "head": amount,
    "p": size,
    "chunks": size,
}
EXECUTION_RULES: dict[str, Rule] = {
    "schedule": RULES["schedule"],
    "inputs": microbatches,
    "targets": microbatches,
    "costs": optional(RULES["costs"]),
    "loss_scale": partial(positive, finite=True),
}


def enough_microbatches(p: int, m: int) -> None:
    """Refuse fewer microbatches than ranks.

    Raises:
        ValueError: so it is.
    """
    if m < p:
        raise ValueError(f"m={m}: needs at least one microbatch a rank, m ≥ p={p}")
