"""The costs of the actions of a schedule: the time of each, and the memory of a rank that it keeps and frees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Rational
from typing import Any

from parlab.arguments import amount

Amount = float | Sequence[float]  # a number, or a list of numbers: one for each stage or each rank


def without_arrays(given: Any) -> Any:
    """`given`; an array as a list, and a number of an array as a number of Python."""
    return given.tolist() if hasattr(given, "tolist") else given


def check_amounts(name: str, given: Any, *, infinite: bool = False) -> None:
    """Refuse anything but a number that is at least 0, and finite unless it may be `infinite`, or a list of them."""
    if isinstance(given, Sequence) and not given:
        raise ValueError(f"{name}={given!r}: an empty list; give a number, or a list of numbers")
    for value in given if isinstance(given, Sequence) else [given]:
        if not (infinite and value == math.inf):
            amount(name, value)


@dataclass(frozen=True)
class Costs:
    """The time of each action of a chunk, in one unit: a number, or one number a stage. Integers stay integers.

    Args:
        forward: F.
        backward_input: I.
        backward_weight: W. A full backward takes the sum of the two, and sends its gradient when all of it has ended.
        transfer: from a stage to its neighbour on another rank (as a list: of what leaves that stage).
        pair: an overlapped forward and backward, which then start and end together (as a list: by the forward's stage).
            None: they run one after the other.

    Raises:
        ValueError: a cost that is negative or not finite, or an empty list.
    """

    forward: Amount = 1
    backward_input: Amount = 1
    backward_weight: Amount = 1
    transfer: Amount = 0
    pair: Amount | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            given = without_arrays(getattr(self, field.name))
            object.__setattr__(self, field.name, given)
            if given is not None or field.name != "pair":
                check_amounts(field.name, given)

    def per_stage(self, name: str, num_stages: int) -> Sequence[float]:
        """The cost `name` of each stage.

        Raises:
            ValueError: a list of another length.
        """
        cost = getattr(self, name)
        if not isinstance(cost, Sequence):
            return [cost] * num_stages
        if len(cost) != num_stages:
            raise ValueError(
                f"{name} has {len(cost)} costs, but the schedule has {num_stages} stages: give one a stage"
            )
        return cost

    def by_kind(self, num_stages: int) -> dict[str, Sequence[float]]:
        """The time of each kind of action on each stage.

        Raises:
            ValueError: a list of another length.
        """
        forward = self.per_stage("forward", num_stages)
        half = self.per_stage("backward_input", num_stages)
        weight = self.per_stage("backward_weight", num_stages)
        full = [i + w for i, w in zip(half, weight, strict=True)]
        return {"F": forward, "B": full, "I": half, "W": weight}


UNIT_COSTS = Costs()
ROUNDING = 1e-9  # part of a limit


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the activations that a rank keeps. Instead of `MemoryLimit(L)`, a function also takes the number L: at
    most L chunks, each counted from its F to its W or B.

    Whole numbers are compared exactly. Others are compared to one part in 10⁹, so that 3 chunks of 0.1 fit into 0.3.

    Args:
        limit: the most that a rank may keep, a number or one a rank, in the unit of the other two.
        activation: the amount that one chunk keeps from its F on (M_B).
        pending: the part that is left of it between its I and its W (M_W), at most `activation`. None: all of it.

    Raises:
        ValueError: a negative amount, an empty list, or more pending than was kept before.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2 and appendix; its limits of p and 2p
    activations are `MemoryLimit(p, pending=M_W / M_B)`.

    >>> limit = MemoryLimit(limit=80, activation=10, pending=4)
    >>> limit.of_ranks(2), limit.changes
    ([80, 80], {'F': 10, 'I': -6, 'W': -4, 'B': -10})
    """

    limit: Amount
    activation: float = 1
    pending: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", without_arrays(self.limit))
        check_amounts("limit", self.limit, infinite=True)
        amount("activation", self.activation)
        if self.pending is None:
            return
        amount("pending", self.pending)
        if self.pending > self.activation:
            raise ValueError(f"pending={self.pending!r} is more than activation={self.activation!r}: an I only frees")

    @property
    def changes(self) -> dict[str, float]:
        """`change_of_kept` of each kind of action."""
        rest = self.activation if self.pending is None else self.pending
        return {kind: change_of_kept(kind, self.activation, rest) for kind in "FIWB"}

    def of_ranks(self, num_ranks: int) -> list[float]:
        """The limit of each rank: a little larger where rounding matters, so that all who compare with it agree.

        Raises:
            ValueError: a list of another length.
        """
        limits = list(self.limit) if isinstance(self.limit, Sequence) else [self.limit] * num_ranks
        if len(limits) != num_ranks:
            raise ValueError(f"memory_limit has {len(limits)} numbers for {num_ranks} ranks: give one a rank")
        if all(isinstance(number, Rational) or number == math.inf for number in (*limits, *self.changes.values())):
            return limits
        return [most + ROUNDING * most for most in limits]


Limit = float | Sequence[float] | MemoryLimit | None


def as_limit(memory_limit: Limit) -> MemoryLimit:
    """An argument as a `MemoryLimit`: None (no limit), chunks, one number a rank, or a `MemoryLimit`."""
    if isinstance(memory_limit, MemoryLimit):
        return memory_limit
    return MemoryLimit(math.inf if memory_limit is None else memory_limit)


def change_of_kept(kind: str, activation: float = 1, pending: float = 1) -> float:
    """By how much an action changes what its rank keeps: `activation` from F to I, then `pending` until W; a B frees
    all. An F keeps it from its start on; the others free it when they end.

    >>> [change_of_kept(kind, activation=10, pending=4) for kind in "FIWB"]
    [10, -6, -4, -10]
    """
    return {"F": activation, "I": pending - activation, "W": -pending, "B": -activation}[kind]


def number_that_fits(limit: float, each: float) -> float:
    """How many chunks that keep `each` fit into a limit: a whole number, or infinity."""
    return math.inf if not each or limit == math.inf else int(limit // each)
