"""A mixture of experts: a router sends each token to k of N small MLPs, and adds up their answers.

    route     which k experts, and their gates (`parlab.nn.routing`)
    sort      the T·k pairs (token, slot) by expert, those of one expert by token
    experts   each expert on the rows of its tokens
    combine   y[token] = Σ over its slots of gate · row, in the order of the slots

Backward, the same way again: a slot's gate gets <row, dy>, its row gets gate · dy; each expert's backward; and
dx[token] = Σ over its slots of the experts' dx, and the router's share.

Letters: T tokens, N experts, k chosen, E hidden size, M intermediate size of an expert.

Source: Jiang et al. 2024, "Mixtral of experts"; the shared expert: Dai et al. 2024, "DeepSeekMoE".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.layers import GatedMLP
from parlab.nn.linear import as_rows, linear_backward_input, linear_backward_weight
from parlab.nn.routing import (
    Routing,
    capacity_of,
    destinations,
    expert_loads,
    gates_backward,
    inverse,
    route,
    within_capacity,
)
from parlab.nn.stage import Gradients, Stage, Weights


class Pairs(NamedTuple):
    """The (token, slot) pairs of a routing, sorted by expert: so rows go to the experts, and come back."""

    order: Array  # [T·k]: the pair token·k + slot at each place; dropped pairs come last
    counts: list[int]  # rows of each expert


def sort_by_expert(routing: Routing, num_experts: int) -> Pairs:
    """The pairs by expert, and those of one expert by token: a stable sort."""
    goes_to = destinations(routing, num_experts)
    return Pairs(namespace(goes_to).argsort(goes_to, stable=True), expert_loads(routing, num_experts))


def rows_of(x: Array, pairs: Pairs, k: int) -> Array:
    """A copy of its token for each pair that goes to an expert: `[T, E]` -> `[Σ counts, E]`."""
    return namespace(x).take(x, pairs.order[: sum(pairs.counts)] // k, axis=0)


def gates_of(gates: Array, pairs: Pairs) -> Array:
    """The gate of each of these pairs: `[T, k]` -> `[Σ counts, 1]`."""
    xp = namespace(gates)
    return xp.take(xp.reshape(gates, (-1, 1)), pairs.order[: sum(pairs.counts)], axis=0)


def slots_of(rows: Array, pairs: Pairs, k: int) -> Array:
    """The rows back at their tokens: `[Σ counts, E]` -> `[T, k, E]`, with zeros where a slot was dropped."""
    xp, dropped = namespace(rows), pairs.order.shape[0] - rows.shape[0]
    if dropped:
        rows = xp.concat([rows, xp.zeros((dropped, rows.shape[1]), dtype=rows.dtype, device=rows.device)])
    return xp.reshape(xp.take(rows, inverse(pairs.order), axis=0), (-1, k, rows.shape[1]))


def sum_of_slots(slots: Array, gates: Array | None = None) -> Array:
    """Σ gate · row over the slots, in their order: `[T, k, E]`, `[T, k]` -> `[T, E]`. Without gates, Σ row."""
    weighted = slots if gates is None else slots * gates[:, :, None]
    y = weighted[:, 0, :]
    for slot in range(1, weighted.shape[1]):
        y = y + weighted[:, slot, :]
    return y


class Expert(GatedMLP):
    """A SwiGLU expert, by Mixtral's names of its weights: `w1` is the gate, `w3` up, `w2` down."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.weights = weights
        self.weight_names = tuple(f"{prefix}.{name}.weight" for name in ("w1", "w3", "w2"))


class MoECache(NamedTuple):
    """What the layer keeps: its input, the routing, and each expert's input, activations and answers."""

    x: Array  # [T, E]
    routing: Routing
    pairs: Pairs
    experts: list[Any]  # each expert's cache
    slots: Array  # [T, k, E]: the answers, before the gates
    shared: Any  # the shared expert's cache


