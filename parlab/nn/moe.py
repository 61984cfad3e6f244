"""A mixture of experts: a router sends each token to k of N small MLPs, and adds up their answers.

    route     which k experts, and their gates (`parlab.nn.routing`)
    sort      the T·k pairs (token, slot) by expert, those of one expert by token
    experts   each expert on the rows of its tokens
    combine   y[token] = Σ over its slots of gate · row, in the order of the slots

The last three together are `mix`. Where ranks share the experts (`parlab.experts`), another `mix` has messages between
them; `mix_own_experts` takes the three steps over the experts that are here.

Backward takes the same steps: the gradient of a slot's gate is <row, dy>, that of its row is gate · dy; then each
expert's backward; dx[token] is the sum of the experts' dx over the token's slots, plus the router's dx.

The load is balanced in one of two ways. The gradient of an auxiliary loss is added to that of the logits, in backward;
the loss itself is not added to y. Or a bias moves the choice: `rebalance` sets it after a step, from the counts of the
whole batch.

Invariant: the T·k pairs are sorted once; a pair's row, answer and gradient stand at one place in that order, and go
back to their token and slot by its inverse.

Letters: T tokens, N experts, k chosen, E hidden size, M intermediate size of an expert.

Source: Jiang et al. 2024, "Mixtral of experts".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from parlab.arrays import Array, default_namespace, namespace, to_host
from parlab.nn.layers import GatedMLP
from parlab.nn.linear import as_rows, linear, linear_backward_input, linear_backward_weight
from parlab.nn.routing import (
    Routing,
    auxiliary_loss,
    balanced_bias,
    destinations,
    expert_loads,
    gates_backward,
    inverse,
    route,
)
from parlab.nn.stage import Gradients, Stage, Weights


class Pairs(NamedTuple):
    """The (token, slot) pairs of a routing, sorted by expert."""

    order: Array  # [T·k]: the pair token·k + slot at each place; pairs whose expert is not here come last
    counts: list[int]  # rows of each expert


def sort_by_expert(routing: Routing, num_experts: int) -> Pairs:
    """The pairs by expert, and those of one expert by token: a stable sort."""
    goes_to = destinations(routing, num_experts)
    return Pairs(namespace(goes_to).argsort(goes_to, stable=True), expert_loads(routing, num_experts))


def rows_of(x: Array, pairs: Pairs, k: int) -> Array:
    """The token of each pair that goes to an expert, copied: `[T, E]` -> `[Σ counts, E]`."""
    return namespace(x).take(x, pairs.order[: sum(pairs.counts)] // k, axis=0)


def gates_of(gates: Array, pairs: Pairs) -> Array:
    """The gate of each of these pairs: `[T, k]` -> `[Σ counts, 1]`."""
    xp = namespace(gates)
    return xp.take(xp.reshape(gates, (-1, 1)), pairs.order[: sum(pairs.counts)], axis=0)


def slots_of(rows: Array, pairs: Pairs, k: int) -> Array:
    """The rows back at their tokens: `[Σ counts, E]` -> `[T, k, E]`, with zeros where a slot's expert is not here."""
    xp, elsewhere = namespace(rows), pairs.order.shape[0] - rows.shape[0]
    if elsewhere:
        rows = xp.concat([rows, xp.zeros((elsewhere, rows.shape[1]), dtype=rows.dtype, device=rows.device)])
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
    """The arrays that the layer keeps for its backward."""

    x: Array  # [T, E]
    routing: Routing
    loads: list[int] | None  # pairs on each expert, of all tokens that the auxiliary loss sees together
    mix_cache: Any  # of `mix`


class OwnExpertsCache(NamedTuple):
    """The arrays that `mix_own_experts` keeps for its backward."""

    pairs: Pairs
    expert_caches: list[Any]  # each expert's input and activations
    slots: Array  # [T, k, E]: the answers, before the gates


