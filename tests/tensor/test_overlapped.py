"""Overlapped tensor parallelism: the products of gather and scatter, their bytes, and less time."""

from fractions import Fraction

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab import Cluster, per_rank, run
from parlab.arrays import asarray, to_host
from parlab.tensor import (
    all_gather_matmul,
    all_gather_matmul_backward,
    matmul_reduce_scatter,
    matmul_reduce_scatter_backward,
    overlapped,
    overlapped_time,
)
from tests.nn.parity import relative_error

LIBRARIES = {"numpy": np, "strict": array_api_strict}


def case(t, B=2, per=3, inputs=5, outputs=4, seed=0):
    """x [B, S, in t], W of a column layer [in t, out t] and the gradient of its output."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((B, t * per, t * inputs))
    weight = rng.standard_normal((t * inputs, t * outputs))
    return x, weight, rng.standard_normal((B, t * per, t * outputs))


def cut(array, t, axis):
    return np.split(array, t, axis=axis)


def given_to(shards, xp):
    return per_rank([asarray(shard, xp) for shard in shards])


def columns(t, xp, x, weight, dy):
    """y, dx and dW of a column layer whose tokens are cut."""

    def program(comm, x, weight, dy):
        y = all_gather_matmul(comm, x, weight)
        return y, *all_gather_matmul_backward(comm, dy, x, weight)

    given = given_to(cut(x, t, 1), xp), given_to(cut(weight, t, 1), xp), given_to(cut(dy, t, 2), xp)
    y, dx, dweight = zip(*run(program, t, *given).results, strict=True)
    return joined(y, 2), joined(dx, 1), joined(dweight, 1)


def rows(t, xp, x, weight, dy):
    """y, dx and dW of a row layer whose output's tokens are cut."""

    def program(comm, x, weight, dy):
        y = matmul_reduce_scatter(comm, x, weight)
        return y, *matmul_reduce_scatter_backward(comm, dy, x, weight)

    given = given_to(cut(x, t, 2), xp), given_to(cut(weight, t, 0), xp), given_to(cut(dy, t, 1), xp)
    y, dx, dweight = zip(*run(program, t, *given).results, strict=True)
    return joined(y, 1), joined(dx, 2), joined(dweight, 0)


def joined(shards, axis):
    return np.concatenate([to_host(shard) for shard in shards], axis=axis)


def serial(x, weight, dy):
    return x @ weight, dy @ weight.T, np.einsum("bsi,bso->io", x, dy)


def wrong(found, expected):
    return [not relative_error(one, other) <= 1e-12 for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize("layer", [columns, rows])
@pytest.mark.parametrize("library", LIBRARIES)
@given(
    t=st.integers(1, 9), B=st.integers(1, 3), per=st.integers(1, 4), inputs=st.integers(1, 4), outputs=st.integers(1, 4)
)
def test_y_dx_and_dw_equal_serial_to_1e_12(layer, library, t, B, per, inputs, outputs):
    arrays = case(t, B, per, inputs, outputs)
    assert wrong(layer(t, LIBRARIES[library], *arrays), serial(*arrays)) == [False] * 3


@pytest.mark.parametrize("t", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e12])
def test_either_takes_c_over_t_and_t_minus_1_times_the_longer_of_part_and_hop_and_sends_the_rings_bytes(t, bandwidth):
    cluster = Cluster.uniform(latency=1e-6, bandwidth=bandwidth, flops=1e9)
    x, weight, _ = case(t)
    given = {
        all_gather_matmul: (cut(x, t, 1), cut(weight, t, 1), x),
        matmul_reduce_scatter: (cut(x, t, 2), cut(weight, t, 0), np.zeros((2, x.shape[1], weight.shape[1]))),
    }
    for program, (mine, weights, travels) in given.items():
        done = run(program, t, per_rank(mine), per_rank(weights), cluster=cluster).timeline
        product = Fraction(2 * x.size * weight.shape[1] * 1000, t)  # picoseconds of one rank's whole product
        hop = 10**6 + travels.nbytes // t * 10**12 // int(bandwidth)  # picoseconds
        assert done.makespan == overlapped_time(product, hop, t)
        assert [done.bytes_sent(rank) for rank in range(t)] == [travels.nbytes // t * (t - 1)] * t
        assert [done.messages(rank) for rank in range(t)] == [t - 1] * t


def test_4_ranks_with_a_hop_as_long_as_a_part_take_4_parts_instead_of_7():
    assert overlapped_time(product=4, hop=1, ranks=4) == 4


def test_a_sequence_of_10_on_4_ranks_is_refused():
    with pytest.raises(ValueError, match="sequence length 10"):
        run(matmul_reduce_scatter, 4, np.ones((1, 10, 2)), np.ones((2, 3)))


def test_tokens_that_are_said_to_be_the_right_neighbours_give_wrong_products(monkeypatch):
    right = overlapped.around_ring

    def shifted(comm, x):
        return (((source + 2) % comm.size, tokens) for source, tokens in right(comm, x))

    monkeypatch.setattr(overlapped, "around_ring", shifted)
    arrays = case(4)
    assert wrong(columns(4, np, *arrays), serial(*arrays)) == [True, False, True]
    assert wrong(rows(4, np, *arrays), serial(*arrays)) == [False, True, True]


def test_shards_in_another_order_give_a_sum_that_belongs_to_another_rank(monkeypatch):
    right = overlapped._shards
    monkeypatch.setattr(overlapped, "_shards", lambda x, size: right(x, size)[1:] + right(x, size)[:1])
    arrays = case(3)
    assert wrong(rows(3, np, *arrays), serial(*arrays)) == [True, False, True]


def test_a_share_that_is_not_added_leaves_only_one_ranks_product(monkeypatch):
    monkeypatch.setattr(overlapped, "_product", lambda comm, x, weight: 0 * x @ weight if comm.rank else x @ weight)
    arrays = case(3)
    assert wrong(rows(3, np, *arrays), serial(*arrays))[0]
