"""A mixture of experts whose experts live on P ranks: each rank has its own tokens and N/P of the experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.experts.all_to_all import (
    Plan,
    bring_back,
    by_expert,
    by_source,
    check_experts,
    combine_backward,
    dispatch,
    dispatch_backward,
)
from parlab.nn.formulas import linear_flops
from parlab.nn.moe import MixtureOfExperts, sum_of_slots
from parlab.nn.routing import Routing
from parlab.nn.stage import Weights
from parlab.world import Comm


class DispatchCache(NamedTuple):
    """What a rank keeps of a dispatch and its experts."""

    plan: Plan
    loads: list[int]  # rows of each of this rank's experts
    experts: list[Any]  # their caches
    slots: Array  # [T, k, E]: the answers that came back, before the gates


class ExpertParallel(MixtureOfExperts):
    """`MixtureOfExperts` on the ranks of `comm`: `[B, S, E]`, this rank's tokens -> the same.

    The gradients of this rank's experts are whole: they hold the tokens of all ranks. That of the router is this rank's
    tokens' share, as those of all dense weights are: data parallelism adds them up.

    Args:
        comm: the expert-parallel group, of P ranks.
        weights: the router's, and those of this rank's experts, under their global numbers.
        prefix, num_experts, k, options: as for `MixtureOfExperts`.

    Raises:
        ValueError: the experts do not divide among the ranks.
    """

    def __init__(self, comm: Comm, weights: Weights, prefix: str, num_experts: int, k: int, **options: Any) -> None:
        check_experts(num_experts, comm.size)
        self.comm = comm
        super().__init__(weights, prefix, num_experts, k, **options)

    @classmethod
    def from_full(
        cls, comm: Comm, weights: Mapping[str, Array], prefix: str, num_experts: int, k: int, **options: Any
    ) -> ExpertParallel:
        """From the weights of all experts, of which this rank keeps its own."""
        check_experts(num_experts, comm.size)
        return cls(
            comm, own_weights(weights, prefix, num_experts, comm.rank, comm.size), prefix, num_experts, k, **options
        )

    def own_experts(self) -> range:
        """The experts of this rank."""
        return experts_of(self.comm.rank, self.num_experts, self.comm.size)

    def mix(self, x: Array, routing: Routing) -> tuple[Array, Any]:
        """Dispatch, the experts, combine."""
        rows, plan = dispatch(self.comm, x, routing, self.num_experts)  # [R, E], by source, expert, token
        self.comm.hold("rows", rows)
        loads = [sum(of_expert) for of_expert in zip(*plan.blocks, strict=True)]
        with self.comm.compute("experts", flops=self.flops(sum(loads))):
            answers, caches = self.apply_experts(by_expert(rows, plan.blocks), loads)
        slots = bring_back(self.comm, by_source(answers, plan.blocks), plan, "combine")  # [T, k, E]
        self.comm.hold("slots", slots)
        return sum_of_slots(slots, routing.gates), DispatchCache(plan, loads, caches, slots)

    def mix_backward(self, dy: Array, routing: Routing, cache: Any) -> tuple[Array, Array, list[Any]]:
        """Combine's backward, the experts', dispatch's."""
        plan, loads, caches, slots = cache
        drows, dgates = combine_backward(self.comm, dy, slots, plan, routing.gates)  # [R, E], [T, k]
        self.comm.hold("drows", drows)
        with self.comm.compute("experts backward", flops=self.flops(sum(loads))):
            drows, of_experts = self.apply_experts_backward(by_expert(drows, plan.blocks), loads, caches)
        return dispatch_backward(self.comm, by_source(drows, plan.blocks), plan), dgates, of_experts

    def flops(self, rows: int) -> int:
        """Of three products forward, or of the input part of their backward."""
        if not rows:
            return 0
        E, M = self.weights[self.experts[0].weight_names[0]].shape
        return 3 * linear_flops(rows, E, M).forward


def experts_of(rank: int, num_experts: int, size: int) -> range:
    """The global numbers of the experts of a rank: N/P consecutive ones."""
    own = num_experts // size
    return range(rank * own, (rank + 1) * own)


def own_weights(weights: Mapping[str, Array], prefix: str, num_experts: int, rank: int, size: int) -> dict[str, Array]:
    """All weights but those of other ranks' experts."""
    others = set(range(num_experts)) - set(experts_of(rank, num_experts, size))
    foreign = tuple(f"{prefix}.experts.{expert}." for expert in others)
    return {name: weight for name, weight in weights.items() if not name.startswith(foreign)}
