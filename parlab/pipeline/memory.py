"""How much a rank may keep at once: in chunks, or in bytes that shrink between I and W."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Rational
from typing import Any

from parlab.arguments import check_fields, optional
from parlab.pipeline.amounts import Amount, amounts, without_arrays

ROUNDING = 1e-9  # part of a limit


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the activations that a rank keeps. Instead of `MemoryLimit(L)`, a function also takes the number L: at
    most L chunks, each counted from its F to its W or B.

    Whole numbers are compared exactly. Others are compared to one part in 10⁹, so that 3 chunks of 0.1 fit into 0.3.

    Args:
        limit: the most that a rank may keep, a number or one a rank, in the unit of the other two.
        activation: the amount that one chunk keeps from its F on (M_B), a number or one a stage.
        pending: the part that is left of it between its I and its W (M_W), at most `activation`, a number or one a
            stage. None: all of it.

    Raises:
        ValueError: a negative amount, an empty list, or more pending than was kept before.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2 and appendix; its limits of p and 2p
    activations are `MemoryLimit(p, pending=M_W / M_B)`.

    >>> MemoryLimit(limit=80, activation=10, pending=4).tables(num_ranks=2, num_stages=2)
    ([80, 80], [10, 10], [4, 4])
    """

    limit: Amount
    activation: Amount = 1
    pending: Amount | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, without_arrays(getattr(self, field.name)))
        check_fields(self, {"limit": amounts, "activation": amounts, "pending": optional(amounts)})

    def tables(self, num_ranks: int, num_stages: int) -> tuple[list[float], list[float], list[float]]:
        """The limit of each rank, and the amounts that a chunk of each stage keeps before and after its I.

        The limits are a little larger where rounding matters: all who compare with them agree on what fits.

        Raises:
            ValueError: a list of another length, or more pending than was kept before.
        """
        limit = _one_each("memory_limit", self.limit, num_ranks, "rank")
        whole = _one_each("activation", self.activation, num_stages, "stage")
        rest = whole if self.pending is None else _one_each("pending", self.pending, num_stages, "stage")
        if any(after > before for after, before in zip(rest, whole, strict=True)):
            raise ValueError(f"pending={self.pending!r} is more than activation={self.activation!r}: an I only frees")
        if not all(isinstance(number, Rational) or number == math.inf for number in (*limit, *whole, *rest)):
            limit = [most + ROUNDING * most for most in limit]
        return limit, whole, rest


Limit = float | Sequence[float] | MemoryLimit | None


def limit_tables(memory_limit: Limit, num_ranks: int, num_stages: int) -> tuple[list[float], list[float], list[float]]:
    """`MemoryLimit.tables` of an argument: None (no limit), chunks, one number a rank, or a `MemoryLimit`."""
    if not isinstance(memory_limit, MemoryLimit):
        memory_limit = MemoryLimit(math.inf if memory_limit is None else memory_limit)
    return memory_limit.tables(num_ranks, num_stages)


def change_of_kept(kind: str, activation: float = 1, pending: float = 1) -> float:
    """By how much an action changes what its rank keeps: `activation` from F to I, then `pending` until W; a B frees
    all. An F keeps it from its start on; the others free it when they end.

    >>> [change_of_kept(kind, activation=10, pending=4) for kind in "FIWB"]
    [10, -6, -4, -10]
    """
    return {"F": activation, "I": pending - activation, "W": -pending, "B": -activation}[kind]


def changes_of_kept(activation: Sequence[Any], pending: Sequence[Any]) -> dict[str, list[Any]]:
    """`change_of_kept` of each kind, one number a stage."""
    of_stages = list(zip(activation, pending, strict=True))
    return {kind: [change_of_kept(kind, *of_stage) for of_stage in of_stages] for kind in "FIWB"}


def number_that_fits(limit: float, each: float) -> float:
    """How many chunks that keep `each` fit into a limit: a whole number, or infinity."""
    return math.inf if not each or limit == math.inf else int(limit // each)


def _one_each(name: str, amount: Amount, number: int, of: str) -> list[float]:
    amounts = list(amount) if isinstance(amount, Sequence) else [amount] * number
    if len(amounts) != number:
        raise ValueError(f"{name} has {len(amounts)} numbers for {number} {of}s: give one a {of}")
    return amounts
