"""The sizes of a pipeline, and the rules for the arguments of the searches, by name."""

from __future__ import annotations

from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, instance, one_of, optional, whole
from parlab.pipeline.costs import Costs, as_limit
from parlab.pipeline.schedule import Schedule

METRICS = ("makespan", "longest_stage")


def memory_limit(name: str, value: Any) -> None:
    """Refuse anything but None, a number, one number a rank, or a `MemoryLimit`."""
    as_limit(value)


size = partial(whole, least=1)

RULES: dict[str, Rule] = {
    "schedule": partial(instance, kind=Schedule),
    "like": optional(partial(instance, kind=Schedule)),
    "costs": partial(instance, kind=Costs),
    "memory_limit": memory_limit,
    "metric": partial(one_of, choices=METRICS),
    "p": size,
    "m": size,
    "tries": optional(partial(whole, least=0)),
    "seconds": optional(amount),
}


def check_sizes(**sizes: Any) -> None:
    """Refuse numbers of ranks, microbatches or chunks that are not whole, or less than 1."""
    for name, value in sizes.items():
        whole(name, value, least=1)


def enough_microbatches(p: int, m: int) -> None:
    """Refuse fewer microbatches than ranks, and what is no number of them."""
    check_sizes(p=p, m=m)
    if m < p:
        raise ValueError(f"m={m}: needs at least one microbatch a rank, m ≥ p={p}")
