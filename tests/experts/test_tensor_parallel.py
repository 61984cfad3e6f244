"""Experts that are cut over ranks too: equal to the serial layer; tokens gathered before, scattered after."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.experts.tensor_parallel import TensorParallelExperts
from parlab.nn.moe import MixtureOfExperts
from tests.nn.finite_differences import draw
from tests.nn.parity import relative_error

E, M, N, K, T = 6, 12, 8, 2, 7


def weights_of():
    shapes = {"m.gate.weight": (E, N)}
    for expert in range(N):
        shapes |= {f"m.experts.{expert}.{name}.weight": (E, M) for name in ("w1", "w3")}
        shapes[f"m.experts.{expert}.w2.weight"] = (M, E)
    return {name: draw(np, *shape, seed=number) for number, (name, shape) in enumerate(shapes.items())}


def one_rank(comm, t, weights, x, dy):
    """Ranks of one expert-parallel group are t apart; those that cut the same experts are neighbours."""
    etp, ep = comm.split(comm.rank // t, name="etp"), comm.split(comm.rank % t, name="ep")
    made = TensorParallelExperts.cut_from_full(ep, etp, weights, "m", N, K)
    y, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    return y, dx, gradients


@pytest.mark.parametrize(("ep", "t"), [(1, 2), (2, 1), (2, 2), (2, 3), (4, 2), (1, 4), (8, 1)])
def test_cut_experts_equal_serial_to_1e_12_forward_and_backward(ep, t):
    size, weights = ep * t, weights_of()
    x, dy = draw(np, size * T, E, seed=1), draw(np, size * T, E, seed=2)
    made = MixtureOfExperts(weights, "m", N, K)
    y, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    done = run(one_rank, size, t, weights, *(per_rank(np.split(part, size)) for part in (x, dy)))
    assert relative_error(np.concatenate([result[0] for result in done.results]), y) <= 1e-12
    assert relative_error(np.concatenate([result[1] for result in done.results]), dx) <= 1e-12
    for name, gradient in gradients.items():
        parts = [result[2][name] for result in done.results if name in result[2]]
        if name == "m.gate.weight":
            whole = np.sum(parts, axis=0)
        else:
            assert len(parts) == t  # one for each part of the columns
            whole = np.concatenate(parts, axis=0 if "w2" in name else 1)
        assert relative_error(whole, gradient, floor=1e-3) <= 1e-12, name


def test_columns_that_do_not_divide_are_refused_by_name():
    with pytest.raises(ValueError, match=r"m.experts.0.w1.weight: 12 columns do not divide among 5 ranks"):
        run(one_rank, 5, 5, weights_of(), np.ones((2, E)), np.ones((2, E)))


def forgotten(self, partial, table):
    """Each rank keeps its own share of the sums."""
    first = sum(sum(of_rank) for of_rank in table[: self.etp.rank])
    from parlab.experts.all_to_all import by_source

    return by_source(partial, table)[first : first + sum(table[self.etp.rank])]


def test_a_forgotten_reduce_scatter_is_caught(monkeypatch):
    monkeypatch.setattr(TensorParallelExperts, "scattered", forgotten)
    with pytest.raises(AssertionError):
        test_cut_experts_equal_serial_to_1e_12_forward_and_backward(2, 2)