class MixtureOfExperts(Stage):
    """A router and SwiGLU experts in place of the MLP: `[B, S, E]` -> the same.

    Args:
        weights: shared with the model.
        prefix: of the names: `{prefix}.gate.weight`, the router's `[E, N]`, and `{prefix}.experts.{e}.w1.weight`, ...
        num_experts: N.
        k: experts a token.
        auxiliary: α of the auxiliary loss whose gradient backward adds.
        bias_rate: γ, by which `rebalance` moves the bias of each expert.
        own_experts: the numbers of the experts whose weights are here; None: all.
        options: `scores`, `bias`, `groups` and `group_limit`, as for `route`.

    Attributes:
        bias: `[N]` numbers, 0 at first; used where bias_rate is not 0.
        counted: pairs on each expert, of all backwards since the last `rebalance`; where bias_rate is not 0.
        loss_weight: the factor of the auxiliary loss's gradient: loss scale / number of calls over whose tokens the
            loss is one mean; 1 for one call without a scale.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        num_experts: int,
        k: int,
        *,
        auxiliary: float = 0.0,
        bias_rate: float = 0.0,
        own_experts: range | None = None,
        **options: Any,
    ) -> None:
        self.weights, self.router, self.k = weights, f"{prefix}.gate.weight", k
        self.num_experts = num_experts
        self.own_experts = range(num_experts) if own_experts is None else own_experts
        self.experts = [Expert(weights, f"{prefix}.experts.{expert}") for expert in self.own_experts]
        self.options = options
        self.auxiliary, self.bias_rate, self.loss_weight = auxiliary, bias_rate, 1.0
        self.bias, self.counted = [0.0] * num_experts, [0] * num_experts
        self.weight_names = (self.router, *(name for expert in self.experts for name in expert.weight_names))

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        shape, x = x.shape, as_rows(x)  # [T, E]
        routing = self.routed(x)
        loads = self.loads_together(routing) if self.auxiliary else None
        y, mix_cache = self.mix(x, routing)
        return namespace(y).reshape(y, shape), MoECache(x, routing, loads, mix_cache)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        shape, dy = dy.shape, as_rows(dy)  # [T, E]
        dx, dgates, of_experts = self.mix_backward(dy, cache.routing, cache.mix_cache)
        through_router, of_router = self.backward_of_router(dgates, cache)
        return namespace(dx).reshape(dx + through_router, shape), (of_router, of_experts)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the router and of every expert; zeros for one without rows."""
        of_router, of_experts = pending
        gradients = {self.router: linear_backward_weight(of_router)}
        for expert, of_expert in zip(self.experts, of_experts, strict=True):
            gradients |= expert.backward_weight(of_expert)
        return gradients

    def backward_of_router(self, dgates: Array, cache: MoECache) -> tuple[Array, Any]:
        """`(dx [T, E], pending)` from the gradient of the gates, and of the auxiliary loss; counts for the bias."""
        x, routing, loads = cache.x, cache.routing, cache.loads
        dlogits = gates_backward(dgates, routing)  # [T, N]
        if loads is not None:
            logits, _ = linear(x, self.weights[self.router])
            dlogits = dlogits + auxiliary_loss(logits, loads, self.k, self.auxiliary * self.loss_weight)[1]
        if self.bias_rate:
            self.count(routing)  # in the backward: a forward may run again
        return linear_backward_input(dlogits, x, self.weights[self.router])

    def count(self, routing: Routing) -> list[int]:
        """The pairs on each expert in one call; they are added to `counted`."""
        of_call = expert_loads(routing, self.num_experts)
        self.counted = [sum(both) for both in zip(self.counted, of_call, strict=True)]
        return of_call

    def mix(self, x: Array, routing: Routing) -> tuple[Array, Any]:
        """The sum over each token's experts of gate · answer: `[T, E]` -> `(y [T, E], cache)`. All experts are here."""
        return self.mix_own_experts(x, routing)

    def mix_backward(self, dy: Array, routing: Routing, cache: Any) -> tuple[Array, Array, list[Any]]:
        """`(dx [T, E], dgates [T, k], pending of the experts)`."""
        return self.mix_own_experts_backward(dy, routing, cache)

    def mix_own_experts(self, x: Array, routing: Routing) -> tuple[Array, OwnExpertsCache]:
        """As `mix`, over the experts that are here; `routing` numbers them from 0."""
        pairs = sort_by_expert(routing, len(self.experts))
        answers, expert_caches = self.apply_experts(rows_of(x, pairs, self.k), pairs.counts)  # [Σ counts, E]
        slots = slots_of(answers, pairs, self.k)  # [T, k, E]
        return sum_of_slots(slots, routing.gates), OwnExpertsCache(pairs, expert_caches, slots)

    def mix_own_experts_backward(
        self, dy: Array, routing: Routing, cache: OwnExpertsCache
    ) -> tuple[Array, Array, list[Any]]:
        """`(dx [T, E], dgates [T, k], pending of the experts)`."""
        pairs, expert_caches, slots = cache
        dgates = namespace(dy).sum(slots * dy[:, None, :], axis=2)
        drows = rows_of(dy, pairs, self.k) * gates_of(routing.gates, pairs)  # [Σ counts, E]
        drows, of_experts = self.apply_experts_backward(drows, pairs.counts, expert_caches)
        return sum_of_slots(slots_of(drows, pairs, self.k)), dgates, of_experts

    def routed(self, x: Array) -> Routing:
        """The routing of tokens `[T, E]`."""
        options = self.options
        if self.bias_rate:
            options = options | {"bias": namespace(x).asarray(self.bias, dtype=x.dtype, device=x.device)}
        return route(x, self.weights[self.router], self.k, **options)

    def loads_together(self, routing: Routing) -> list[int]:
        """Pairs on each expert, of the tokens that the auxiliary loss sees together: those of this call."""
        return expert_loads(routing, self.num_experts)

    def rebalance(self, loads: Sequence[int]) -> None:
        """Move the bias after a step, and count anew. `loads`: pairs on each expert, of the whole batch."""
        self.counted = [0] * self.num_experts
        xp = default_namespace()
        self.bias = to_host(balanced_bias(xp.asarray(self.bias, dtype=xp.float64), loads, self.bias_rate))

    def apply_experts(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """Each expert on its rows: `[Σ counts, E]` -> the same, and the caches."""
        done = [expert.forward(part) for expert, part in zip(self.experts, parts_of(rows, counts), strict=True)]
        return namespace(rows).concat([y for y, _ in done]), [cache for _, cache in done]

    def apply_experts_backward(
        self, drows: Array, counts: Sequence[int], caches: Sequence[Any]
    ) -> tuple[Array, list[Any]]:
        """`backward_input` of each expert: `[Σ counts, E]` -> the same, and the pending of each."""
        parts = zip(self.experts, parts_of(drows, counts), caches, strict=True)
        done = [expert.backward_input(part, cache) for expert, part, cache in parts]
        return namespace(drows).concat([dx for dx, _ in done]), [pending for _, pending in done]


def parts_of(rows: Array, counts: Sequence[int]) -> list[Array]:
    """Consecutive parts of the rows, each of so many."""
    stops = list(accumulate(counts, initial=0))
    return [rows[start:stop, :] for start, stop in pairwise(stops)]
