"""The helpers of lesson 10, beside a loop over tokens."""

import numpy as np
import pytest

from parlab import labs, run


@pytest.mark.parametrize(("tokens", "experts", "k"), [(1, 3, 1), (5, 8, 2), (6, 4, 3)])
def test_sorted_answered_and_summed_is_a_loop_over_tokens_and_their_experts(tokens, experts, k):
    draw = np.random.default_rng(tokens)
    x, weights = draw.normal(size=(tokens, 4)), draw.normal(size=(experts, 4, 4))
    chosen = np.argsort(draw.normal(size=(tokens, experts)), axis=1)[:, :k]
    gates = draw.uniform(size=(tokens, k))
    order = np.argsort(chosen.ravel(), kind="stable")
    answers = labs.answered(chosen.ravel()[order], x[order // k], lambda e, rows: rows @ weights[e])
    right = [sum(gates[t, i] * x[t] @ weights[chosen[t, i]] for i in range(k)) for t in range(tokens)]
    np.testing.assert_allclose(labs.summed(answers, order, gates), right, rtol=0, atol=1e-14)


def test_rows_that_come_lie_by_source_and_within_a_source_by_expert():
    table = np.array([[[1, 0], [0, 2]], [[2, 1], [1, 1]]])  # [from rank, to rank, which of its experts]
    rows = run(labs.expert_of_each, 2, table).results
    assert [one.tolist() for one in rows] == [[0, 0, 0, 1], [3, 3, 2, 3]]
