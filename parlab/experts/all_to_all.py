"""Dispatch and combine: each row travels to the rank of its expert, and the expert's answer travels back.

    plan      order = stable sort of the T·k pairs (token, slot) by expert, and so by rank
              counts [N]; all_gather(counts) -> [P, N]: how many rows each rank sends to each expert
    dispatch  x[token] by an unequal all-to-all -> rows [R, E]
    experts   each local expert on its rows
    combine   the same plan, mirrored -> y[token] = Σ gate · row, in the order of the slots
    backward  dgate = <row, dy>; dispatch(gate · dy); the experts' backward; combine(drows) -> dx

Letters: T tokens of a rank, k experts a token, N experts, E hidden size, R rows that this rank's experts get. A rank r
of P has the experts r·m .. (r + 1)·m − 1, m = N/P.

Invariants. After the plan every rank has the same counts [P, N]: line r is r's, and those of expert e add up to its
load. After dispatch a rank has exactly the rows of its own experts, ordered by source, expert, token. No gate has
travelled. After combine, row t of y is the result of token t.

Sources: Lepikhin et al. 2020, "GShard", section 3.2; Gale et al. 2022, "MegaBlocks" (no row dropped); Megatron-LM,
megatron/core/transformer/moe/token_dispatcher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.nn.moe import MixtureOfExperts, Pairs, gates_of, parts_of, rows_of, slots_of, sort_by_expert, sum_of_slots
from parlab.nn.routing import Routing
from parlab.world import Comm
from parlab.world.collectives.walks import partners


class Plan(NamedTuple):
    """How many rows each rank sends for each expert."""

    pairs: Pairs  # this rank's (token, slot) pairs, sorted by expert
    k: int  # experts a token
    counts: list[list[int]]  # [P][N]: rows that each rank sends to each expert
    rank: int

    @property
    def experts_per_rank(self) -> int:
        """m."""
        return len(self.counts[0]) // len(self.counts)

    def rows_between(self, source: int, rank: int) -> int:
        """How many rows travel from `source` to `rank`."""
        return sum(self.counts[source][rank * self.experts_per_rank : (rank + 1) * self.experts_per_rank])

    @property
    def sent(self) -> list[int]:
        """How many rows this rank sends to each rank in dispatch, and gets back in combine."""
        return [self.rows_between(self.rank, rank) for rank in range(len(self.counts))]

    @property
    def received(self) -> list[int]:
        """How many rows come from each rank in dispatch, and go back in combine."""
        return [self.rows_between(source, self.rank) for source in range(len(self.counts))]

    @property
    def counts_here(self) -> list[list[int]]:
        """[P][m]: rows from each source for each of this rank's experts."""
        first = self.rank * self.experts_per_rank
        return [counts[first : first + self.experts_per_rank] for counts in self.counts]

    @property
    def loads_here(self) -> list[int]:
        """[m]: rows of each of this rank's experts, from all sources."""
        return [sum(of_expert) for of_expert in zip(*self.counts_here, strict=True)]


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
    plan = make_plan(comm, x, routing, num_experts)
    rows = rows_of(x, plan.pairs, plan.k)  # [Σ sent, E], sorted by expert
    return exchange_rows(comm, rows, plan.sent, plan.received, "dispatch"), plan


def make_plan(comm: Comm, x: Array, routing: Routing, num_experts: int) -> Plan:
    """The plan, with the counts of all ranks: one all-gather of N whole numbers a rank."""
    check_experts(num_experts, comm.size)
    xp = namespace(x)
    pairs = sort_by_expert(routing, num_experts)
    counts = comm.all_gather(xp.asarray(pairs.counts, dtype=xp.int64, device=x.device))  # [P·N]
    table = to_host(xp.reshape(counts, (comm.size, num_experts)))
    return Plan(pairs, routing.chosen.shape[1], table, comm.rank)


def combine(comm: Comm, rows: Array, plan: Plan, gates: Array) -> Array:
    """Send the experts' answers back, and sum gate · answer for each token.

    Args:
        comm, plan: as for and from `dispatch`.
        rows: `[R, E]`, an answer for each row, in the order in which the rows came.
        gates: `[T, k]`, this rank's.

    Returns y `[T, E]`, added in the order of the slots: the same bits as without ranks.

    A caller that needs the backward takes the two steps itself, and keeps the slots: `bring_back`, then `sum_of_slots`.
    """
    return sum_of_slots(bring_back(comm, rows, plan, "combine"), gates)


def combine_backward(comm: Comm, dy: Array, slots: Array, plan: Plan, gates: Array) -> tuple[Array, Array]:
    """`(drows [R, E], dgates [T, k])`: combine's backward is a dispatch, of gate · dy.

    Args:
        dy: `[T, E]`, this rank's.
        slots: `[T, k, E]`, the answers at their tokens, from `bring_back`.
        plan, gates: as for `combine`.
    """
    xp = namespace(dy)
    dgates = xp.sum(slots * dy[:, None, :], axis=2)
    leaving = rows_of(dy, plan.pairs, plan.k) * gates_of(gates, plan.pairs)  # [Σ sent, E]
    return exchange_rows(comm, leaving, plan.sent, plan.received, "dispatch, backward"), dgates


