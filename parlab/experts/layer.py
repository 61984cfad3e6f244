"""A mixture of experts whose experts live on P ranks: each rank has its own tokens and N/P of the experts.

    router     the same on every rank; its balance counts the pairs of all ranks
    experts    this rank's (`rank_experts`)
    mix        between them the messages, by one of three exchanges: `all_to_all`, `hierarchical`, `all_gather`

Invariant: the router is the same on every rank, and each expert is on one; y and dx are those of the rank's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from parlab.arguments import one_of
from parlab.arrays import Array, namespace, to_host
from parlab.experts.all_gather import all_gather_mix, all_gather_mix_backward
from parlab.experts.all_to_all import all_to_all_mix, all_to_all_mix_backward
from parlab.experts.hierarchical import hierarchical_mix, hierarchical_mix_backward
from parlab.experts.rank_experts import RankExperts, check_experts, experts_of
from parlab.nn.moe import Mix, MixtureOfExperts
from parlab.nn.router import Router
from parlab.nn.routing import Routing, expert_loads
from parlab.nn.stage import Weights
from parlab.world import Comm, grid

# a mix and its backward, each a function of its groups first: `mix_by` gives them
EXCHANGES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_to_all": (all_to_all_mix, all_to_all_mix_backward),
    "hierarchical": (hierarchical_mix, hierarchical_mix_backward),
    "all_gather": (all_gather_mix, all_gather_mix_backward),
}


class ExpertParallel(MixtureOfExperts):
    """`MixtureOfExperts` on the ranks of `comm`: `[B, S, E]`, this rank's tokens -> the same.

    The gradients of this rank's experts are complete: they hold the tokens of all ranks. The router's gradient holds
    this rank's tokens alone, as that of every dense weight; data parallelism sums it over the ranks.

    Args:
        comm: the expert-parallel group, of P ranks.
        weights: the router's, and those of this rank's experts, under their global numbers.
        prefix: of the names: `{prefix}.gate.weight`, the router's, and `{prefix}.experts.{number}.w1.weight`, ...
        num_experts, k, options: as for `Router`.
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
        loads_of = partial(loads_over, (comm,) if together is None else together, num_experts)
        super().__init__(
            Router(weights, f"{prefix}.gate.weight", num_experts, k, loads_of=loads_of, **options),
            RankExperts(comm, weights, f"{prefix}.experts", experts_of(comm.rank, num_experts, comm.size)),
            mix_by(comm, exchange, ranks_per_node),
        )

    @classmethod
    def from_full(
        cls, comm: Comm, weights: Mapping[str, Array], prefix: str, num_experts: int, k: int, **options: Any
    ) -> ExpertParallel:
        """From the weights of all experts, of which this rank keeps its own."""
        own = own_weights(weights, f"{prefix}.experts", experts_of(comm.rank, num_experts, comm.size))
        return cls(comm, own, prefix, num_experts, k, **options)


def own_weights(weights: Mapping[str, Array], prefix: str, own: range) -> dict[str, Array]:
    """All weights but those of experts, `{prefix}.{number}`, that are not among `own`."""
    mine = tuple(f"{prefix}.{number}." for number in own)
    return {name: x for name, x in weights.items() if name.startswith(mine) or not name.startswith(f"{prefix}.")}


def mix_by(comm: Comm, exchange: str, ranks_per_node: int | None) -> Mix:
    """The mix of an exchange, on its groups: `comm`, or its nodes. All ranks of `comm` call this function."""
    one_of("exchange", exchange, tuple(EXCHANGES))
    groups: tuple[Comm, ...] = (comm,)
    if exchange == "hierarchical":
        if ranks_per_node is None:
            raise ValueError(f"ranks_per_node=None: exchange='hierarchical' needs a divisor of {comm.size}")
        groups = grid(comm, ranks_per_node)
    elif ranks_per_node is not None:
        raise ValueError(f"ranks_per_node={ranks_per_node!r}: only exchange='hierarchical' takes it")
    forward, backward = EXCHANGES[exchange]
    return Mix(partial(forward, *groups), partial(backward, *groups))


def loads_over(groups: Sequence[Comm], num_experts: int, routing: Routing) -> list[int]:
    """Pairs on each expert, of the tokens of all ranks: an all-reduce of N whole numbers over each group in turn."""
    xp, chosen = namespace(routing.chosen), routing.chosen
    loads = xp.asarray(expert_loads(routing, num_experts), dtype=xp.int64, device=chosen.device)  # [N]
    for group in groups:
        loads = group.all_reduce(loads)
    return to_host(loads)
