"""The exchange in two levels: a token crosses to each node once, however many of its experts are there.

    between   x[token] travels to one rank of each node that has an expert of the token: the one at the same place
    inside    from there it travels to each rank of the node that has such an expert
    experts   each rank sums gate · answer over its own experts of the token
    inside    the sums of the ranks travel back, and are added
    between   the sums of the nodes travel back, and are added -> y[token]

The rank of an expert needs to know the experts and the gates of each row: `chosen` and `gates` travel with the row. In
the backward dy travels the same way, and dx and dgates travel back.

Sums are made by rank and by node, not in the order of the slots: y equals the serial layer's to rounding.

Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report", section 3.2.2; DeepEP's normal kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array, add_at, namespace, to_host
from parlab.nn.moe import MixtureOfExperts
from parlab.nn.routing import Routing, destinations
from parlab.world import Comm
from parlab.world.collectives.walks import partners


class Hop(NamedTuple):
    """The rows that go to each rank of a group. A row may go to several ranks; rows for this rank are not sent."""

    comm: Comm
    leaving: list[Array]  # for each rank the numbers of the rows that go there, ascending
    arriving: list[int]  # rows that come from each rank


def make_hop(comm: Comm, goes: Array) -> Hop:
    """The hop of booleans `[rows, size]`. All ranks of the group call it, and all-gather their numbers of rows."""
    xp = namespace(goes)
    counts = xp.count_nonzero(goes, axis=0)
    table = to_host(xp.reshape(comm.all_gather(counts), (comm.size, comm.size)))
    stays = xp.astype(~goes, xp.int8)
    order = xp.argsort(stays, axis=0, stable=True)  # the rows that go, then those that stay; both ascending
    leaving = [order[:count, rank] for rank, count in enumerate(table[comm.rank])]
    return Hop(comm, leaving, [table[source][comm.rank] for source in range(comm.size)])


def send_rows(hop: Hop, columns: tuple[Array, ...], label: str) -> tuple[Array, ...]:
    """Send the rows of several arrays, in one message a rank. Returns the rows that arrive, ordered by source."""
    comm, xp = hop.comm, namespace(*columns)
    outgoing = [tuple(xp.take(column, rows, axis=0) for column in columns) for rows in hop.leaving]
    incoming = list(outgoing)
    for ahead, behind in partners(comm):
        form = tuple(
            xp.empty((hop.arriving[behind], *column.shape[1:]), dtype=column.dtype, device=column.device)
            for column in columns
        )
        incoming[behind] = comm.sendrecv(outgoing[ahead], ahead, behind, like=form, label=label)
    return tuple(xp.concat([part[number] for part in incoming]) for number in range(len(columns)))


def add_back(hop: Hop, columns: tuple[Array, ...], rows: int, label: str) -> tuple[Array, ...]:
    """Send each row back to its source, and add the rows that come from copies of one row.

    `rows`: the number of rows before the hop.
    """
    comm, xp = hop.comm, namespace(*columns)
    stops = [sum(hop.arriving[:source]) for source in range(comm.size + 1)]
    outgoing = [tuple(column[stops[r] : stops[r + 1], ...] for column in columns) for r in range(comm.size)]
    sums = tuple(xp.zeros((rows, *column.shape[1:]), dtype=column.dtype, device=column.device) for column in columns)
    _add_rows(sums, hop.leaving[comm.rank], outgoing[comm.rank])
    for ahead, behind in partners(comm):
        back = hop.leaving[behind]
        form = tuple(xp.empty((back.shape[0], *x.shape[1:]), dtype=x.dtype, device=x.device) for x in columns)
        _add_rows(sums, back, comm.sendrecv(outgoing[ahead], ahead, behind, like=form, label=label))
    return sums


def _add_rows(sums: tuple[Array, ...], places: Array, parts: tuple[Array, ...]) -> None:
    for total, part in zip(sums, parts, strict=True):
        add_at(total, places, part)


class TwoLevelCache(NamedTuple):
    """The arrays that a rank keeps for its backward: of the two hops, the rows before each, and its experts'."""

    between: Hop
    inside: Hop
    rows: tuple[int, int]
    local: Routing
    experts: Any


def mix_in_two_levels(
    layer: MixtureOfExperts, between: Comm, inside: Comm, x: Array, routing: Routing
) -> tuple[Array, TwoLevelCache]:
    """`(y [T, E], cache)`. `between`: the ranks of this place, by node; `inside`: those of this node, by place."""
    chosen = destinations(routing, layer.num_experts)  # [T·k]; N where the slot was dropped
    chosen = namespace(x).reshape(chosen, routing.chosen.shape)
    per_node = layer.num_experts // between.size

    first = make_hop(between, _wants(chosen, per_node, range(between.size)))
    at_node = send_rows(first, (x, chosen, routing.gates), "dispatch between nodes")  # [R, E], [R, k], [R, k]

    own_node = between.rank * inside.size
    places = range(own_node, own_node + inside.size)
    second = make_hop(inside, _wants(at_node[1], per_node // inside.size, places))
    rows, chosen, gates = send_rows(second, at_node, "dispatch inside")

    local = local_routing(chosen, gates, layer.own_experts())
    sums, of_experts = MixtureOfExperts.mix(layer, rows, local)
    inside.hold("slots", of_experts.slots)
    (sums,) = add_back(second, (sums,), at_node[0].shape[0], "combine inside")
    (y,) = add_back(first, (sums,), x.shape[0], "combine between nodes")
    return y, TwoLevelCache(first, second, (x.shape[0], at_node[0].shape[0]), local, of_experts)


def mix_in_two_levels_backward(
    layer: MixtureOfExperts, dy: Array, cache: TwoLevelCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    first, second, (tokens, at_node), local, of_experts = cache
    (dsums,) = send_rows(first, (dy,), "combine's backward between nodes")
    (dsums,) = send_rows(second, (dsums,), "combine's backward inside")
    drows, dgates, pending = MixtureOfExperts.mix_backward(layer, dsums, local, of_experts)
    drows, dgates = add_back(second, (drows, dgates), at_node, "dispatch's backward inside")
    dx, dgates = add_back(first, (drows, dgates), tokens, "dispatch's backward between nodes")
    return dx, dgates, pending


def local_routing(chosen: Array, gates: Array, own: range) -> Routing:
    """The routing of rows among this rank's experts alone, numbered from 0. Slots of other experts are dropped."""
    xp = namespace(gates)
    here = (chosen >= own.start) & (chosen < own.stop)
    return Routing(xp.where(here, chosen - own.start, 0), gates, kept=here)


def _wants(chosen: Array, experts_each: int, ranks: range) -> Array:
    """Booleans `[rows, ranks]`: whether one of a row's experts is there."""
    xp = namespace(chosen)
    return xp.stack([xp.any(chosen // experts_each == rank, axis=1) for rank in ranks], axis=1)
