"""Gradients synchronised over the sequence group, and the numbers of a run."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parlab import Cluster, per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.sequence import (
    PATTERNS,
    AttentionShape,
    ring_attention,
    ring_attention_backward,
    ring_cost,
    sequence_statistics,
    synchronise_gradients,
    window_attention,
)
from parlab.world import MismatchError
from parlab.world.collectives import ring_all_reduce_cost
from tests.libraries import EACH_LIBRARY
from tests.nn.parity import assert_parity

B, H, G, S, D = 1, 4, 2, 32, 8


def gradients_of(rank, library=np):
    draw = np.random.default_rng([17, rank])
    return {
        "b": [asarray(draw.normal(size=(3, 5)), library), asarray(draw.normal(size=()), library)],
        "a": (asarray(draw.normal(size=7).astype(np.float32), library, library.float32),),
    }


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("library", EACH_LIBRARY)
def test_gradients_are_the_mean_on_every_rank_and_the_same_to_the_bit(size, library):
    done = run(synchronise_gradients, size, per_rank([gradients_of(rank, library) for rank in range(size)]))
    each = [gradients_of(rank) for rank in range(size)]
    for found in done.results:
        b, a = found["b"], found["a"]
        assert_parity(b, [np.mean([one["b"][i] for one in each], axis=0) for i in (0, 1)])
        assert_parity(a, [np.mean([one["a"][0] for one in each], axis=0)], tolerance=1e-6)
        assert (type(b), type(a)) == (list, tuple)
        for mine, first in zip([*b, *a], [*done.results[0]["b"], *done.results[0]["a"]], strict=True):
            assert np.array_equal(to_numpy(mine), to_numpy(first))
            assert mine.dtype == first.dtype


def test_one_all_reduce_for_each_dtype():
    timeline = run(synchronise_gradients, 4, per_rank([gradients_of(rank) for rank in range(4)])).timeline
    link = Cluster.uniform(0, 1).intra
    costs = [ring_all_reduce_cost(4, 16, 8, link), ring_all_reduce_cost(4, 7, 4, link)]
    for rank in range(4):
        assert timeline.messages(rank) == sum(cost.messages[rank] for cost in costs)
        assert timeline.bytes_sent(rank) == sum(cost.nbytes[rank] for cost in costs)


def test_gradients_that_are_no_floating_arrays_or_differ_between_ranks_are_refused():
    with pytest.raises(ValueError, match=re.escape("gradients has an array of int64: a mean needs floating numbers")):
        run(synchronise_gradients, 1, {"w": np.arange(3)})
    with pytest.raises(ValueError, match=re.escape("gradients['w'] is 1.0 (float)")):
        run(synchronise_gradients, 1, {"w": 1.0})
    with pytest.raises(MismatchError):
        run(synchronise_gradients, 2, per_rank([{"w": np.ones(3)}, {"w": np.ones(4)}]))


def train_step(comm, q, k, v, weights, causal):
    out, lse = ring_attention(comm, q, k, v, causal=causal)
    ring_attention_backward(comm, out, q, k, v, out, lse, causal=causal)
    return synchronise_gradients(comm, weights)


def step_of(size, causal=False, **how):
    draw = np.random.default_rng(18)
    q, k, v = (draw.normal(size=(B, heads, S // size, D)) for heads in (H, G, G))
    return run(train_step, size, q, k, v, {"w": np.ones(40)}, causal, **how)


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_of_attention_and_of_gradients_are_their_closed_forms(size):
    found = sequence_statistics(step_of(size))
    shape = AttentionShape(S, H, G, D, itemsize=8, B=B)
    attention = [ring_cost(shape, size, backward=backward).nbytes for backward in (False, True)]
    assert found.attention_bytes == [sum(attention)] * size
    assert found.gradient_bytes == ring_all_reduce_cost(size, 40, 8, Cluster.uniform(0, 1).intra).nbytes
    assert found.attends == [2 * size] * size


def test_a_contiguous_causal_ring_attends_once_more_on_each_rank():
    assert sequence_statistics(step_of(4, causal=True)).attends == [2, 4, 6, 8]


def test_times_are_counted_once_where_messages_overlap_and_by_their_kind():
    """On two ranks each hop leaves and arrives at once: one K/V, one K/V and dK/dV, then dK/dV come home."""
    cluster = Cluster.uniform(latency=1, bandwidth=1e15, flops=1e30)
    done = step_of(2, cluster=cluster)
    found, timeline = sequence_statistics(done), done.timeline
    hops = [t for t in timeline.transfers if t.src == 0 and t.name == "message"]
    reduced = [t for t in timeline.transfers if t.src == 0 and t.name == "all_reduce"]
    assert (len(hops), len(reduced)) == (4, 2)
    assert found.attention_transfer_time[0] == sum(t.end - t.start for t in hops)
    assert found.gradient_transfer_time[0] == sum(t.end - t.start for t in reduced)
    assert found.attention_transfer_time[0] + found.gradient_transfer_time[0] <= timeline.makespan
    assert found.efficiency < 1e-6
    assert sequence_statistics(done.on(Cluster.uniform(0, 1e15, flops=1e3))).efficiency > 0.99


def test_a_second_attend_on_the_same_kv_is_reuse():
    def program(comm, x):
        y = comm.sendrecv(x, comm.right, comm.left)
        for _ in range(4):
            comm.compute("attend", seconds=1e-6)
        return y

    found = sequence_statistics(run(program, 2, np.ones(8)))
    assert (found.reuse, found.attends) == (3 / 4, [4, 4])


def test_peak_bytes_and_efficiency_are_the_timelines():
    done = run(window_attention, 4, *np.ones((3, 1, 1, 4, 8)), window=4)  # rank 0 has no neighbour on its left
    found = sequence_statistics(done)
    assert found.peak_bytes == [done.timeline.peak_bytes(rank) for rank in range(4)]
    assert found.peak_bytes[0] < found.peak_bytes[1]
    assert done.timeline.busy(0) < done.timeline.busy(1)
    assert found.efficiency == sum(map(done.timeline.busy, range(4))) / 4 / done.timeline.makespan


def test_a_run_without_attention_has_zeros():
    found = sequence_statistics(run(lambda comm: None, 2))
    assert (found.attends, found.attention_bytes, found.reuse, found.efficiency) == ([0, 0], [0, 0], 0, 0)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_of_attention_is_taken_for_gradients(pattern):
    x = np.ones((1, 4, 4, 8))
    how = {"hierarchical": {"ranks_per_node": 2}, "point_to_point": {"window": 4}}.get(pattern, {})
    done = run(PATTERNS[pattern][0], 4, x, x, x, **how)
    found = sequence_statistics(done)
    assert found.attention_bytes == [done.timeline.bytes_sent(rank) for rank in range(4)] != [0] * 4
    assert found.gradient_bytes == [0] * 4
    assert min(found.attends) >= 1
