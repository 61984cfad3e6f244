"""Routing: which k of N experts each token goes to, and how much each answer counts.

    logits      x Wr                                                       [T, N]
    affinities  the logits, their softmax or their sigmoids                [T, N]
    chosen      the k experts of the largest affinities, the best first    [T, k]
    gates       from the affinities of the chosen                          [T, k]

There are three kinds of scores, with l the logits, and all sums over the chosen but the one with p:

    ==============  ==============  =====================  ============================================================
    scores          affinities      gates g                gradient of the logits, from dg
    ==============  ==============  =====================  ============================================================
    softmax_chosen  l               softmax of the chosen  g (dg − Σ g dg) at the chosen, 0 elsewhere
    softmax         p = softmax(l)  p at the chosen        p (dp − Σ p dp), where dp is dg at the chosen, 0 elsewhere
    sigmoid         s = sigmoid(l)  s / Σ s                s (1 − s) (dg − Σ g dg) / Σ s at the chosen, 0 elsewhere
    ==============  ==============  =====================  ============================================================

The choice itself has no gradient.

Letters: T tokens, N experts, k chosen, E hidden size. Ties go to the lower index, everywhere, so that every rank of a
group makes the same choice.

Sources: Shazeer et al. 2017, "Outrageously large neural networks"; Fedus et al. 2021, "Switch transformers" (softmax
over all); Jiang et al. 2024, "Mixtral of experts" (softmax over the chosen); DeepSeek-AI 2024, "DeepSeek-V3 technical
report", section 2.1.2 (sigmoid, bias, groups).
"""

from __future__ import annotations

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
    affinities: Array = None  # [T, N]
    scores: str = "softmax_chosen"  # one of SCORES, as `route` was told


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
    N = weights.shape[1]
    one_of("scores", scores, SCORES)
    if whole("k", k, 1) > N:
        raise ValueError(f"k={k}: there are {N} experts to choose from")
    logits, _ = linear(x, weights)  # [T, N]
    affinities = affinities_of(logits, scores)
    ranked_by = affinities if bias is None else affinities + bias
    if group_limit is not None:
        ranked_by = within_groups(ranked_by, k, groups, group_limit)
    chosen = top(ranked_by, k)  # [T, k]
    return Routing(chosen, gates_of(affinities, chosen, scores), affinities, scores)


def route_backward(dgates: Array, routing: Routing, x: Array, weights: Array) -> tuple[Array, Array]:
    """`(dx [T, E], dweights [E, N])` from the gradient of the gates `[T, k]`; the choice itself has none.

    `routing` is what `route(x, weights, ...)` returned.
    """
    dx, pending = linear_backward_input(gates_backward(dgates, routing), x, weights)
    return dx, linear_backward_weight(pending)


def affinities_of(logits: Array, scores: str) -> Array:
    """By these the experts of a token are ranked: `[T, N]` -> the same."""
    if scores == "softmax_chosen":
        return logits
    return softmax(logits) if scores == "softmax" else sigmoid(logits)


def gates_of(affinities: Array, chosen: Array, scores: str) -> Array:
    """`[T, N]`, `[T, k]` -> `[T, k]`."""
    xp = namespace(affinities)
    of_chosen = xp.take_along_axis(affinities, chosen, axis=1)  # [T, k]
    if scores == "softmax_chosen":
        return softmax(of_chosen)
    return of_chosen if scores == "softmax" else of_chosen / xp.sum(of_chosen, axis=1, keepdims=True)


def gates_backward(dgates: Array, routing: Routing) -> Array:
    """The gradient of the logits `[T, N]` from that of the gates `[T, k]`: the last column of the table."""
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


def within_groups(ranked_by: Array, k: int, groups: int, group_limit: int) -> Array:
    """`ranked_by` [T, N] with −inf outside the `group_limit` best groups of each token.

    A group is as good as the sum of its best k/group_limit numbers: so many experts each group has to give.

    >>> import numpy as np
    >>> within_groups(np.array([[5.0, 0.0, 3.0, 4.0]]), k=2, groups=2, group_limit=1).tolist()  # 5 + 0 < 3 + 4
    [[-inf, -inf, 3.0, 4.0]]
    """
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


def expert_loads(routing: Routing, num_experts: int) -> list[int]:
    """How many pairs (token, slot) go to each expert."""
    xp, chosen = namespace(routing.chosen), routing.chosen
    return to_host(xp.stack([xp.count_nonzero(chosen == expert) for expert in range(num_experts)]))


def scattered(values: Array, chosen: Array, width: int) -> Array:
    """`[T, width]` with `values[t, s]` at `[t, chosen[t, s]]`, and zeros elsewhere."""
    xp, T = namespace(values), values.shape[0]
    first = xp.arange(T, dtype=chosen.dtype, device=chosen.device)[:, None] * width
    flat = xp.zeros(T * width, dtype=values.dtype, device=values.device)
    return xp.reshape(add_at(flat, xp.reshape(first + chosen, (-1,)), xp.reshape(values, (-1,))), (T, width))
