"""The costs of the actions of a schedule: the time of each, and the memory of a rank that it keeps and frees.

Invariant: time is counted in one unit, which the caller chooses; memory in chunks, or, if a caller says how much a
chunk keeps, in that unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
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


Limit = float | Sequence[float] | None  # the most chunks that a rank keeps: one number, or one a rank; None: any


def limits_of_ranks(memory_limit: Limit, num_ranks: int) -> list[float]:
    """The most chunks that each rank may keep at once, each counted from its F to its W or B: whole numbers, or inf.

    Raises:
        ValueError: a negative number, or a list of another length.

    >>> limits_of_ranks([2.5, 3], num_ranks=2), limits_of_ranks(None, num_ranks=2)
    ([2, 3], [inf, inf])
    """
    given = math.inf if memory_limit is None else without_arrays(memory_limit)
    check_amounts("memory_limit", given, infinite=True)
    limits = list(given) if isinstance(given, Sequence) else [given] * num_ranks
    if len(limits) != num_ranks:
        raise ValueError(f"memory_limit has {len(limits)} numbers for {num_ranks} ranks: give one a rank")
    return [most if most == math.inf else int(most) for most in limits]


def change_of_kept(kind: str, activation: float = 1, pending: float = 1) -> float:
    """By how much an action changes what its rank keeps: `activation` from F to I, then `pending` until W; a B frees
    all. An F keeps it from its start on; the others free it when they end.

    >>> [change_of_kept(kind, activation=10, pending=4) for kind in "FIWB"]
    [10, -6, -4, -10]
    """
    return {"F": activation, "I": pending - activation, "W": -pending, "B": -activation}[kind]
