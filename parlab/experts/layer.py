"""A mixture of experts whose experts live on P ranks: each rank has its own tokens and N/P of the experts.

Invariant: the router is the same on every rank, and each expert is on one; y and dx are those of the rank's own tokens.

Sources: as `all_to_all`, `two_levels` and `gathered`, the three exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arguments import one_of
from parlab.arrays import Array, namespace, to_host
from parlab.experts.all_to_all import check_experts, mix_dispatched, mix_dispatched_backward
from parlab.experts.gathered import mix_gathered, mix_gathered_backward
from parlab.experts.two_levels import mix_in_two_levels, mix_in_two_levels_backward
from parlab.nn.formulas import linear_flops
from parlab.nn.moe import MixtureOfExperts
from parlab.nn.routing import Routing, expert_loads
from parlab.nn.stage import Gradients, Weights
from parlab.world import Comm, grid

EXCHANGES = ("all_to_all", "hierarchical", "all_gather")


class ExpertParallel(MixtureOfExperts):
    """`MixtureOfExperts` on the ranks of `comm`: `[B, S, E]`, this rank's tokens -> the same.

    The gradients of this rank's experts are complete: they hold the tokens of all ranks. The router's gradient holds
    this rank's tokens alone, as that of every dense weight; data parallelism sums it over the ranks.

    Args:
        comm: the expert-parallel group, of P ranks.
        weights: the router's, and those of this rank's experts, under their global numbers.
        prefix, num_experts, k, options: as for `MixtureOfExperts`.
        exchange: `all_to_all`: a copy for each expert of a token. `hierarchical`: a copy for each node, and inside it
            one for each rank. `all_gather`: all tokens to all ranks.
        ranks_per_node: for `hierarchical`: how many consecutive ranks share a node; divides P.
        together: for the auxiliary loss, the pairs on each expert are all-reduced over each of these groups in turn;
            None: over `comm`.

    Raises:
        ValueError: the experts do not divide among the ranks, another exchange, or ranks_per_node where it does not
            belong or does not divide.
    """

    def __init__(
        self,
        comm: Comm,
        weights: Weights,
        prefix: str,
        num_experts: int,
        k: int,
        *,
        exchange: str = "all_to_all",
        ranks_per_node: int | None = None,
        together: Sequence[Comm] | None = None,
        **options: Any,
    ) -> None:
        check_experts(num_experts, comm.size)
        one_of("exchange", exchange, EXCHANGES)
        self.comm, self.exchange = comm, exchange
        self.together = (comm,) if together is None else together
        if exchange == "hierarchical":
            if ranks_per_node is None:
                raise ValueError(f"ranks_per_node=None: exchange='hierarchical' needs a divisor of {comm.size}")
            self.inside, self.between = grid(comm, ranks_per_node)
        elif ranks_per_node is not None:
            raise ValueError(f"ranks_per_node={ranks_per_node!r}: only exchange='hierarchical' takes it")
        own_experts = experts_of(comm.rank, num_experts, comm.size)
        super().__init__(weights, prefix, num_experts, k, own_experts=own_experts, **options)

    @classmethod
    def from_full(
        cls, comm: Comm, weights: Mapping[str, Array], prefix: str, num_experts: int, k: int, **options: Any
    ) -> ExpertParallel:
        """From the weights of all experts, of which this rank keeps its own."""
        return cls(
            comm, own_weights(weights, prefix, num_experts, comm.rank, comm.size), prefix, num_experts, k, **options
        )

    def loads_together(self, routing: Routing) -> list[int]:
        """Pairs on each expert, of the tokens of all ranks: an all-reduce of N whole numbers."""
        xp, chosen = namespace(routing.chosen), routing.chosen
        loads = xp.asarray(expert_loads(routing, self.num_experts), dtype=xp.int64, device=chosen.device)  # [N]
        for group in self.together:
            loads = group.all_reduce(loads)
        return to_host(loads)

    def mix(self, x: Array, routing: Routing) -> tuple[Array, Any]:
        """The sum over each token's experts, on all ranks, of gate · answer: `[T, E]` -> `(y [T, E], cache)`."""
        if self.exchange == "hierarchical":
            return mix_in_two_levels(self, self.between, self.inside, x, routing)
        if self.exchange == "all_gather":
            return mix_gathered(self, self.comm, x, routing)
        return mix_dispatched(self, self.comm, x, routing)

    def mix_backward(self, dy: Array, routing: Routing, cache: Any) -> tuple[Array, Array, list[Any]]:
        """`(dx [T, E], dgates [T, k], pending of the experts)`."""
        if self.exchange == "hierarchical":
            return mix_in_two_levels_backward(self, dy, cache)
        if self.exchange == "all_gather":
            return mix_gathered_backward(self, self.comm, dy, cache)
        return mix_dispatched_backward(self, self.comm, dy, routing, cache)

    def apply_experts(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """As the serial layer's, on the clock."""
        self.comm.hold("rows", rows)
        self.sizes = self.weights[self.experts[0].weight_names[0]].shape  # (E, M), kept: W may find weights freed
        with self.comm.compute("experts", flops=self.flops(sum(counts))):
            return super().apply_experts(rows, counts)

    def apply_experts_backward(
        self, drows: Array, counts: Sequence[int], caches: Sequence[Any]
    ) -> tuple[Array, list[Any]]:
        """As the serial layer's, on the clock."""
        with self.comm.compute("experts (B)", flops=self.flops(sum(counts))):
            return super().apply_experts_backward(drows, counts, caches)

    def backward_weight(self, pending: Any) -> Gradients:
        """As the serial layer's, on the clock."""
        _, of_experts = pending
        rows = sum(of_expert.x.shape[0] for of_expert in of_experts)
        with self.comm.compute("experts (W)", flops=self.flops(rows)):
            return super().backward_weight(pending)

    def flops(self, rows: int) -> int:
        """Of three products forward, or of either part of their backward."""
        return 3 * linear_flops(rows, *self.sizes).forward


def experts_of(rank: int, num_experts: int, size: int) -> range:
    """The global numbers of the experts of a rank: N/P consecutive ones."""
    own = num_experts // size
    return range(rank * own, (rank + 1) * own)


def own_weights(weights: Mapping[str, Array], prefix: str, num_experts: int, rank: int, size: int) -> dict[str, Array]:
    """All weights but those of other ranks' experts."""
    others = set(range(num_experts)) - set(experts_of(rank, num_experts, size))
    foreign = tuple(f"{prefix}.experts.{expert}." for expert in others)
    return {name: weight for name, weight in weights.items() if not name.startswith(foreign)}
