"""The exchange in two levels: a token crosses to each node once, however many of its experts are there.

    between   x[token] travels to one rank of each node that has an expert of the token: the one at the same place
    inside    from there it travels to each rank of the node that has such an expert
    experts   each rank sums gate · answer over its own experts of the token
    inside    the sums of the ranks travel back, and are added
    between   the sums of the nodes travel back, and are added -> y[token]

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
from parlab.experts.all_to_all import exchange_parts, rows_like
from parlab.nn.moe import MixtureOfExperts, OwnExpertsCache, parts_of
from parlab.nn.routing import Routing
from parlab.world import Comm


class Exchange(NamedTuple):
    """The rows that go to each rank of a group. A row may go to several ranks; rows for this rank are not sent."""

    comm: Comm
    numbers: list[Array]  # for each rank the numbers of the rows that go there, ascending
    coming: list[int]  # how many rows come from each rank


def make_exchange(comm: Comm, goes: Array) -> Exchange:
    """The exchange in which row i goes to each rank r where `goes[i, r]`, `[rows, size]`, is true.

    All ranks of the group call this, and all-gather their numbers of rows.
    """
    xp = namespace(goes)
    counts = xp.count_nonzero(goes, axis=0)
    table = to_host(xp.reshape(comm.all_gather(counts), (comm.size, comm.size)))
    stays = xp.astype(~goes, xp.int8)
    order = xp.argsort(stays, axis=0, stable=True)  # the rows that go, then those that stay; both ascending
    numbers = [order[:count, rank] for rank, count in enumerate(table[comm.rank])]  # `nonzero` would wait for a GPU
    return Exchange(comm, numbers, [of_source[comm.rank] for of_source in table])


def send_rows(exchange: Exchange, arrays: tuple[Array, ...], label: str) -> tuple[Array, ...]:
    """Send the rows of several arrays, in one message a rank. Returns the rows that arrive, ordered by source."""
    comm, xp = exchange.comm, namespace(*arrays)
    leaving = [tuple(xp.take(x, numbers, axis=0) for x in arrays) for numbers in exchange.numbers]
    arriving = exchange_parts(comm, leaving, lambda source: _parts_like(arrays, exchange.coming[source]), label)
    by_source = [parts for _, parts in sorted(arriving)]
    return tuple(xp.concat(of_array) for of_array in zip(*by_source, strict=True))


def add_back(exchange: Exchange, arrays: tuple[Array, ...], rows: int, label: str) -> tuple[Array, ...]:
    """Send each row back to its source, and add the rows that come from copies of one row.

    `rows`: the number of rows before the exchange.
    """
    comm, xp = exchange.comm, namespace(*arrays)
    of_arrays = [parts_of(x, exchange.coming) for x in arrays]
    leaving = list(zip(*of_arrays, strict=True))  # for each rank, a part of each array
    returning = [numbers.shape[0] for numbers in exchange.numbers]
    sums = tuple(xp.zeros((rows, *x.shape[1:]), dtype=x.dtype, device=x.device) for x in arrays)
    for source, parts in exchange_parts(comm, leaving, lambda source: _parts_like(arrays, returning[source]), label):
        _add_rows(sums, exchange.numbers[source], parts)
        del parts  # before the next ones come
    return sums


def _parts_like(arrays: tuple[Array, ...], count: int) -> tuple[Array, ...]:
    return tuple(rows_like(x, count) for x in arrays)


def _add_rows(sums: tuple[Array, ...], numbers: Array, parts: tuple[Array, ...]) -> None:
    for total, part in zip(sums, parts, strict=True):
        add_at(total, numbers, part)


class TwoLevelCache(NamedTuple):
    """A rank keeps this for its backward."""

    between: Exchange
    inside: Exchange
    tokens: int  # rows before the exchange between nodes: T
    rows_at_node: int  # rows before the exchange inside: those that came between nodes
    local: Routing  # of the rows that came inside, among this rank's experts
    experts: OwnExpertsCache


def mix_in_two_levels(
    layer: MixtureOfExperts, between: Comm, inside: Comm, x: Array, routing: Routing
) -> tuple[Array, TwoLevelCache]:
    """`(y [T, E], cache)`. `between`: the ranks of this place, by node; `inside`: those of this node, by place."""
    experts_per_node = layer.num_experts // between.size

    first = make_exchange(between, _wants(routing.chosen, experts_per_node, range(between.size)))
    parts = x, routing.chosen, routing.gates
    at_node = send_rows(first, parts, "dispatch between nodes")  # [rows, E], twice [rows, k]
    _, chosen_at_node, _ = at_node
    rows_at_node = chosen_at_node.shape[0]

    first_rank = between.rank * inside.size
    ranks_of_node = range(first_rank, first_rank + inside.size)
    second = make_exchange(inside, _wants(chosen_at_node, experts_per_node // inside.size, ranks_of_node))
    rows, chosen, gates = send_rows(second, at_node, "dispatch inside")

    local = local_routing(chosen, gates, layer.own_experts)
    sums, of_experts = layer.mix_own_experts(rows, local)
    inside.hold("slots", of_experts.slots)
    (sums,) = add_back(second, (sums,), rows_at_node, "combine inside")
    (y,) = add_back(first, (sums,), x.shape[0], "combine between nodes")
    return y, TwoLevelCache(first, second, x.shape[0], rows_at_node, local, of_experts)


def mix_in_two_levels_backward(
    layer: MixtureOfExperts, dy: Array, cache: TwoLevelCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    (dsums,) = send_rows(cache.between, (dy,), "combine's backward between nodes")
    (dsums,) = send_rows(cache.inside, (dsums,), "combine's backward inside")
    drows, dgates, pending = layer.mix_own_experts_backward(dsums, cache.local, cache.experts)
    drows, dgates = add_back(cache.inside, (drows, dgates), cache.rows_at_node, "dispatch's backward inside")
    dx, dgates = add_back(cache.between, (drows, dgates), cache.tokens, "dispatch's backward between nodes")
    return dx, dgates, pending


def local_routing(chosen: Array, gates: Array, own: range) -> Routing:
    """The routing of rows among this rank's experts alone, numbered from 0. Slots of other experts are not `here`."""
    xp = namespace(gates)
    here = (chosen >= own.start) & (chosen < own.stop)
    return Routing(xp.where(here, chosen - own.start, 0), gates, here=here)


def _wants(chosen: Array, experts_each: int, ranks: range) -> Array:
    """Booleans `[rows, ranks]`: whether one of a row's experts is there."""
    xp = namespace(chosen)
    return xp.stack([xp.any(chosen // experts_each == rank, axis=1) for rank in ranks], axis=1)
