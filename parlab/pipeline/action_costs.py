"""How long each action of a schedule takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from parlab.arguments import check_fields, optional
from parlab.pipeline.amounts import Amount, finite_amounts, without_arrays


@dataclass(frozen=True)
class Costs:
    """The time of each action of a chunk, in one unit: a number, or one number a stage. Integers stay integers.

    Args:
        forward: F.
        backward_input: I.
        backward_weight: W. A full backward takes the sum of the two, and sends its gradient when all of it has ended.
        transfer: from a stage to its neighbour on another rank (as a list: of what leaves that stage).
        optimizer: the optimizer's step on the weights of a stage, after all actions. None: it is left out.
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
    optimizer: Amount | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, without_arrays(getattr(self, field.name)))
        check_fields(self, FIELD_RULES)

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
        whole = [i + w for i, w in zip(half, weight, strict=True)]
        return {"F": forward, "B": whole, "I": half, "W": weight}


ALWAYS = ("forward", "backward_input", "backward_weight", "transfer")
FIELD_RULES = dict.fromkeys(ALWAYS, finite_amounts) | {name: optional(finite_amounts) for name in ("pair", "optimizer")}
UNIT_COSTS = Costs()
