"""The router of a mixture of experts: which k of N experts each token goes to, and how much each answer counts.

    logits = x Wr [T, N];  chosen = top-k [T, k];  gates = f(logits) [T, k]

Letters: T tokens, N experts, k chosen, E hidden size. Ties go to the lower index, everywhere, so that every rank of a
group makes the same choice.

Sources: Shazeer et al. 2017, "Outrageously large neural networks"; Fedus et al. 2021, "Switch transformers" (softmax
over all, auxiliary loss); Jiang et al. 2024, "Mixtral of experts" (softmax over the chosen); DeepSeek-AI 2024,
"DeepSeek-V3 technical report", section 2.1.2 (sigmoid, bias, groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.arguments import one_of, whole
from parlab.arrays import Array, add_at, namespace, to_host
from parlab.nn.activation import sigmoid, softmax
from parlab.nn.linear import linear, linear_backward_input, linear_backward_weight

SCORES = ("softmax_chosen", "softmax", "sigmoid")


class Routing(NamedTuple):
    """Which experts each token goes to, and how much each of their answers counts.

    `chosen` and `gates` are enough to send and mix rows. The router's own backward needs its affinities, too.
    """

    chosen: Array  # [T, k] whole numbers, the best first
    gates: Array  # [T, k]
    affinities: Array = None  # [T, N]: logits, probabilities or sigmoids, as `scores` says
    scores: str = "softmax_chosen"  # one of SCORES, as `route` was told
    here: Array | None = None  # [T, k] booleans: False where the slot's expert is on another rank; None: all are here


def route(
    x: Array,
    weights: Array,
    k: int,
    *,
    scores: str = "softmax_chosen",
    bias: Array | None = None,
    groups: int = 1,
    group_limit: int | None = None,
) -> Routing:
    """Choose k experts for each token, and weigh them.

    Args:
        x: `[T, E]`.
        weights: the router's, `[E, N]`.
        k: experts a token.
        scores: how gates follow from the logits. `softmax_chosen`: a softmax over the chosen k (Mixtral);
            `softmax`: over all N, of which the chosen keep theirs (Switch); `sigmoid`: s / Σ s over the chosen
            (DeepSeek-V3, which then takes all gates times 2.5).
        bias: `[N]`, added to the affinities for the choice alone, not for the gates: it balances the load without a
            gradient.
        groups: N/groups consecutive experts form a group, for example those of a node.
        group_limit: the experts of a token lie in at most so many groups: those with the largest sums of their best
            k/group_limit affinities. None: in any.

    Raises:
        ValueError: k, groups or group_limit that do not fit the N experts, or another kind of scores.

    >>> import numpy as np
    >>> routing = route(np.eye(2), np.array([[3.0, 1.0, 2.0], [0.0, 0.0, 0.0]]), 2)
    >>> routing.chosen.tolist()  # token 1 has three equal scores: the lower indices
    [[0, 2], [0, 1]]
    >>> routing.gates.round(2).tolist()
    [[0.73, 0.27], [0.5, 0.5]]
    """
    xp, N = namespace(x, weights), weights.shape[1]
    one_of("scores", scores, SCORES)
    if whole("k", k, 1) > N:
        raise ValueError(f"k={k}: there are {N} experts to choose from")
    logits, _ = linear(x, weights)  # [T, N]
    affinities = {"softmax_chosen": _unchanged, "softmax": softmax, "sigmoid": sigmoid}[scores](logits)
    ranked_by = affinities if bias is None else affinities + bias
    if group_limit is not None:
        ranked_by = _within_groups(ranked_by, k, groups, group_limit)
    chosen = top(ranked_by, k)  # [T, k]
    of_chosen = xp.take_along_axis(affinities, chosen, axis=1)  # [T, k]
    if scores == "softmax_chosen":
        gates = softmax(of_chosen)
    elif scores == "sigmoid":
        gates = of_chosen / xp.sum(of_chosen, axis=1, keepdims=True)
    else:
        gates = of_chosen
    return Routing(chosen, gates, affinities, scores)


def route_backward(dgates: Array, routing: Routing, x: Array, weights: Array) -> tuple[Array, Array]:
    """`(dx [T, E], dweights [E, N])` from the gradient of the gates `[T, k]`; the choice itself has none.

    `routing` is what `route(x, weights, ...)` returned.
    """
    dx, pending = linear_backward_input(gates_backward(dgates, routing), x, weights)
    return dx, linear_backward_weight(pending)


def gates_backward(dgates: Array, routing: Routing) -> Array:
    """The gradient of the logits `[T, N]` from that of the gates `[T, k]`.

    Softmax over the chosen: dl = g (dg − Σ g dg). Over all: dl = p (dp − Σ p dp), where dp is dg at the chosen and 0
    elsewhere. Sigmoid, with g = s/S and S = Σ s over the chosen: ds = (dg − Σ g dg)/S, dl = ds s (1 − s).
    """
    xp, affinities, chosen = namespace(dgates), routing.affinities, routing.chosen
    N = affinities.shape[1]
    if routing.scores == "softmax":
        dp = scattered(dgates, chosen, N)  # [T, N]
        return affinities * (dp - xp.sum(affinities * dp, axis=1, keepdims=True))
    g = routing.gates  # [T, k], of sum 1
    inner = dgates - xp.sum(g * dgates, axis=1, keepdims=True)
    if routing.scores == "softmax_chosen":
        return scattered(g * inner, chosen, N)
    s = xp.take_along_axis(affinities, chosen, axis=1)  # [T, k]
    ds = inner / xp.sum(s, axis=1, keepdims=True)
    return scattered(ds * s * (1 - s), chosen, N)


def top(ranked_by: Array, k: int) -> Array:
    """The indices of the k largest of each row, the largest first; of equal ones the lower index: `[T, k]`."""
    return namespace(ranked_by).argsort(-ranked_by, axis=1, stable=True)[:, :k]


def _within_groups(ranked_by: Array, k: int, groups: int, group_limit: int) -> Array:
    """`ranked_by` [T, N] with −inf outside the `group_limit` best groups of each token."""
    xp, (T, N) = namespace(ranked_by), ranked_by.shape
    if N % whole("groups", groups, 1):
        raise ValueError(f"groups={groups}: must divide the {N} experts")
    if not 1 <= whole("group_limit", group_limit) <= groups or k % group_limit:
        raise ValueError(f"group_limit={group_limit}: must divide k={k}, and be at most groups={groups}")
    if k // group_limit > N // groups:
        raise ValueError(f"group_limit={group_limit}: a group has {N // groups} experts, too few for k={k}")
    by_group = xp.reshape(ranked_by, (T * groups, N // groups))
    best = xp.take_along_axis(by_group, top(by_group, k // group_limit), axis=1)
    strength = xp.reshape(xp.sum(best, axis=1), (T, groups))
    ones = xp.ones((T, group_limit), dtype=ranked_by.dtype, device=ranked_by.device)
    taken = scattered(ones, top(strength, group_limit), groups)  # [T, groups]: 1 where the group is taken
    open_to = xp.repeat(taken > 0, N // groups, axis=1)  # [T, N]
    return xp.where(open_to, ranked_by, -xp.inf)


def scattered(values: Array, chosen: Array, width: int) -> Array:
    """`[T, width]` with `values[t, s]` at `[t, chosen[t, s]]`, and zeros elsewhere."""
    xp, T = namespace(values), values.shape[0]
    first = xp.arange(T, dtype=chosen.dtype, device=chosen.device)[:, None] * width
    flat = xp.zeros(T * width, dtype=values.dtype, device=values.device)
    return xp.reshape(add_at(flat, xp.reshape(first + chosen, (-1,)), xp.reshape(values, (-1,))), (T, width))


def _unchanged(logits: Array) -> Array:
    return logits


# Balance


def expert_loads(routing: Routing, num_experts: int) -> list[int]:
    """How many (token, slot) pairs go to each expert; pairs whose expert is not here go to none."""
    xp, goes_to = namespace(routing.chosen), destinations(routing, num_experts)
    return to_host(xp.stack([xp.count_nonzero(goes_to == expert) for expert in range(num_experts)]))


def destinations(routing: Routing, num_experts: int) -> Array:
    """The expert of each pair, `[T·k]`; `num_experts` (no expert has this number) where that is not here."""
    xp, chosen = namespace(routing.chosen), routing.chosen
    if routing.here is not None:
        chosen = xp.where(routing.here, chosen, num_experts)
    return xp.reshape(chosen, (-1,))


def auxiliary_loss(logits: Array, loads: Sequence[int], k: int, alpha: float) -> tuple[Array, Array]:
    """α N Σ f_i P_i, which is α when the load is uniform, and its gradient with respect to the logits `[T, N]`.

    Args:
        logits: the router's, `[T, N]`, of this rank's tokens.
        loads: pairs on each expert, of all tokens of the batch (those of other ranks too): f_i is their share. It has
            no gradient.
        k: slots a token.
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


def inverse(order: Array) -> Array:
    """The new place of each item: `take(take(x, order), inverse(order))` is x."""
    return namespace(order).argsort(order)
