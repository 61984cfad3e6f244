"""The closed forms, on the cases of the papers and of the older systems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.sequence import (
    FLASH_ATTENTION_3,
    LAYOUTS,
    AttentionShape,
    RingSchedule,
    pair_flops,
    positions,
    ring_attention,
    ring_attention_backward,
    ring_cost,
    score_memory_savings,
    shard,
    unmasked_pairs,
    usp_time,
)
from parlab.world import DGX_H100, Cluster

TWELVE = AttentionShape(S=12, H=12, G=12, D=2, itemsize=4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("S", "size"), [(4, 1), (16, 2), (48, 3), (128, 8)])
def test_unmasked_pairs_are_those_counted_from_the_positions(S, size, layout):
    counted = [int(np.sum(np.array(tokens) + 1)) for tokens in positions(S, size, layout)]  # token t sees t + 1 keys
    assert unmasked_pairs(S, size, layout) == counted
    assert unmasked_pairs(S, size, layout, causal=False) == [S * S // size] * size


@pytest.mark.parametrize(("size", "saved"), [(1, 0), (2, 1 / 2), (8, 7 / 8)])
def test_a_ring_of_8_saves_7_eighths_of_the_scores_the_rest_is_what_its_tiles_have(size, saved):
    tiles = [RingSchedule(size - 1, size).tile(source, 4, causal=False) for source in range(size)]
    assert 1 - sum(tile.pairs for tile in tiles) / (4 * size) ** 2 == score_memory_savings(size) == saved


def test_b1_c1024_d64_g4_float32_p2_sends_2097152_bytes_in_a_hop():
    assert ring_cost(AttentionShape(S=2048, H=4, G=4, D=64, itemsize=4), 2)[:2] == (1, 2_097_152)


def test_two_documents_of_6_on_3_ranks_send_2_1_2_messages_where_nothing_is_causal_the_default():
    # Ranks 0, 1, 2 hold tokens 0-3, 4-7, 8-11, so rank 1 has a part of both documents. The K/V of rank 0 are read on
    # rank 1 and go 0 -> 1. Those of rank 1 are read on ranks 2 and 0 and go 1 -> 2 -> 0. Those of rank 2 are read on
    # rank 1, and pass rank 0 on their way: 2 -> 0 -> 1. So rank 0 sends two, rank 1 one, rank 2 two, of 4 tokens each.
    shape = AttentionShape(S=12, H=1, G=1, D=1, itemsize=8)  # K/V of a token: 16 bytes
    costs = [ring_cost(shape, 3, rank, documents=[0, 6, 12]) for rank in range(3)]
    assert [cost[:2] for cost in costs] == [(2, 128), (1, 64), (2, 128)]


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
    below, above = (2 * int(bound / 2) - 2, 2 * math.ceil(bound / 2))
    for c, hidden in ((below, False), (above, True)):
        makespan, work, home = ring_of_zigzag(c, latency, backward)
        shows = makespan - work - (home if backward else 0)  # the last hop home has no work beside it
        assert (shows < 10) == hidden, (c, shows)  # 10 ps: the clock rounds each hop


@pytest.mark.parametrize(
    ("ranks", "tokens", "waits"), [(64, 2**20, True), (64, 1_640_000, True), (64, 1_650_048, False), (128, 2**21, True)]
)
def test_64_h100s_wait_for_nothing_from_1_65_million_tokens_on_and_128_with_twice_the_text_still_wait(
    ranks, tokens, waits
):
    shape = AttentionShape(S=tokens // 128 * 128, H=32, G=32, D=128, itemsize=2)
    flops, link = FLASH_ATTENTION_3 * DGX_H100.device.flops, DGX_H100.inter
    takes, works = (
        usp_time(shape, ranks, Cluster.uniform(*of, flops=flops), ulysses=1)
        for of in ((link.latency, link.bandwidth), (0.0, 1e30))
    )
    assert (takes > works * 1.0001) == waits


def test_the_published_zigzag_rings_hide_their_messages():
    """8 192 tokens a rank with the heads of Llama 3.1 8B: at the published speed on one GPU, and at the peak."""
    iteration = pair_flops(8192**2 // 2, 1, 32, 128)  # causal
    speeds = [times * iteration for times in (591.5, 373.4)]  # a second: an H800, an A100
    assert speeds == [pytest.approx(325e12, rel=1e-2), pytest.approx(205e12, rel=1e-2)]
    a_token, a_pair = 2 * 2 * 8 * 128, 4 * 32 * 128  # bytes of its K/V in 16 bits, FLOPs
    for F, W, needed in (*zip(speeds, (200e9, 300e9), (813, 342), strict=True), (989e12, 200e9, 2472)):
        assert 2 * a_token / a_pair * F / W == pytest.approx(needed, abs=1)  # half of the pairs are masked
        assert needed < 8192


def test_calls_and_merges_after_each_tile_cost_the_published_ring_5_3_percent_on_h800s():
    """Forward, with 32 heads; its batch API reaches 85.2 % of P times one GPU's speed."""
    own = pair_flops(8192**2 // 2, 1, 32, 128) / 325e12
    half, seven = own, 7 * (8e-6 + 10 * 8192 * 32 * 128 / 3.35e12)
    assert seven / (own + 7 * half + seven) == pytest.approx(0.053, abs=0.0005)


def test_a_pair_costs_two_products_forward_and_five_backward():
    assert pair_flops(10, B=1, H=2, D=8) == 2 * (2 * 10 * 2 * 8)
    assert pair_flops(10, B=1, H=2, D=8, backward=True) == 5 * (2 * 10 * 2 * 8)
