"""The closed forms, on the cases of the papers and of the older systems."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from parlab.sequence import (
    LAYOUTS,
    AttentionShape,
    allgather_cost,
    double_ring_cost,
    load_ratio,
    method_times,
    overlap_tokens,
    pair_flops,
    positions,
    ring_cost,
    tree_cost,
    ulysses_cost,
    unmasked_pairs,
    usp_cost,
    usp_time,
    window_cost,
)
from parlab.world import DGX_H100

TWELVE = AttentionShape(S=12, H=12, G=12, D=2, itemsize=4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("S", "size"), [(4, 1), (16, 2), (48, 3), (128, 8)])
def test_unmasked_pairs_are_those_counted_from_the_positions(S, size, layout):
    counted = [int(np.sum(np.array(tokens) + 1)) for tokens in positions(S, size, layout)]  # token t sees t + 1 keys
    assert unmasked_pairs(S, size, layout) == counted
    assert unmasked_pairs(S, size, layout, causal=False) == [S * S // size] * size


@pytest.mark.parametrize(
    ("layout", "c", "ratio"),
    [
        ("contiguous", 16, Fraction(15 * 16 + 1, 8 * 16 + 1)),
        ("contiguous", 1024, Fraction(15 * 1024 + 1, 8 * 1024 + 1)),
        ("zigzag", 16, Fraction(1)),
        ("striped", 16, Fraction(8 * 17, 8 * 16 + 1)),
        ("striped", 1024, Fraction(8 * 1025, 8 * 1024 + 1)),
    ],
)
def test_slowest_rank_over_the_mean_with_8_ranks(layout, c, ratio):
    assert load_ratio(8 * c, 8, layout) == float(ratio)


def test_slowest_rank_contiguous_tends_to_2_minus_1_over_p():
    assert load_ratio(8 * 10**6, 8) == pytest.approx(2 - 1 / 8, abs=1e-6)


def test_striped_load_is_1_05_at_c16_and_1_001_at_c1024():
    assert round(load_ratio(8 * 16, 8, "striped"), 2) == 1.05
    assert round(load_ratio(8 * 1024, 8, "striped"), 3) == 1.001


def test_hops_are_p_minus_1_forward_and_2p_minus_1_backward_and_none_alone():
    shape = AttentionShape(S=8, H=1, G=1, D=1, itemsize=4)
    hops = [[ring_cost(shape, size, backward=backward).messages for size in (1, 2, 4)] for backward in (False, True)]
    assert hops == [[0, 1, 3], [0, 3, 7]]


def test_b1_c1024_d64_g4_float32_p2_sends_2097152_bytes_in_a_hop():
    assert ring_cost(AttentionShape(S=2048, H=4, G=4, D=64, itemsize=4), 2)[:2] == (1, 2_097_152)


def test_backward_sends_kv_again_and_gradients_p_times_in_the_accumulators_dtype():
    S, size, H, G, D = 64, 4, 4, 2, 8
    shard = 2 * (S // size) * G * D

    def sent(itemsize, size=size, B=1):
        return ring_cost(AttentionShape(S, H, G, D, itemsize, B), size, backward=True).nbytes

    assert sent(itemsize=2) == (size - 1) * shard * 2 + size * shard * 4
    assert sent(itemsize=8) == (2 * size - 1) * shard * 8
    assert sent(itemsize=2, B=3) == 3 * sent(itemsize=2)
    assert sent(itemsize=4, size=1) == 0


def test_overlap_on_a100_bf16_needs_1040_tokens_on_nvlink_and_24960_on_infiniband():
    assert overlap_tokens(312e12, 300e9) == 1040
    assert overlap_tokens(312e12, 12.5e9) == 24_960


def test_overlap_needs_twice_the_tokens_half_masked_and_an_eighth_with_8_query_heads_a_kv_head():
    assert overlap_tokens(312e12, 300e9, half_masked=True) == 2080
    assert overlap_tokens(312e12, 300e9, kv_heads_per_query_head=1 / 8) == 130


def test_a_pair_costs_two_products_forward_and_five_backward():
    assert pair_flops(10, B=1, H=2, D=8) == 2 * (2 * 10 * 2 * 8)
    assert pair_flops(10, B=1, H=2, D=8, backward=True) == 5 * (2 * 10 * 2 * 8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ring_cost(TWELVE, 5), "sequence length 12 does not divide into 5 shards"),
        (lambda: ring_cost(TWELVE, 3, 3), "rank=3: the ranks of this group are 0 to 2"),
        (lambda: ulysses_cost(TWELVE, 2, -1), "rank=-1: the ranks of this group are 0 to 1"),
        (lambda: allgather_cost(TWELVE, 8), "sequence length 12 does not divide into 8 shards"),
        (lambda: tree_cost(TWELVE, 4, 4), "rank=4: the ranks of this group are 0 to 3"),
        (lambda: tree_cost(TWELVE, 4, queries=-1), "queries=-1: must be a whole number, at least 1"),
        (lambda: window_cost(TWELVE, 4, window=0), "window=0: must be a whole number, at least 1"),
        (lambda: ring_cost(TWELVE, 4, layout="zig"), "layout='zig': use one of contiguous, zigzag, striped"),
        (lambda: usp_time(TWELVE, 4, DGX_H100, ulysses=3), "ulysses=3: must divide the 4 ranks: use one of [1, 2, 4]"),
        (lambda: usp_cost(TWELVE, 4, ulysses=3), "ulysses=3: must divide the 4 ranks: use one of [1, 2, 4]"),
        (lambda: double_ring_cost(TWELVE, 4, ranks_per_node=3), "ranks_per_node=3: must divide the 4 ranks"),
        (lambda: method_times(TWELVE, 2, "H100"), "cluster='H100': must be a Cluster"),
    ],
)
def test_a_cost_of_what_there_is_not_is_refused(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
