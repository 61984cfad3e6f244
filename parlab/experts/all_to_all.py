"""Dispatch and combine: each row travels to the rank of its expert, and the expert's answer travels back.

    plan      counts [N]; all_gather(counts) -> [P, N]: how many rows each rank sends to each expert
    dispatch  permute: a row for each pair (token, slot), sorted by expert, and so by rank; then an unequal all-to-all
    experts   this rank's, each on its rows [R, E]; they came source by source, and `by_expert` sorts them
    combine   the same all-to-all, mirrored; then unpermute: y[token] = Σ gate · row, in the order of the slots

Backward: combine's is a dispatch, of gate · dy, and dgate = <row, dy>; dispatch's is a combine without gates.
`permute` and `unpermute` are the serial layer's (`parlab.nn.permute`).

Letters: T tokens of a rank, k experts a token, N experts, E hidden size, R rows that this rank's m = N/P experts get.

Invariants. After the plan every rank has the same counts [P, N]: line r is r's, and those of expert e add up to its
load. After dispatch a rank has exactly the rows of its own experts, ordered by source, expert, token. No gate has
travelled. After combine, row t of y is the result of token t.

Sources: Lepikhin et al. 2020, "GShard", section 3.2; Gale et al. 2022, "MegaBlocks" (no row dropped); Megatron-LM,
megatron/core/transformer/moe/token_dispatcher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.experts.rank_experts import check_experts, experts_of
from parlab.nn.moe import Experts
from parlab.nn.permute import (
    Pairs,
    UnpermuteCache,
    parts_of,
    permute,
    permute_backward,
    sort_by_expert,
    unpermute,
    unpermute_backward,
)
from parlab.nn.routing import Routing
from parlab.world import Comm
from parlab.world.collectives.walks import partners


class Plan(NamedTuple):
    """How many rows travel from where to where.

    >>> plan = Plan(None, [[1, 2, 0, 1], [0, 3, 1, 2]], rank=0)  # ranks 0 and 1 send so many rows to experts 0, 1, 2, 3
    >>> plan.sent, plan.received
    ([3, 1], [3, 3])
    >>> plan.counts_here, plan.loads_here  # of experts 0 and 1
    ([[1, 2], [0, 3]], [1, 5])
    """

    pairs: Pairs  # this rank's (token, slot) pairs, sorted by expert
    counts: list[list[int]]  # [P][N]: rows that each rank sends to each expert
    rank: int  # this rank

    @property
    def sent(self) -> list[int]:
        """[P]: rows that this rank sends to each rank in dispatch, and gets back in combine."""
        return [sum(self.counts_between(self.rank, rank)) for rank in range(len(self.counts))]

    @property
    def received(self) -> list[int]:
        """[P]: rows that come from each rank in dispatch, and go back in combine."""
        return [sum(of_source) for of_source in self.counts_here]

    @property
    def counts_here(self) -> list[list[int]]:
        """[P][m]: rows that come from each rank for each of this rank's experts."""
        return [self.counts_between(source, self.rank) for source in range(len(self.counts))]

    @property
    def loads_here(self) -> list[int]:
        """[m]: rows of each of this rank's experts, from all ranks."""
        return [sum(of_expert) for of_expert in zip(*self.counts_here, strict=True)]

    def counts_between(self, source: int, rank: int) -> list[int]:
        """[m]: rows from `source` for each expert of `rank`."""
        of_rank = experts_of(rank, len(self.counts[source]), len(self.counts))
        return self.counts[source][of_rank.start : of_rank.stop]


def make_plan(comm: Comm, routing: Routing, num_experts: int) -> Plan:
    """The plan, with the counts of all ranks: one all-gather of N whole numbers a rank."""
    check_experts(num_experts, comm.size)
    xp, device = namespace(routing.chosen), routing.chosen.device
    pairs = sort_by_expert(routing, num_experts)
    counts = comm.all_gather(xp.asarray(pairs.counts, dtype=xp.int64, device=device))  # [P·N]
    return Plan(pairs, to_host(xp.reshape(counts, (comm.size, num_experts))), comm.rank)


