"""The closed forms, on the cases of the papers and of the older systems."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.sequence import (
    FLASH_ATTENTION_3,
    LAYOUTS,
    AttentionShape,
    allgather_cost,
    double_ring_cost,
    hidden_from,
    load_ratio,
    method_times,
    overlap_tokens,
    pair_flops,
    positions,
    ring_attention,
    ring_attention_backward,
    ring_cost,
    ring_time,
    shard,
    tree_cost,
    ulysses_cost,
    unmasked_pairs,
    usp_cost,
    usp_time,
    window_cost,
)
from parlab.world import DGX_H100, Cluster

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


def ring_of_zigzag(c, latency, backward):
    """(makespan, work, bytes of a gradient hop) of 4 ranks: 1 TFLOP/s, 50 GB/s, 4 heads of size 8 in float32."""
    x = [np.zeros((1, 4, 4 * c, 8), np.float32)] * 3
    q, k, v = (per_rank(shard(y, 4, "zigzag")) for y in x)
    lse = per_rank(shard(np.zeros((1, 4, 4 * c), np.float32), 4, "zigzag", axis=2))
    how = {"causal": True, "layout": "zigzag", "cluster": Cluster.uniform(latency, 50e9, flops=1e12)}
    if backward:
        done = run(ring_attention_backward, 4, q, q, k, v, q, lse, **how)
    else:
        done = run(ring_attention, 4, q, k, v, **how)
    return done.timeline.makespan, done.timeline.busy(0), latency * 1e12 + c * 2 * 4 * 8 * 4 / 50e9 * 1e12


@pytest.mark.parametrize(
    ("latency", "backward", "bound"),
    [(0, False, 80.0), (0, True, 64.0), (1e-6, False, 171.24404748406687), (1e-6, True, 148.29273408085305)],
)
def test_zigzags_bound_on_the_clock_is_80_tokens_forward_64_backward_and_later_with_latency(latency, backward, bound):
    late = {"latency": latency, "width": 4 * 8}
    assert overlap_tokens(1e12, 50e9, 4, half_masked=True, backward=backward, **late) == pytest.approx(bound, rel=1e-12)
    below, above = (2 * int(bound / 2) - 2, 2 * math.ceil(bound / 2))
    for c, hidden in ((below, False), (above, True)):
        makespan, work, home = ring_of_zigzag(c, latency, backward)
        shows = makespan - work - (home if backward else 0)  # the last hop home has no work beside it
        assert (shows < 10) == hidden, (c, shows)  # 10 ps: the clock rounds each hop


def test_in_bf16_the_backward_needs_1_2_times_the_tokens_of_the_forward():
    """K/V of 2 bytes and their gradients of 4, for 2.5 times the flops."""
    assert overlap_tokens(312e12, 300e9, backward=True) == pytest.approx(1.2 * overlap_tokens(312e12, 300e9))


@pytest.mark.parametrize(
    ("itemsize", "backward", "moved", "operations", "tokens"),
    [(4, False, 8, 4, 80), (4, True, 8 + 8, 10, 64), (2, False, 4, 4, 40), (2, True, 4 + 8, 10, 48)],
)
def test_the_way_back_is_hidden_from_80_64_40_and_48_tokens(itemsize, backward, moved, operations, tokens):
    """1 TFLOP/s, 50 GB/s, as many K/V heads as query heads: the bytes over the operations, times F/W = 20, times 2."""
    token = AttentionShape(S=1, H=1, G=1, D=1, itemsize=itemsize).token(backward=backward)
    assert (token.kv + token.dkv, pair_flops(1, 1, 1, 1, backward=backward)) == (moved, operations)
    bound = overlap_tokens(1e12, 50e9, itemsize, half_masked=True, backward=backward)
    assert bound == pytest.approx(tokens) == 2 * 20 * moved / operations


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("H", "G", "itemsize"), [(4, 4, 4), (32, 8, 2), (32, 1, 2), (8, 2, 8)])
def test_hidden_from_the_operations_of_a_pair_and_the_bytes_of_a_token_is_the_same_bound(H, G, itemsize, backward):
    token = AttentionShape(S=1, H=H, G=G, D=16, itemsize=itemsize).token(backward=backward)
    bound = hidden_from(pair_flops(1, 1, H, 16, backward=backward), token.kv + token.dkv, 3e14, 2e10)
    assert bound == pytest.approx(
        overlap_tokens(3e14, 2e10, itemsize, G / H, half_masked=True, backward=backward), rel=1e-12
    )


def test_with_gradients_in_bf16_as_transformer_engine_sends_them_the_way_back_needs_0_8_times_the_tokens():
    there, back = hidden_from(4, 2 * 2, 1e12, 50e9), hidden_from(10, 2 * 2 + 2 * 2, 1e12, 50e9)
    assert (there, back) == (40, 32)


@pytest.mark.parametrize("name", ["flops", "nbytes", "F", "W"])
def test_a_bound_of_nothing_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"^{name}=0"):
        hidden_from(**dict.fromkeys(("flops", "nbytes", "F", "W"), 1) | {name: 0})


def test_at_408_tflops_64_ranks_with_16384_tokens_each_wait_for_nothing_and_at_410_they_do():
    link = DGX_H100.inter
    needed = [
        overlap_tokens(speed, link.bandwidth, 2, half_masked=True, latency=link.latency, width=32 * 128)
        for speed in (408e12, 410e12)
    ]
    assert needed[0] < 2**20 / 64 < needed[1]


@pytest.mark.parametrize(
    ("ranks", "tokens", "waits"), [(64, 2**20, True), (64, 1_640_000, True), (64, 1_650_048, False), (128, 2**21, True)]
)
def test_64_h100s_wait_for_nothing_from_1_65_million_tokens_on_and_128_with_twice_the_text_still_wait(
    ranks, tokens, waits
):
    shape = AttentionShape(S=tokens // 128 * 128, H=32, G=32, D=128, itemsize=2)
    flops, link = FLASH_ATTENTION_3 * DGX_H100.device_of(0).flops, DGX_H100.inter
    takes, works = (
        ring_time(shape, ranks, Cluster.uniform(*of, flops=flops))
        for of in ((link.latency, link.bandwidth), (0.0, 1e30))
    )
    assert (takes > works * 1.0001) == waits


def test_a_latency_of_9_6_us_moves_the_bound_of_the_million_tokens_by_a_thousandth():
    flops, link = FLASH_ATTENTION_3 * DGX_H100.device_of(0).flops, DGX_H100.inter
    none, late = (
        overlap_tokens(flops, link.bandwidth, 2, half_masked=True, latency=latency, width=32 * 128)
        for latency in (0.0, link.latency)
    )
    assert late / none == pytest.approx(1.001, abs=2e-4)


def test_the_published_zigzag_rings_hide_their_messages():
    """8 192 tokens a rank with the heads of Llama 3.1 8B: at the published speed on one GPU, and at the peak."""
    iteration = pair_flops(8192**2 // 2, 1, 32, 128)  # causal
    speeds = [times * iteration for times in (591.5, 373.4)]  # a second: an H800, an A100
    assert speeds == [pytest.approx(325e12, rel=1e-2), pytest.approx(205e12, rel=1e-2)]
    needed = [overlap_tokens(F, W, 2, 8 / 32, half_masked=True) for F, W in zip(speeds, (200e9, 300e9), strict=True)]
    assert needed == [pytest.approx(813, abs=1), pytest.approx(342, abs=1)]
    assert overlap_tokens(989e12, 200e9, 2, 8 / 32, half_masked=True) < 8192


@pytest.mark.parametrize(("speed", "bounds"), [(FLASH_ATTENTION_3, (25_743, 3_434)), (1.0, (39_590, 5_169))])
def test_a_million_tokens_on_64_h100s_wait_with_32_kv_heads_and_not_with_4_at_650_of_989_and_at_the_peak(speed, bounds):
    flops, link = speed * DGX_H100.device_of(0).flops, DGX_H100.inter
    cluster = Cluster.uniform(link.latency, link.bandwidth, flops=flops)
    for G, bound in zip((32, 4), bounds, strict=True):
        late = {"latency": link.latency, "width": 32 * 128}
        needed = overlap_tokens(flops, link.bandwidth, 2, G / 32, half_masked=True, **late)
        shape = AttentionShape(S=2**20, H=32, G=G, D=128, itemsize=2)
        work = pair_flops(unmasked_pairs(2**20, 64, "zigzag")[0], 1, 32, 128) / flops * 1e12
        assert needed == pytest.approx(bound, abs=1)
        assert (usp_time(shape, 64, cluster, ulysses=1) <= work * (1 + 1e-9)) == (needed <= 16_384) == (G == 4)


def test_a_latency_needs_the_width():
    with pytest.raises(ValueError, match="latency=1e-06: needs width="):
        overlap_tokens(1e12, 1e9, latency=1e-6)


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
