"""The router of a mixture as a part of the model: it routes tokens, and evens out the load of the experts.

The load is evened out in one of two ways, or not at all.

    auxiliary loss  weighs each expert by its load. Its gradient is added to that of the logits, in the backward; the
                    loss itself is not added to y
    bias            moves the choice: up for an expert below the mean load, down for one above it. Backwards count the
                    pairs (token, slot) on each expert, and after a step `rebalance` moves the bias

Invariant: a load counts every pair of the tokens that share a loss, on whatever rank they are: `loads_of` and the
argument of `rebalance` bring those of other ranks.

Letters: T tokens, N experts, k chosen, E hidden size.

Sources: Fedus et al. 2021, "Switch transformers", section 2.2 (auxiliary loss); DeepSeek-AI 2024, "DeepSeek-V3
technical report", section 2.1.2 (bias).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from parlab.arrays import Array, default_namespace, namespace, to_host
from parlab.nn.activation import softmax
from parlab.nn.linear import linear, linear_backward_input, linear_backward_weight
from parlab.nn.routing import Routing, expert_loads, gates_backward, route
from parlab.nn.stage import Gradients, Stage, Weights


class RouterCache(NamedTuple):
    """The router keeps these for its backward."""

    x: Array  # [T, E]
    routing: Routing
    loads: list[int] | None  # of the auxiliary loss, if there is one


class Router(Stage):
    """Tokens `[T, E]` -> their `Routing`; backward takes the gradient of the gates `[T, k]`.

    Args:
        weights: shared with the model.
        name: of the router's `[E, N]` among them.
        num_experts: N.
        k: experts a token.
        auxiliary: α of the auxiliary loss whose gradient backward adds.
        bias_rate: γ, by which `rebalance` moves the bias of each expert.
        loads_of: the pairs on each expert, as the auxiliary loss takes them, from a call's routing. None: those of the
            call.
        options: `scores`, `groups` and `group_limit`, as for `route`.

    Attributes:
        bias: `[N]` numbers, 0 at first; used where bias_rate is not 0.
        counted: pairs on each expert, of all backwards since the last `rebalance`; where bias_rate is not 0.
        loss_weight: the factor of the auxiliary loss's gradient: loss scale / number of calls over whose tokens the
            loss is one mean; 1 for one call without a scale.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        num_experts: int,
        k: int,
        *,
        auxiliary: float = 0.0,
        bias_rate: float = 0.0,
        loads_of: Callable[[Routing], list[int]] | None = None,
        **options: Any,
    ) -> None:
        self.weights, self.name, self.weight_names = weights, name, (name,)
        self.num_experts, self.k, self.options = num_experts, k, options
        self.auxiliary, self.bias_rate, self.loss_weight = auxiliary, bias_rate, 1.0
        self.loads_of = loads_of or partial(expert_loads, num_experts=num_experts)
        self.bias, self.counted = [0.0] * num_experts, [0] * num_experts

    def forward(self, x: Array) -> tuple[Routing, RouterCache]:
        """`(routing, cache)`."""
        routing = self.routed(x)
        return routing, RouterCache(x, routing, self.loads_of(routing) if self.auxiliary else None)

    def routed(self, x: Array) -> Routing:
        """The routing, with the bias where there is one."""
        options = self.options
        if self.bias_rate:
            options = options | {"bias": namespace(x).asarray(self.bias, dtype=x.dtype, device=x.device)}
        return route(x, self.weights[self.name], self.k, **options)

    def backward_input(self, dy: Array, cache: RouterCache) -> tuple[Array, Any]:
        """`(dx [T, E], pending)`; dy is the gradient of the gates, `[T, k]`."""
        x, routing, loads = cache
        dlogits = gates_backward(dy, routing)  # [T, N]
        if loads is not None:
            logits, _ = linear(x, self.weights[self.name])
            dlogits = dlogits + auxiliary_loss(logits, loads, self.auxiliary * self.loss_weight)[1]
        if self.bias_rate:
            self.count(routing)  # here, because a forward may run twice: in a first pass, and to be recomputed
        return linear_backward_input(dlogits, x, self.weights[self.name])

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradient of the router."""
        return {self.name: linear_backward_weight(pending)}

    def count(self, routing: Routing) -> list[int]:
        """The pairs on each expert in one call, which are added to `counted`; so it can stand as `loads_of`, too."""
        of_call = expert_loads(routing, self.num_experts)
        self.counted = [sum(both) for both in zip(self.counted, of_call, strict=True)]
        return of_call

    def rebalance(self, loads: Sequence[int]) -> None:
        """Move the bias after a step, and count anew. `loads`: pairs on each expert, of the whole batch."""
        self.counted = [0] * self.num_experts
        xp = default_namespace()
        self.bias = to_host(balanced_bias(xp.asarray(self.bias, dtype=xp.float64), loads, self.bias_rate))


def auxiliary_loss(logits: Array, loads: Sequence[int], alpha: float) -> tuple[Array, Array]:
    """α N Σ f_i P_i, which is α when the load is uniform, and its gradient with respect to the logits `[T, N]`.

    Args:
        logits: the router's, `[T, N]`, of this rank's tokens.
        loads: pairs on each expert, of all tokens of the batch (those of other ranks too): f_i is their share. It has
            no gradient.
        alpha: the loss's weight, 0.01 in the paper.

    P_i is the mean probability of expert i over this rank's tokens. Source: Fedus et al. 2021, section 2.2.
    """
    xp, (T, N) = namespace(logits), logits.shape
    probabilities = softmax(logits)
    total = sum(loads)
    f = xp.asarray([load / total for load in loads], dtype=logits.dtype, device=logits.device)  # [N]
    loss = alpha * N * xp.sum(f * xp.mean(probabilities, axis=0))
    dprobabilities = alpha * N / T * f  # the same for every token
    inner = dprobabilities - xp.sum(probabilities * dprobabilities, axis=1, keepdims=True)
    return loss, probabilities * inner


def balanced_bias(bias: Array, loads: Sequence[int], rate: float) -> Array:
    """The bias after a step: up by `rate` for experts below the mean load, down for those above it.

    Source: DeepSeek-V3 technical report, section 2.1.2 (γ = 0.001); Wang et al. 2024, "Auxiliary-loss-free load
    balancing strategy for mixture-of-experts".
    """
    xp = namespace(bias)
    mean = sum(loads) / len(loads)
    missing = xp.asarray([mean - load for load in loads], dtype=bias.dtype, device=bias.device)  # [N]
    return bias + rate * xp.sign(missing)