def dispatch(comm: Comm, x: Array, routing: Routing, num_experts: int) -> tuple[Array, Plan]:
    """Send each token's row to the ranks of its experts.

    Args:
        comm: the expert-parallel group, of P ranks.
        x: `[T, E]`, this rank's tokens.
        routing: of these tokens, from `parlab.nn.routing.route`.
        num_experts: N, a multiple of P.

    Returns rows `[R, E]`, ordered by source, expert, token, and the plan.

    Raises:
        ValueError: N is no multiple of P.
        MismatchError: another rank was told of another number of experts.

    >>> import numpy as np
    >>> from parlab import run
    >>> from parlab.nn.routing import route
    >>> def program(comm):
    ...     x = np.array([[1.0, 0.0], [0.0, 1.0]]) + 10 * comm.rank
    ...     rows, plan = dispatch(comm, x, route(x, np.eye(2) * (1 - 2 * comm.rank), 1), 2)
    ...     return rows.tolist()
    >>> run(program, 2).results  # of each rank's tokens one goes to expert 0, one to expert 1
    [[[1.0, 0.0], [10.0, 11.0]], [[0.0, 1.0], [11.0, 10.0]]]
    """
    plan = make_plan(comm, routing, num_experts)
    return exchange_rows(comm, permute(x, plan.pairs), plan.sent, plan.received, "dispatch"), plan


def dispatch_backward(comm: Comm, drows: Array, plan: Plan) -> Array:
    """dx `[T, E]` from `[R, E]`: a combine without gates."""
    return permute_backward(exchange_rows(comm, drows, plan.received, plan.sent, "combine, backward"), plan.pairs)


def combine(comm: Comm, rows: Array, plan: Plan, gates: Array) -> Array:
    """Send the experts' answers back, and sum gate · answer for each token.

    Args:
        comm, plan: as for and from `dispatch`.
        rows: `[R, E]`, an answer for each row, in the order in which `dispatch` gave the rows.
        gates: `[T, k]`, this rank's.

    Returns y `[T, E]`, added in the order of the slots: the same bits as without ranks.
    """
    return combine_forward(comm, rows, plan, gates)[0]


def combine_forward(comm: Comm, rows: Array, plan: Plan, gates: Array) -> tuple[Array, UnpermuteCache]:
    """`(y [T, E], cache)`: `combine`, for a caller that needs its backward."""
    return unpermute(exchange_rows(comm, rows, plan.received, plan.sent, "combine"), plan.pairs, gates)


def combine_backward(comm: Comm, dy: Array, plan: Plan, cache: UnpermuteCache) -> tuple[Array, Array]:
    """`(drows [R, E], dgates [T, k])` from `[T, E]`: a dispatch of gate · dy."""
    drows, dgates = unpermute_backward(dy, cache)
    return exchange_rows(comm, drows, plan.sent, plan.received, "dispatch, backward"), dgates


def exchange_rows(comm: Comm, rows: Array, sent: Sequence[int], received: Sequence[int], label: str = "rows") -> Array:
    """An unequal all-to-all: the first `sent[0]` rows go to rank 0, the next to rank 1, ...; by source they come.

    Raises:
        ValueError: `sent` or `received` is no number a rank, or `sent` does not add up to the rows that are given.
        MismatchError: `received` is not what comes.
    """
    _check(comm, rows, sent, received)
    parts = parts_of(rows, sent)
    came = {comm.rank: parts[comm.rank]}
    for dst, src in partners(comm):
        came[src] = comm.sendrecv(parts[dst], dst, src, like=empty_rows(rows, received[src]), label=label)
    return namespace(rows).concat([came[source] for source in range(comm.size)])


