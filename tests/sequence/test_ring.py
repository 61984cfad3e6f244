"""Ring attention: parity with dense attention, and what it sends, holds and waits for."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest

from parlab import Cluster, per_rank, run
from parlab.sequence import (
    LAYOUTS,
    pair_flops,
    ring_attention,
    ring_attention_backward,
    shard,
    unmasked_pairs,
)
from tests.sequence.methods import method_error, pair, visible, whole
from tests.sequence.rings import both, draw_inputs

FREE = Cluster.uniform(latency=0, bandwidth=float("inf"), flops=1e12)  # a flop is a picosecond, a message nothing


# Parity


@pytest.mark.parametrize("size", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_ring_of_1_to_8_ranks_matches_dense_to_1e_12(size, layout, causal):
    assert method_error(pair("ring"), size, (2, 8, 1, 4 * size, 3), layout=layout, causal=causal) <= 1e-12


def test_shards_that_were_passed_in_are_not_changed():
    inputs = [x.copy() for x in draw_inputs(1, 2, 1, 8, 3)]

    def program(comm, dout, q, k, v):
        before = [x.copy() for x in (dout, q, k, v)]
        out, lse = ring_attention(comm, q, k, v, causal=True)
        before += [out.copy(), lse.copy()]
        ring_attention_backward(comm, dout, q, k, v, out, lse, causal=True)
        return all(np.array_equal(a, b) for a, b in zip(before, (dout, q, k, v, out, lse), strict=True))

    assert run(program, 4, *(per_rank(shard(x, 4)) for x in inputs)).results == [True] * 4


# Messages


def forward_run(size, layout, causal, c, B=1, H=2, G=1, D=4):
    _, q, k, v = (per_rank(shard(x, size, layout)) for x in draw_inputs(B, H, G, c * size, D))
    return run(ring_attention, size, q, k, v, causal=causal, layout=layout)


def backward_run(size, layout, causal, c, B=1, H=2, G=1, D=4):
    inputs = draw_inputs(B, H, G, c * size, D)
    out, lse, *_ = whole(inputs, visible(c * size, causal))
    shards = [per_rank(shard(x, size, layout)) for x in (*inputs, out)]
    return run(
        ring_attention_backward, size, *shards, per_rank(shard(lse, size, layout, -1)), causal=causal, layout=layout
    )


def test_both_passes_attend_inside_the_spans_that_a_clock_measures():
    entered = []

    class Watched:
        def __init__(self, comm):
            self.comm = comm

        def __getattr__(self, name):
            return getattr(self.comm, name)

        @contextmanager
        def compute(self, name, **how):
            with self.comm.compute(name, **how):
                entered.append(name)
                yield

    def program(comm):
        x = np.ones((1, 1, 2, 2))
        both(Watched(comm), x, x, x, x)

    run(program, 2)
    assert sorted(entered) == ["attend"] * 4 + ["attend backward"] * 4


# The simulated clock


def compute_time(timeline, rank):
    return sum(span.end - span.start for span in timeline.computes if span.rank == rank)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("layout", "ratio"),
    [
        ("contiguous", Fraction(15 * 16 + 1, 8 * 16 + 1)),
        ("zigzag", Fraction(1)),
        ("striped", Fraction(8 * 17, 8 * 16 + 1)),
    ],
)
def test_8_ranks_causal_c16_the_slowest_rank_over_the_mean_is_exact(layout, ratio, backward):
    done = (backward_run if backward else forward_run)(8, layout, True, 16)
    timeline = done.on(FREE)
    times = [compute_time(timeline, rank) for rank in range(8)]
    assert Fraction(max(times) * 8, sum(times)) == ratio
    pairs = unmasked_pairs(128, 8, layout)
    assert times == [pair_flops(n, B=1, H=2, D=4, backward=backward) for n in pairs]
    assert timeline.makespan == max(times)  # no other rank makes the slowest one wait


def overlap_cluster(tokens, itemsize=8, kv_heads_per_query_head=0.5):
    """Links on which exactly shards of `tokens` hide their transfers, all pairs unmasked: 4 c² D H flops against
    2 c D G itemsize bytes.
    """
    return Cluster.uniform(latency=0, bandwidth=itemsize / 2 * kv_heads_per_query_head * 1e12 / tokens, flops=1e12)


@pytest.mark.parametrize(
    ("c", "causal", "layout", "hidden_from"),
    [
        *((8, False, layout, 8) for layout in LAYOUTS),
        (16, True, "zigzag", 8),  # half of the pairs is masked: the shards need twice the tokens
        (16, True, "striped", 7.5),  # ... and one token more
    ],
)
def test_shards_hide_their_transfers_from_the_overlap_bound_on_and_causal_ones_from_twice_that(
    c, causal, layout, hidden_from
):
    done = forward_run(4, layout, causal, c)
    for tokens in (hidden_from / 2, hidden_from, 10, 16):
        timeline = done.on(overlap_cluster(tokens))
        busiest = max(compute_time(timeline, rank) for rank in range(4))
        assert (timeline.makespan == busiest) == (tokens <= hidden_from)


def test_backward_on_a_fast_link_shows_only_the_hop_that_brings_the_gradients_home():
    cluster = overlap_cluster(0.5)
    timeline = backward_run(4, "zigzag", True, c=16).on(cluster)
    home = cluster.intra.picoseconds(2 * 16 * 1 * 4 * 8)
    assert timeline.makespan == compute_time(timeline, 0) + home
