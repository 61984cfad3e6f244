"""A mixture of experts: a router sends each token to k of N small MLPs, and adds up their answers.

    route      which k experts, and their gates (`router`)
    permute    a row for each pair (token, slot), those of one expert together (`permute`)
    experts    each expert on its rows
    unpermute  y[token] = Σ over its slots of gate · row, in the order of the slots

The last three together are `mix`. Where ranks share the experts (`parlab.experts`), another mix has messages around the
experts; the layer is the same.

Backward takes the same steps in the other direction. dx is the sum of what comes through the experts and what comes
through the gates and the router.

Invariant: a mix and its backward are pure functions: what a forward leaves for its backward is in its cache.

Letters: T tokens, N experts, k chosen, E hidden size, M intermediate size of an expert, R rows of all experts.

Source: Jiang et al. 2024, "Mixtral of experts".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.layers import GatedMLP, MLPCache, ProjectionsPending
from parlab.nn.linear import as_rows
from parlab.nn.permute import (
    UnpermuteCache,
    parts_of,
    permute,
    permute_backward,
    sort_by_expert,
    unpermute,
    unpermute_backward,
)
from parlab.nn.router import Router, RouterCache
from parlab.nn.routing import Routing
from parlab.nn.stage import Gradients, Stage, Weights


class Expert(GatedMLP):
    """A SwiGLU expert, by Mixtral's names of its weights: `w1` is the gate, `w3` up, `w2` down."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.weights = weights
        self.weight_names = tuple(f"{prefix}.{name}.weight" for name in ("w1", "w3", "w2"))


class Experts:
    """Some of a layer's experts, each on rows of its own: `[R, E]`, those of one expert together -> the same.

    It has the three methods of a stage; forward takes the number of rows of each expert, too.

    Args:
        weights: shared with the model.
        prefix: of the names: `{prefix}.{number}.w1.weight`, ...
        numbers: of these experts among all of the layer.
    """

    def __init__(self, weights: Weights, prefix: str, numbers: range) -> None:
        self.weights, self.numbers = weights, numbers
        self.each = [Expert(weights, f"{prefix}.{number}") for number in numbers]
        self.weight_names = tuple(name for expert in self.each for name in expert.weight_names)

    def forward(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """`(answers, caches)`, a cache for each expert. `counts`: rows of each."""
        done = [expert.forward(part) for expert, part in zip(self.each, parts_of(rows, counts), strict=True)]
        return namespace(rows).concat([answers for answers, _ in done]), [cache for _, cache in done]

    def backward_input(self, drows: Array, caches: Sequence[MLPCache]) -> tuple[Array, list[Any]]:
        """`(drows, pendings)`: from the gradient of the answers that of the rows, and a pending for each expert."""
        parts = parts_of(drows, [cache.x.shape[0] for cache in caches])
        each = zip(self.each, parts, caches, strict=True)
        done = [expert.backward_input(part, cache) for expert, part, cache in each]
        return namespace(drows).concat([dx for dx, _ in done]), [pending for _, pending in done]

    def backward_weight(self, pendings: Sequence[ProjectionsPending]) -> Gradients:
        """The gradients of every expert; zeros for one without rows."""
        gradients: Gradients = {}
        for expert, pending in zip(self.each, pendings, strict=True):
            gradients |= expert.backward_weight(pending)
        return gradients


class MixCache(NamedTuple):
    """`mix` keeps these for its backward."""

    experts: list[Any]  # the cache of each
    unpermute: UnpermuteCache


def mix(experts: Experts, x: Array, routing: Routing) -> tuple[Array, MixCache]:
    """`(y [T, E], cache)`: Σ gate · answer over each token's experts. `routing` numbers those that are here from 0."""
    pairs = sort_by_expert(routing, len(experts.numbers))
    answers, of_experts = experts.forward(permute(x, pairs), pairs.counts)  # [R, E]
    y, of_unpermute = unpermute(answers, pairs, routing.gates)
    return y, MixCache(of_experts, of_unpermute)


def mix_backward(experts: Experts, dy: Array, cache: MixCache) -> tuple[Array, Array, list[Any]]:
    """`(dx [T, E], dgates [T, k], pending of the experts)`."""
    drows, dgates = unpermute_backward(dy, cache.unpermute)
    drows, pending = experts.backward_input(drows, cache.experts)
    return permute_backward(drows, cache.unpermute.pairs), dgates, pending


class Mix(NamedTuple):
    """A function by which tokens get the answers of their experts, and its backward. Expert parallelism replaces them.

    `forward(experts, x, routing) -> (y, cache)` and `backward(experts, dy, cache) -> (dx, dgates, pending)`, as `mix`
    and `mix_backward`, where the cache is their own.
    """

    forward: Callable[[Experts, Array, Routing], tuple[Array, Any]]
    backward: Callable[[Experts, Array, Any], tuple[Array, Array, list[Any]]]


ON_ONE_RANK = Mix(mix, mix_backward)


class MoECache(NamedTuple):
    """The layer keeps these for its backward."""

    router: RouterCache
    mix: Any  # the mix's own


class MixtureOfExperts(Stage):
    """A router and experts in place of the MLP: `[B, S, E]` -> the same.

    Args:
        router: of all N experts.
        experts: those whose weights are here.
        mix: how tokens get the answers of their experts; `ON_ONE_RANK`: all experts are here.
    """

    def __init__(self, router: Router, experts: Experts, mix: Mix = ON_ONE_RANK) -> None:
        self.router, self.experts, self.mix = router, experts, mix
        self.weights, self.weight_names = router.weights, (*router.weight_names, *experts.weight_names)

    def forward(self, x: Array) -> tuple[Array, MoECache]:
        """`(y, cache)`."""
        shape, x = x.shape, as_rows(x)  # [T, E]
        routing, of_router = self.router.forward(x)
        y, of_mix = self.mix.forward(self.experts, x, routing)
        return namespace(y).reshape(y, shape), MoECache(of_router, of_mix)

    def backward_input(self, dy: Array, cache: MoECache) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        shape, dy = dy.shape, as_rows(dy)  # [T, E]
        dx, dgates, of_experts = self.mix.backward(self.experts, dy, cache.mix)
        through_router, of_router = self.router.backward_input(dgates, cache.router)
        return namespace(dx).reshape(dx + through_router, shape), (of_router, of_experts)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the router and of the experts that are here."""
        of_router, of_experts = pending
        return self.router.backward_weight(of_router) | self.experts.backward_weight(of_experts)
