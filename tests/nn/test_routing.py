"""The router: choices, gates, gradients and balance, against loops that read as the definitions do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.arrays import asarray, to_numpy
from parlab.nn.router import auxiliary_loss, balanced_bias
from parlab.nn.routing import (
    expert_loads,
    route,
    route_backward,
    softmax,
    top,
)
from tests.nn.finite_differences import assert_gradient, draw, weighted

KINDS = {
    "softmax_chosen": {},
    "softmax": {},
    "sigmoid": {},
    "sigmoid with groups": {"groups": 4, "group_limit": 2},
}


def chosen_by_definition(scores, k, groups=1, group_limit=None):
    """The k experts of one token, by sorting (score, lower index first)."""
    open_groups = range(groups)
    if group_limit is not None:
        width = len(scores) // groups
        strength = [sum(sorted(scores[g * width : g * width + width])[-(k // group_limit) :]) for g in range(groups)]
        open_groups = sorted(range(groups), key=lambda g: (-strength[g], g))[:group_limit]
    candidates = [e for e in range(len(scores)) if e // (len(scores) // groups) in open_groups]
    return sorted(candidates, key=lambda e: (-scores[e], e))[:k]


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_goes_to_its_k_best_and_gates_follow_the_definition(xp, kind):
    method, how = kind.split()[0], KINDS[kind]
    x, weights, bias = draw(xp, 20, 5), draw(xp, 5, 12), 0.1 * draw(xp, 12, seed=1)
    biased = {"bias": bias} if method == "sigmoid" else {}
    routing = route(x, weights, 4, scores=method, **biased, **how)
    logits = to_numpy(x) @ to_numpy(weights)
    for t in range(20):
        score = {"softmax_chosen": logits, "softmax": to_numpy(softmax(asarray(logits, xp)))}.get(
            method, 1 / (1 + np.exp(-logits))
        )[t]
        ranked = score + (to_numpy(bias) if biased else 0)
        groups = {name: how[name] for name in ("groups", "group_limit") if name in how}
        expected = chosen_by_definition(ranked.tolist(), 4, **groups)
        assert to_numpy(routing.chosen)[t].tolist() == expected
        own = score[expected]
        gates = {"softmax_chosen": np.exp(own) / np.exp(own).sum(), "softmax": own}.get(method, own / own.sum())
        np.testing.assert_allclose(to_numpy(routing.gates)[t], gates, rtol=1e-13)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=6, max_size=6), min_size=1), st.integers(1, 6))
def test_of_equal_scores_the_lower_index_is_chosen_first(scores, k):
    expected = [chosen_by_definition(row, k) for row in scores]
    assert top(np.array(scores), k).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 4])
def test_gradients_of_gates_equal_finite_differences(xp, kind, k):
    method, how = kind.split()[0], KINDS[kind]
    x, weights, dgates = draw(xp, 3, 5), draw(xp, 5, 8), draw(xp, 3, k)

    def loss(x, weights):
        return weighted(route(x, weights, k, scores=method, **how).gates, dgates)

    dx, dweights = route_backward(dgates, route(x, weights, k, scores=method, **how), x, weights)
    assert_gradient(dx, lambda moved: loss(moved, weights), x)
    assert_gradient(dweights, lambda moved: loss(x, moved), weights)


def test_k_1_with_a_softmax_over_the_chosen_teaches_the_router_nothing_and_over_all_it_does():
    x, weights, dgates = draw(np, 3, 5), draw(np, 5, 8), draw(np, 3, 1)
    mixtral, switch = route(x, weights, 1), route(x, weights, 1, scores="softmax")
    assert not route_backward(dgates, mixtral, x, weights)[1].any()
    assert route_backward(dgates, switch, x, weights)[1].all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"k": 9}, "k=9: there are 8 experts to choose from"),
        ({"k": 0}, "k=0: must be a whole number, at least 1"),
        ({"k": 2, "scores": "tanh"}, "scores='tanh': use one of softmax_chosen, softmax, sigmoid"),
        ({"k": 2, "groups": 3, "group_limit": 1}, "groups=3: must divide the 8 experts"),
        ({"k": 2, "groups": 16, "group_limit": 1}, "groups=16: must divide the 8 experts"),
        ({"k": 2, "groups": 0, "group_limit": 1}, "groups=0: must be a whole number, at least 1"),
        ({"k": 2, "groups": 4, "group_limit": 1.0}, "group_limit=1.0: must be a whole number"),
        ({"k": 2, "groups": 4, "group_limit": 0}, "group_limit=0: must divide k=2, and be at most groups=4"),
        ({"k": 8, "groups": 4, "group_limit": 8}, "group_limit=8: must divide k=8, and be at most groups=4"),
        ({"k": 3, "groups": 4, "group_limit": 2}, "group_limit=2: must divide k=3"),
        ({"k": 4, "groups": 4, "group_limit": 5}, "group_limit=5: must divide k=4, and be at most groups=4"),
        ({"k": 4, "groups": 4, "group_limit": 1}, "group_limit=1: a group has 2 experts, too few for k=4"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, text):
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        route(np.ones((2, 5)), np.ones((5, 8)), **arguments)


def test_loads_add_up_to_T_k_and_count_what_each_expert_gets(xp):
    routing = route(draw(xp, 30, 5), draw(xp, 5, 8), 3)
    loads = expert_loads(routing, 8)
    assert loads == np.bincount(to_numpy(routing.chosen).ravel(), minlength=8).tolist()
    assert sum(loads) == 90


def test_the_auxiliary_loss_is_alpha_when_uniform_and_its_gradient_equals_finite_differences(xp):
    uniform, _ = auxiliary_loss(xp.zeros((12, 4), dtype=xp.float64), [6, 6, 6, 6], 0.01)
    assert float(uniform) == pytest.approx(0.01, rel=1e-14)
    logits, loads = draw(xp, 5, 4), [7, 1, 0, 2]
    _, dlogits = auxiliary_loss(logits, loads, 0.01)
    assert_gradient(dlogits, lambda moved: float(auxiliary_loss(moved, loads, 0.01)[0]), logits)


def test_the_bias_moves_by_the_rate_up_below_the_mean_load_of_4_and_down_above_it():
    assert balanced_bias(np.zeros(4), [4, 9, 0, 3], 0.5).tolist() == [0.0, -0.5, 0.5, 0.5]
