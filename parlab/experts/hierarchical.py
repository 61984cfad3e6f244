"""The exchange in two levels: a token crosses to each node once, however many of its experts are there.

    between   x[token] travels to one rank of each node that has an expert of the token: the one at the same place
    inside    from there it travels to each rank of the node that has such an expert
    experts   each rank sums gate · answer over its own experts of the token
    inside    the sums of the ranks travel back, and are added
    between   the sums of the nodes travel back, and are added -> y[token]

Ranks 0 and 1 are a node, and 2 and 3. A token of rank 0 has its experts on ranks 2 and 3. It crosses to rank 2, which
has rank 0's place; rank 2 keeps it, and sends a copy to rank 3. Rank 3's sum comes back to rank 2, which adds its own;
one row crosses back to rank 0.

The rank of an expert needs to know the experts and the gates of each row: `chosen` and `gates` travel with the row. In
the backward dy travels the same way, and dx and dgates travel back.

Invariant: a row crosses to each node, and inside it to each rank, at most once; on its way back the copies of a row are
added where they parted, so behind both exchanges row t is the sum over all experts of token t.

Sums are made by rank and by node, not in the order of the slots: y equals the serial layer's to rounding.

Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report", section 3.2.2; DeepEP's normal kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array, add_at, namespace, to_host
from parlab.experts.all_to_all import empty_rows
from parlab.experts.rank_experts import local_routing
from parlab.nn.moe import Experts, MixCache, mix, mix_backward
from parlab.nn.permute import parts_of
from parlab.nn.routing import Routing
from parlab.world import Comm
from parlab.world.collectives.walks import partners

Arrays = tuple[Array, ...]


class LevelPlan(NamedTuple):
    """Which rows travel to which ranks of a group. A row may go to several of them."""

    rows: int  # how many there are before they travel
    numbers: list[Array]  # for each rank the numbers of the rows that go there, ascending
    coming: list[int]  # how many rows come from each rank


def plan_level(comm: Comm, goes: Array) -> LevelPlan:
    """The plan by which row i goes to each rank r where `goes[i, r]`, `[rows, size]`, is true.

    All ranks of the group call this, and all-gather their numbers of rows.
    """
    xp = namespace(goes)
    counts = xp.count_nonzero(goes, axis=0)
    table = to_host(xp.reshape(comm.all_gather(counts), (comm.size, comm.size)))
    stays = xp.astype(~goes, xp.int8)
    order = xp.argsort(stays, axis=0, stable=True)  # the rows that go, then those that stay; both ascending
    numbers = [order[:count, rank] for rank, count in enumerate(table[comm.rank])]  # `nonzero` would wait for a GPU
    return LevelPlan(goes.shape[0], numbers, [of_source[comm.rank] for of_source in table])


def send_rows(comm: Comm, plan: LevelPlan, arrays: Arrays, label: str) -> Arrays:
    """Send the rows of several arrays, in one message a rank. Returns the rows that arrive, ordered by source."""
    xp = namespace(*arrays)
    parts = [tuple(xp.take(x, numbers, axis=0) for x in arrays) for numbers in plan.numbers]
    came = {comm.rank: parts[comm.rank]}
    for dst, src in partners(comm):
        like = tuple(empty_rows(x, plan.coming[src]) for x in arrays)
        came[src] = comm.sendrecv(parts[dst], dst, src, like=like, label=label)
    by_source = [came[source] for source in range(comm.size)]
    return tuple(xp.concat(of_array) for of_array in zip(*by_source, strict=True))


def add_back(comm: Comm, plan: LevelPlan, arrays: Arrays, label: str) -> Arrays:
    """Send each row back to its source, and add the rows that come from copies of one row."""
    xp = namespace(*arrays)
    parts = list(zip(*(parts_of(x, plan.coming) for x in arrays), strict=True))  # for each rank, of each array
    sums = tuple(xp.zeros((plan.rows, *x.shape[1:]), dtype=x.dtype, device=x.device) for x in arrays)
    _add(sums, plan.numbers[comm.rank], parts[comm.rank])
    for dst, src in partners(comm):
        like = tuple(empty_rows(x, plan.numbers[src].shape[0]) for x in arrays)
        _add(sums, plan.numbers[src], comm.sendrecv(parts[dst], dst, src, like=like, label=label))
    return sums


def _add(sums: Arrays, numbers: Array, parts: Arrays) -> None:
    """Add each row of the parts to that row of the sums that has its number."""
    for total, part in zip(sums, parts, strict=True):
        add_at(total, numbers, part)


class HierarchicalCache(NamedTuple):
    """The mix keeps these for its backward."""

    between: LevelPlan
    inside: LevelPlan
    mix: MixCache


def hierarchical_mix(
    inside: Comm, between: Comm, experts: Experts, x: Array, routing: Routing
) -> tuple[Array, HierarchicalCache]:
    """`(y [T, E], cache)`, as `parlab.nn.moe.mix`.

    Args:
        inside: the ranks of this node, by place.
        between: the ranks of this place, by node.
        experts: this rank's.
        x, routing: of this rank's tokens.
    """
    m = len(experts.numbers)
    to_nodes = plan_level(between, _goes_to(routing.chosen, m * inside.size, range(between.size)))
    tokens = x, routing.chosen, routing.gates
    x, chosen, gates = send_rows(between, to_nodes, tokens, "dispatch between nodes")  # [rows, E], twice [rows, k]

    first_rank = between.rank * inside.size
    to_ranks = plan_level(inside, _goes_to(chosen, m, range(first_rank, first_rank + inside.size)))
    x, chosen, gates = send_rows(inside, to_ranks, (x, chosen, gates), "dispatch inside")

    sums, of_mix = mix(experts, x, local_routing(chosen, gates, experts.numbers))
    inside.hold("slots", of_mix.unpermute.slots)
    (sums,) = add_back(inside, to_ranks, (sums,), "combine inside")
    (y,) = add_back(between, to_nodes, (sums,), "combine between nodes")
    return y, HierarchicalCache(to_nodes, to_ranks, of_mix)


def hierarchical_mix_backward(
    inside: Comm, between: Comm, experts: Experts, dy: Array, cache: HierarchicalCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    (dsums,) = send_rows(between, cache.between, (dy,), "combine's backward between nodes")
    (dsums,) = send_rows(inside, cache.inside, (dsums,), "combine's backward inside")
    drows, dgates, pending = mix_backward(experts, dsums, cache.mix)
    drows, dgates = add_back(inside, cache.inside, (drows, dgates), "dispatch's backward inside")
    dx, dgates = add_back(between, cache.between, (drows, dgates), "dispatch's backward between nodes")
    return dx, dgates, pending


def _goes_to(chosen: Array, experts_each: int, owners: range) -> Array:
    """Booleans `[rows, owners]`: whether a row goes to each of these ranks or nodes: it has an expert there.

    >>> import numpy as np
    >>> _goes_to(np.array([[0, 5], [1, 0]]), 2, range(3)).tolist()  # experts 0 and 1 are on rank 0, 4 and 5 on rank 2
    [[True, False, True], [True, False, False]]
    """
    xp = namespace(chosen)
    return xp.stack([xp.any(chosen // experts_each == owner, axis=1) for owner in owners], axis=1)
