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

from typing import Any

from parlab.arrays import Array
from parlab.experts.rank_experts import local_routing
from parlab.nn.moe import Experts, MixCache, mix, mix_backward
from parlab.nn.routing import Routing
from parlab.world import Comm


def all_gather_mix(comm: Comm, experts: Experts, x: Array, routing: Routing) -> tuple[Array, MixCache]:
    """`(y [T, E], cache)`, as `parlab.nn.moe.mix`; every rank has equally many tokens."""
    parts = x, routing.chosen, routing.gates
    tokens, chosen, gates = (comm.all_gather(part) for part in parts)  # [P·T, E], twice [P·T, k]
    sums, cache = mix(experts, tokens, local_routing(chosen, gates, experts.numbers))  # [P·T, E]
    comm.hold("slots", cache.unpermute.slots)
    return comm.reduce_scatter(sums), cache


def all_gather_mix_backward(comm: Comm, experts: Experts, dy: Array, cache: MixCache) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    dtokens, dgates, pending = mix_backward(experts, comm.all_gather(dy), cache)
    return comm.reduce_scatter(dtokens), comm.reduce_scatter(dgates), pending