class MixtureOfExperts(Stage):
    """A router and SwiGLU experts in place of the MLP: `[B, S, E]` -> the same.

    Args:
        weights: shared with the model.
        prefix: of the names: `{prefix}.gate.weight`, the router's `[E, N]`, and `{prefix}.experts.{e}.w1.weight`, ...
        num_experts: N.
        k: experts a token.
        shared: a stage that every token passes too, without a gate (DeepSeek's shared expert); None: there is none.
        capacity_factor: each expert takes at most ⌈cf · T k / N⌉ pairs of a call, the first ones; None: it takes all.
        options: `scores`, `bias`, `groups`, `group_limit` and `scale`, as for `route`.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        num_experts: int,
        k: int,
        *,
        shared: Stage | None = None,
        capacity_factor: float | None = None,
        **options: Any,
    ) -> None:
        self.weights, self.router, self.k = weights, f"{prefix}.gate.weight", k
        self.experts = [Expert(weights, f"{prefix}.experts.{expert}") for expert in range(num_experts)]
        self.shared, self.capacity_factor, self.options = shared, capacity_factor, options
        parts = [*self.experts, *([] if shared is None else [shared])]
        self.weight_names = (self.router, *(name for part in parts for name in part.weight_names))

    def forward(self, x: Array) -> tuple[Array, MoECache]:
        """`(y, cache)`."""
        xp, shape, N, k = namespace(x), x.shape, len(self.experts), self.k
        x = as_rows(x)  # [T, E]
        routing = self.routed(x)
        pairs = sort_by_expert(routing, N)
        answers, caches = self.apply_experts(rows_of(x, pairs, k), pairs.counts)  # [Σ counts, E]
        slots = slots_of(answers, pairs, k)  # [T, k, E]
        y = sum_of_slots(slots, routing.gates)  # [T, E]
        of_shared = None
        if self.shared is not None:
            more, of_shared = self.shared.forward(x)
            y = y + more
        return xp.reshape(y, shape), MoECache(x, routing, pairs, caches, slots, of_shared)

    def routed(self, x: Array) -> Routing:
        """The routing of tokens `[T, E]`, within the experts' capacity."""
        routing = route(x, self.weights[self.router], self.k, **self.options)
        if self.capacity_factor is None:
            return routing
        N = len(self.experts)
        return within_capacity(routing, N, capacity_of(x.shape[0], self.k, N, self.capacity_factor))

    def apply_experts(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """Each expert on its rows: `[Σ counts, E]` -> the same, and the caches."""
        done = [expert.forward(part) for expert, part in zip(self.experts, parts_of(rows, counts), strict=True)]
        return namespace(rows).concat([y for y, _ in done]), [cache for _, cache in done]

    def backward_input(self, dy: Array, cache: MoECache) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        xp, shape, k = namespace(dy), dy.shape, self.k
        x, routing, pairs, caches, slots, of_shared = cache
        dy = as_rows(dy)  # [T, E]
        dgates = xp.sum(slots * dy[:, None, :], axis=2)  # [T, k]
        dlogits = gates_backward(dgates, routing)  # [T, N]
        drows = rows_of(dy, pairs, k) * gates_of(routing.gates, pairs)  # [Σ counts, E]
        parts = parts_of(drows, pairs.counts)
        done = [e.backward_input(part, c) for e, part, c in zip(self.experts, parts, caches, strict=True)]
        dx = sum_of_slots(slots_of(xp.concat([d for d, _ in done]), pairs, k))  # [T, E]
        through_router, of_router = linear_backward_input(dlogits, x, self.weights[self.router])
        dx = dx + through_router
        shared_pending = None
        if self.shared is not None:
            through_shared, shared_pending = self.shared.backward_input(dy, of_shared)
            dx = dx + through_shared
        return xp.reshape(dx, shape), (of_router, [pending for _, pending in done], shared_pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the router and of every expert; zeros for one without rows."""
        of_router, of_experts, of_shared = pending
        gradients = {self.router: linear_backward_weight(of_router)}
        for expert, of_expert in zip(self.experts, of_experts, strict=True):
            gradients |= expert.backward_weight(of_expert)
        return gradients if self.shared is None else gradients | self.shared.backward_weight(of_shared)


def parts_of(rows: Array, counts: Sequence[int]) -> list[Array]:
    """Consecutive rows of each expert."""
    stops = list(accumulate(counts, initial=0))
    return [rows[start:stop, :] for start, stop in pairwise(stops)]
