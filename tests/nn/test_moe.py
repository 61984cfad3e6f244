"""The layer of experts: against a loop over tokens and slots, and against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.arrays import asarray, to_numpy
from parlab.nn.moe import Experts, MixtureOfExperts
from parlab.nn.router import Router
from tests.nn.finite_differences import assert_gradient, draw, weighted
from tests.nn.parity import assert_parity

E, M, N = 6, 5, 8
CASES = {
    "mixtral": {"k": 2},
    "switch": {"k": 1, "scores": "softmax"},
    "deepseek": {"k": 4, "scores": "sigmoid", "groups": 4, "group_limit": 2},
    "all experts": {"k": 8},
}


def layer(xp, case, seed=0):
    shapes = {"m.gate.weight": (E, N)}
    for prefix in (f"m.experts.{e}" for e in range(N)):
        shapes |= {f"{prefix}.w1.weight": (E, M), f"{prefix}.w3.weight": (E, M), f"{prefix}.w2.weight": (M, E)}
    weights = {name: draw(xp, *shape, seed=number + seed) for number, (name, shape) in enumerate(shapes.items())}
    return mixture(weights, **CASES[case])


def mixture(weights, **options):
    return MixtureOfExperts(Router(weights, "m.gate.weight", N, **options), Experts(weights, "m.experts", range(N)))


def by_tokens(made, x):
    """y of each token, slot by slot, as the definition says."""
    weights = {name: to_numpy(w) for name, w in made.weights.items()}
    routing = made.router.routed(asarray(x, np) if isinstance(x, np.ndarray) else x)
    x, y = to_numpy(x), np.zeros(x.shape)

    def expert(prefix, row):
        w1, w3, w2 = (weights[f"{prefix}.{name}.weight"] for name in ("w1", "w3", "w2"))
        gate = row @ w1
        return (gate / (1 + np.exp(-gate)) * (row @ w3)) @ w2

    for t, row in enumerate(x):
        for s, e in enumerate(to_numpy(routing.chosen)[t]):
            y[t] += to_numpy(routing.gates)[t, s] * expert(f"m.experts.{e}", row)
    return y


@pytest.mark.parametrize("case", CASES)
def test_forward_equals_a_loop_over_tokens_and_slots(xp, case):
    made, x = layer(xp, case), draw(xp, 13, E)
    y, _ = made.forward(x)
    assert_parity([y], [by_tokens(made, x)], 1e-13)


@pytest.mark.parametrize("case", ["mixtral", "switch", "deepseek"])
def test_every_gradient_equals_finite_differences(case):
    made, x, dy = layer(np, case), draw(np, 1, 7, E), draw(np, 1, 7, E, seed=1)
    y, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    assert set(gradients) == set(made.weight_names)
    assert_gradient(dx, lambda moved: weighted(made.forward(moved)[0], dy), x, 1e-7)
    for name in made.weight_names:
        start = made.weights[name]

        def loss(moved, name=name):
            made.weights[name] = moved
            return weighted(made.forward(x)[0], dy)

        assert_gradient(gradients[name], loss, start, 1e-7)
        made.weights[name] = start


def test_the_gradient_with_an_auxiliary_loss_is_that_of_the_sum_with_f_held():
    made, x, dy = layer(np, "mixtral"), draw(np, 1, 7, E), draw(np, 1, 7, E, seed=1)
    made.router.auxiliary, made.router.loss_weight = 0.5, 2.0
    _, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    router = made.weights["m.gate.weight"]

    def loss(x, router):
        own = {**made.weights, "m.gate.weight": router}
        plain = mixture(own, k=2)
        logits = x.reshape(-1, E) @ router
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        auxiliary = 0.5 * N * (np.array(cache.router.loads) / 14 * p.mean(axis=0)).sum()
        return weighted(plain.forward(x)[0], dy) + 2.0 * auxiliary

    assert_gradient(dx, lambda moved: loss(moved, router), x)
    assert_gradient(gradients["m.gate.weight"], lambda moved: loss(x, moved), router)


def test_32_pairs_are_counted_and_move_the_bias_of_each_expert_by_its_rate():
    made = layer(np, "mixtral")
    made.router.auxiliary, made.router.bias_rate = 0.5, 0.1
    x = draw(np, 1, 16, E)
    _, cache = made.forward(x)
    for _ in range(2):  # microbatches of a step
        made.backward(x, cache)
    assert sum(cache.router.loads) == 32
    assert made.router.counted == [2 * load for load in cache.router.loads]
    made.router.rebalance(made.router.counted)
    assert made.router.counted == [0] * N
    assert made.router.bias == [0.1 * np.sign(4 - load) for load in cache.router.loads]
