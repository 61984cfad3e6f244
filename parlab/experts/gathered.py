"""Instead of an exchange of rows: every rank gathers all tokens, and adds its experts' share to all of them.

    all_gather      x, chosen, gates of all ranks
    experts         each rank sums gate · answer over its own experts, for every token [P·T, E]
    reduce_scatter  the sums of all ranks -> y [T, E]

Each token is sent to all ranks, also to those without an expert of it: fewer bytes than a copy an expert only if k ≥ P.
But no rank needs to know how many rows arrive.

Invariant: behind the all-gather every rank has the tokens, choices and gates of all ranks, in the order of the ranks.
Each expert is on one rank, so each gate · answer is in exactly one rank's sum.

Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py (MoEAllGatherTokenDispatcher).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.experts.two_levels import local_routing
from parlab.nn.moe import MixtureOfExperts, OwnExpertsCache
from parlab.nn.routing import Routing
from parlab.world import Comm


class GatheredCache(NamedTuple):
    """The arrays that a rank keeps for its backward."""

    local: Routing  # of all tokens among this rank's experts
    experts: OwnExpertsCache


def mix_gathered(layer: MixtureOfExperts, comm: Comm, x: Array, routing: Routing) -> tuple[Array, GatheredCache]:
    """`(y [T, E], cache)`; every rank has equally many tokens."""
    parts = x, routing.chosen, routing.gates
    tokens, chosen, gates = (comm.all_gather(part) for part in parts)  # [P·T, E], twice [P·T, k]
    local = local_routing(chosen, gates, layer.own_experts)
    share, of_experts = layer.mix_own_experts(tokens, local)  # [P·T, E]
    comm.hold("slots", of_experts.slots)
    return comm.reduce_scatter(share), GatheredCache(local, of_experts)


def mix_gathered_backward(
    layer: MixtureOfExperts, comm: Comm, dy: Array, cache: GatheredCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    dtokens, dgates, pending = layer.mix_own_experts_backward(comm.all_gather(dy), cache.local, cache.experts)
    return comm.reduce_scatter(dtokens), comm.reduce_scatter(dgates), pending