def by_expert(rows: Array, counts: Sequence[Sequence[int]]) -> Array:
    """Rows in the order (source, expert) -> in the order (expert, source); `counts[source][expert]`: how many.

    >>> import numpy as np
    >>> rows = np.array([[1.0], [2.0], [3.0], [4.0]])  # source 0: one for each expert; source 1: two for expert 0
    >>> by_expert(rows, [[1, 1], [2, 0]]).ravel().tolist()
    [1.0, 3.0, 4.0, 2.0]
    """
    parts = parts_of(rows, [count for of_source in counts for count in of_source])
    m = len(counts[0])
    return namespace(rows).concat([parts[source * m + expert] for expert in range(m) for source in range(len(counts))])


def by_source(rows: Array, counts: Sequence[Sequence[int]]) -> Array:
    """The inverse, of the same counts: rows in the order (expert, source) -> in the order (source, expert)."""
    return by_expert(rows, [list(of_expert) for of_expert in zip(*counts, strict=True)])


class AllToAllCache(NamedTuple):
    """The mix keeps these for its backward."""

    plan: Plan
    experts: list[Any]  # the cache of each
    combine: UnpermuteCache


def all_to_all_mix(comm: Comm, experts: Experts, x: Array, routing: Routing) -> tuple[Array, AllToAllCache]:
    """`(y [T, E], cache)`, as `parlab.nn.moe.mix`: dispatch, the experts, combine."""
    rows, plan = dispatch(comm, x, routing, len(experts.numbers) * comm.size)  # [R, E]
    answers, of_experts = experts.forward(by_expert(rows, plan.counts_here), plan.loads_here)
    y, of_combine = combine_forward(comm, by_source(answers, plan.counts_here), plan, routing.gates)
    comm.hold("slots", of_combine.slots)
    return y, AllToAllCache(plan, of_experts, of_combine)


def all_to_all_mix_backward(
    comm: Comm, experts: Experts, dy: Array, cache: AllToAllCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`: combine's backward, the experts', dispatch's."""
    plan = cache.plan
    drows, dgates = combine_backward(comm, dy, plan, cache.combine)  # [R, E], [T, k]
    comm.hold("drows", drows)
    drows, pending = experts.backward_input(by_expert(drows, plan.counts_here), cache.experts)
    return dispatch_backward(comm, by_source(drows, plan.counts_here), plan), dgates, pending


def mixed_rows(
    comm: Comm, x: Array, chosen: Array, gates: Array, num_experts: int, expert: Callable[[int, Array], Array]
) -> Array:
    """Σ gate · answer for each token, of experts that are any function: dispatch, `expert(number, rows)`, combine.

    Args:
        comm: the expert-parallel group, of P ranks.
        x: `[T, E]`, this rank's tokens.
        chosen, gates: `[T, k]`, of these tokens.
        num_experts: N, a multiple of P.
        expert: an expert of this rank on rows `[n, E]`, by its number from 0 to N − 1; it is called with 0 rows too.

    Returns y `[T, E]`.
    """
    rows, plan = dispatch(comm, x, Routing(chosen, gates), num_experts)
    numbers = experts_of(comm.rank, num_experts, comm.size)
    parts = parts_of(by_expert(rows, plan.counts_here), plan.loads_here)
    answers = namespace(x).concat([expert(number, part) for number, part in zip(numbers, parts, strict=True)])
    return combine(comm, by_source(answers, plan.counts_here), plan, gates)


def empty_rows(rows: Array, count: int) -> Array:
    """`count` rows of the same shape and type, with any values."""
    return namespace(rows).empty((count, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)


def _check(comm: Comm, rows: Array, sent: Sequence[int], received: Sequence[int]) -> None:
    for name, counts in (("sent", sent), ("received", received)):
        try:
            numbers = [int(number) for number in counts]
        except TypeError:
            numbers = []
        if len(numbers) != comm.size:
            what = "go to" if name == "sent" else "come from"
            raise ValueError(
                f"{name}={counts!r:.60}: {comm.size} whole numbers are needed, how many rows {what} each rank"
            )
        if name == "sent" and sum(numbers) != rows.shape[0]:
            raise ValueError(
                f"sent={numbers!r:.60}: adds up to {sum(numbers)}, and {rows.shape[0]} rows are given; in dispatch it "
                "counts this rank's pairs for each rank, in combine the rows that came from each"
            )
