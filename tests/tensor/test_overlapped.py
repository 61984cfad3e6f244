"""Overlapped tensor parallelism: the product of a gather, its bytes, and less time."""

from fractions import Fraction

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab import Cluster, per_rank, run
from parlab.arrays import asarray, to_host
from parlab.tensor import all_gather_matmul, overlapped, overlapped_time
from tests.nn.parity import relative_error

LIBRARIES = {"numpy": np, "strict": array_api_strict}


def case(t, B=2, per=3, inputs=5, outputs=4, seed=0):
    """x [B, S, in t] and W of a column layer [in t, out t]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, t * per, t * inputs)), rng.standard_normal((t * inputs, t * outputs))


def cut(array, t, axis, xp=np):
    return per_rank([asarray(shard, xp) for shard in np.split(array, t, axis=axis)])


def columns(t, xp, x, weight):
    """y of a column layer whose tokens are cut."""
    done = run(all_gather_matmul, t, cut(x, t, 1, xp), cut(weight, t, 1, xp))
    return np.concatenate([to_host(shard) for shard in done.results], axis=2)


@pytest.mark.parametrize("library", LIBRARIES)
@given(
    t=st.integers(1, 9), B=st.integers(1, 3), per=st.integers(1, 4), inputs=st.integers(1, 4), outputs=st.integers(1, 4)
)
def test_y_equals_serial_to_1e_12(library, t, B, per, inputs, outputs):
    x, weight = case(t, B, per, inputs, outputs)
    assert relative_error(columns(t, LIBRARIES[library], x, weight), x @ weight) <= 1e-12


@pytest.mark.parametrize("t", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e12])
def test_it_takes_c_over_t_and_t_minus_1_times_the_longer_of_part_and_hop_and_sends_the_rings_bytes(t, bandwidth):
    cluster = Cluster.uniform(latency=1e-6, bandwidth=bandwidth, flops=1e9)
    x, weight = case(t)
    done = run(all_gather_matmul, t, cut(x, t, 1), cut(weight, t, 1), cluster=cluster).timeline
    product = Fraction(2 * x.size * weight.shape[1] * 1000, t)  # picoseconds of one rank's whole product
    hop = 10**6 + x.nbytes // t * 10**12 // int(bandwidth)  # picoseconds
    assert done.makespan == overlapped_time(product, hop, t)
    assert [done.bytes_sent(rank) for rank in range(t)] == [x.nbytes // t * (t - 1)] * t
    assert [done.messages(rank) for rank in range(t)] == [t - 1] * t


def test_4_ranks_with_a_hop_as_long_as_a_part_take_4_parts_instead_of_7():
    assert overlapped_time(product=4, hop=1, ranks=4) == 4


def test_a_product_of_10_on_4_ranks_takes_10_since_its_parts_are_no_whole_numbers():
    assert overlapped_time(10, 1, 4) == 10


def test_tokens_that_are_said_to_be_the_right_neighbours_give_wrong_products(monkeypatch):
    right = overlapped.around_ring

    def shifted(comm, x):
        return (((source + 2) % comm.size, tokens) for source, tokens in right(comm, x))

    monkeypatch.setattr(overlapped, "around_ring", shifted)
    x, weight = case(4)
    assert relative_error(columns(4, np, x, weight), x @ weight) > 1e-3