def dispatch_backward(comm: Comm, drows: Array, plan: Plan) -> Array:
    """dx `[T, E]`: dispatch's backward is a combine without gates."""
    return sum_of_slots(bring_back(comm, drows, plan, "combine, backward"))


def bring_back(comm: Comm, rows: Array, plan: Plan, label: str) -> Array:
    """Send each row back to its token and slot: `[R, E]` -> `[T, k, E]`."""
    returned = exchange_rows(comm, rows, plan.received, plan.sent, label)  # [Σ sent, E], sorted by expert
    return slots_of(returned, plan.pairs, plan.k)


def exchange_rows(comm: Comm, rows: Array, sent: Sequence[int], received: Sequence[int], label: str = "rows") -> Array:
    """An unequal all-to-all: the first `sent[0]` rows go to rank 0, the next to rank 1, ...; by source they come.

    Raises:
        ValueError: `sent` or `received` is no number a rank, or `sent` does not add up to the rows that are given.
        MismatchError: `received` is not what comes.
    """
    _check(comm, rows, sent, received)
    arriving = exchange_parts(comm, parts_of(rows, sent), lambda source: rows_like(rows, received[source]), label)
    return namespace(rows).concat([part for _, part in sorted(arriving)])  # by source


def exchange_parts(
    comm: Comm, leaving: Sequence[Any], like_from: Callable[[int], Any], label: str
) -> Iterator[tuple[int, Any]]:
    """`leaving[rank]` goes to `rank`; yields (source, what comes from there), this rank's own part first.

    In round d a rank sends to the one d ahead, and receives from the one d behind. The caller's loop drives the rounds:
    each next part travels when it is asked for. `like_from(source)` has the shape and type of what comes.
    """
    yield comm.rank, leaving[comm.rank]
    for ahead, behind in partners(comm):
        yield behind, comm.sendrecv(leaving[ahead], ahead, behind, like=like_from(behind), label=label)


def rows_like(rows: Array, count: int) -> Array:
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
    parts = enumerate(parts_of(by_expert(rows, plan.counts_here), plan.loads_here), comm.rank * plan.experts_per_rank)
    answers = namespace(x).concat([expert(number, part) for number, part in parts])
    return combine(comm, by_source(answers, plan.counts_here), plan, gates)


class DispatchCache(NamedTuple):
    """The arrays that a rank keeps of a dispatch and its experts for its backward."""

    plan: Plan
    expert_caches: list[Any]  # of this rank's experts
    slots: Array  # [T, k, E]: the answers, before they are multiplied by the gates


def mix_dispatched(layer: MixtureOfExperts, comm: Comm, x: Array, routing: Routing) -> tuple[Array, DispatchCache]:
    """`(y [T, E], cache)`: dispatch, the experts, combine."""
    rows, plan = dispatch(comm, x, routing, layer.num_experts)  # [R, E], by source, expert, token
    answers, expert_caches = layer.apply_experts(by_expert(rows, plan.counts_here), plan.loads_here)
    answers = by_source(answers, plan.counts_here)
    slots = bring_back(comm, answers, plan, "combine")  # [T, k, E]
    comm.hold("slots", slots)
    return sum_of_slots(slots, routing.gates), DispatchCache(plan, expert_caches, slots)


def mix_dispatched_backward(
    layer: MixtureOfExperts, comm: Comm, dy: Array, routing: Routing, cache: DispatchCache
) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`: combine's backward, the experts', dispatch's."""
    plan = cache.plan
    drows, dgates = combine_backward(comm, dy, cache.slots, plan, routing.gates)  # [R, E], [T, k]
    comm.hold("drows", drows)
    drows, of_experts = layer.apply_experts_backward(
        by_expert(drows, plan.counts_here), plan.loads_here, cache.expert_caches
    )
    drows = by_source(drows, plan.counts_here)
    return dispatch_backward(comm, drows, plan), dgates, of_experts


def by_expert(rows: Array, counts: Sequence[Sequence[int]]) -> Array:
    """Rows in the order (source, expert) -> in the order (expert, source); `counts[source][expert]`: how many."""
    parts = parts_of(rows, [count for of_source in counts for count in of_source])
    m = len(counts[0])
    return namespace(rows).concat([parts[source * m + expert] for expert in range(m) for source in range(len(counts))])


def by_source(rows: Array, counts: Sequence[Sequence[int]]) -> Array:
    """The inverse, of the same counts: rows in the order (expert, source) -> in the order (source, expert)."""
    return by_expert(rows, [list(of_expert) for of_expert in zip(*counts, strict=True)])


def check_experts(num_experts: int, size: int) -> None:
    """Refuse experts that do not divide among the ranks."""
    if num_experts % size:
        raise ValueError(f"num_experts={num_experts}: does not divide among {size} ranks; use a multiple of {size}")
