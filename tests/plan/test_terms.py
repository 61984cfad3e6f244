"""Each term of the seconds by hand: the bytes and FLOPs that the papers count, over the paces that are reached."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parlab.nn import LlamaConfig
from parlab.plan import A100, H100, LLAMA_3, LLAMA_8B, MEGATRON, GPTConfig, Layout, Software, estimate
from parlab.plan.machine import Machine
from parlab.world import CLASSROOM, DGX_A100, DGX_H100, Cluster

V, E, H, S = 1000, 512, 8, 256
GPT = GPTConfig(V, E, 1, H)
MEMORY = 0.8 * DGX_A100.device.memory_bandwidth
FLOPS = 0.76 * DGX_A100.device.flops
START = 8.4e-6  # of a collective


def product(m, k, n):
    """On 108 processors of an A100."""
    waves = min(
        math.ceil(math.ceil(m / a) * math.ceil(n / b) / 108) * a * b for a, b in ((256, 128), (128, 256), (128, 128))
    )
    return max(2 * k * 108 * waves / FLOPS, 2 * (m * k + k * n + m * n) / MEMORY)


def gpt(**knobs):
    return estimate(GPT, DGX_A100, Layout(**knobs), batch=1, sequence=S, software=MEGATRON).seconds


def llama(sequence, batch=1, **knobs):
    return estimate(LLAMA_8B, DGX_H100, Layout(**knobs), batch=batch, sequence=sequence).seconds


def ring(nbytes, ranks):
    """A turn in a node of H100s."""
    return START + (ranks - 1) * (DGX_H100.intra.latency + nbytes / ranks / (0.78 * DGX_H100.intra.bandwidth))


@pytest.mark.parametrize(
    ("m", "n", "used"),
    [
        (2048, 2304, 288 / 324),  # 144 tiles of 256 x 128 in 2 waves: 144/216; 288 of 128 x 128 in 3 waves are better
        (128, 128, 1 / 108),
        (256, 13824, 1),  # 108 tiles of 256 x 128
        (100, 100, 100 * 100 / (108 * 128 * 128)),  # a part of one tile
    ],
)
def test_a_product_of_2048_by_2304_uses_288_of_324_places_of_3_waves_and_one_of_a_tile_1_of_108(m, n, used):
    assert Machine(DGX_A100).busy(m, n) == pytest.approx(used, rel=1e-12)
    assert Machine(CLASSROOM).busy(m, n) == 1


@pytest.mark.parametrize("k", [64, 8192])
def test_a_product_takes_the_longer_of_its_flops_and_its_bytes(k):
    """A short k is bound by memory: 64 FLOPs for each element of the result, against 2 bytes to write it."""
    m = n = 1536  # 72 tiles of 256 x 128
    found = Machine(DGX_A100).product(m, k, n, 2)
    by_flops, by_bytes = 2 * k * 108 * 256 * 128 / FLOPS, 2 * (m * k + k * n + m * n) / MEMORY
    assert (by_bytes > by_flops) == (k == 64)
    assert found == pytest.approx(max(by_flops, by_bytes), rel=1e-12)


def test_a_gpts_products_are_those_of_4_matrices_and_the_head_with_dx_and_dw_in_their_own_tiles():
    shapes = [(E, 3 * E), (E, E), (E, 4 * E), (4 * E, E), (E, V)]
    expected = sum(product(S, k, n) + product(S, n, k) + product(k, S, n) for k, n in shapes)
    assert gpt()["products"] == pytest.approx(expected, rel=1e-12)


def test_unfused_attention_is_2_products_of_whole_scores_and_9_bytes_a_score():
    scores = H * S * S
    products = 2 * 2 * scores * E / H / (0.8 * DGX_A100.device.flops) + (2 * 2 * scores + 4 * 2 * S * E) / MEMORY
    expected = products + 9 * scores / MEMORY
    assert gpt(recompute="selective")["recomputation"] == pytest.approx(expected, rel=1e-12)
    backward = 2 * products + 1.8 * 9 * scores / MEMORY
    assert gpt()["attention"] == pytest.approx(expected + backward, rel=1e-12)


def test_a_gpts_elementwise_bytes_are_38_E_a_token_52_a_logit_and_its_row_of_the_table():
    layer = 38 * E * S * (1 + 1.8)
    assert gpt()["elementwise"] == pytest.approx((layer + 52 * S * V + 2 * 2 * 2 * S * E) / MEMORY, rel=1e-12)


def test_an_update_moves_64_bytes_a_parameter_or_28_in_the_host_and_4_over_its_link():
    params = GPT.num_parameters
    assert gpt(zero=0)["optimizer"] == pytest.approx(64 * params / MEMORY, rel=1e-12)
    expected = 4 * params / A100.host_link + 28 * params / A100.host_memory
    assert gpt(zero=0, offload=True)["optimizer"] == pytest.approx(expected, rel=1e-12)


def test_fused_attention_is_7_products_of_causal_pairs_an_exponential_each_way_and_its_rows_three_times():
    S, device = 4096, DGX_H100.device
    pairs, rows = 32 * S * (S + 1) / 2, 2 * 2 * S * 128 * (32 + 8)
    expected = 7 * 2 * 128 * pairs / (0.657 * device.flops) + 2 * pairs / H100.exponentials
    expected += 3 * rows / (0.8 * device.memory_bandwidth)
    assert llama(S)["attention"] == pytest.approx(32 * expected, rel=1e-12)


def test_a_llamas_elementwise_bytes_are_20_E_6_M_and_4_of_each_rotated_column():
    S, E, M, V = 4096, 4096, 14336, 128256
    layer = S * (20 * E + 6 * M + 4 * (32 + 8) * 128) * (1 + 1.8)
    expected = (32 * layer + 52 * S * V + 2 * 2 * 2 * S * E) / (0.8 * DGX_H100.device.memory_bandwidth)
    assert llama(S)["elementwise"] == pytest.approx(expected, rel=1e-12)


def test_in_float32_a_llamas_elementwise_bytes_are_40_E_12_M_8_of_each_rotated_column_56_a_logit_and_16_of_its_row():
    """Twice those of 16 bits, but for the loss, which is in float32 in both: 40 and 16 bytes a logit, not 38 and 14."""
    S, E, M, V = 4096, 4096, 14336, 128256
    layer = S * (40 * E + 12 * M + 8 * (32 + 8) * 128) * (1 + 1.8)
    expected = (32 * layer + (40 + 16) * S * V + 2 * 2 * 4 * S * E) / (0.8 * DGX_H100.device.memory_bandwidth)
    found = estimate(LLAMA_8B, DGX_H100, Layout(), batch=1, sequence=S, itemsize=4).seconds
    assert found["elementwise"] == pytest.approx(expected, rel=1e-12)


def test_in_float32_unfused_attention_touches_17_bytes_a_score_and_a_gpts_layer_74_E_a_token():
    """Softmax and dropout read and write 4 bytes each, and a byte of the mask; two masks of a layer's outputs too."""
    scores, found = H * S * S, estimate(GPT, DGX_A100, Layout(), batch=1, sequence=S, itemsize=4).seconds
    products = 2 * 2 * scores * E / H / (0.8 * DGX_A100.device.flops) + (2 * 4 * scores + 4 * 4 * S * E) / MEMORY
    assert found["attention"] == pytest.approx(3 * products + (1 + 1.8) * 17 * scores / MEMORY, rel=1e-12)
    layer = (2 * 2 * 4 + 2 * (3 * 4 + 1) + 2 * 4 * 4) * E * S * (1 + 1.8)  # norms, residuals and their masks, GELU
    assert found["elementwise"] == pytest.approx((layer + 56 * S * V + 2 * 2 * 4 * S * E) / MEMORY, rel=1e-12)


def test_in_float32_swiglu_made_again_moves_12_bytes_a_column_and_gathered_logits_are_joined_by_16_and_8_bytes_each():
    S, M, V, pace = 4096, 14336, 128256, 0.8 * DGX_H100.device.memory_bandwidth
    asked = {"batch": 1, "sequence": S, "itemsize": 4}
    again = estimate(LLAMA_8B, DGX_H100, Layout(recompute="mlp.hidden"), **asked).seconds["recomputation"]
    assert again == pytest.approx(32 * 12 * S * M / pace, rel=1e-12)
    asked["layout"] = Layout(tp=2)
    gathered, cut = (
        estimate(LLAMA_8B, DGX_H100, software=software, **asked).seconds["elementwise"]
        for software in (LLAMA_3.but(cuts_logits=False), LLAMA_3)
    )
    assert gathered - cut == pytest.approx((56 + 16 + 8 - 56 / 2) * S * V / pace, rel=1e-9)


@pytest.mark.parametrize("c", [2, 4])
def test_a_ring_behind_long_attention_waits_for_one_hop_of_gradients_and_merges_three_quarters_of_the_rows(c):
    S = 131072
    hop = DGX_H100.intra.latency + 4 * 2 * S / c * 8 * 128 / (0.78 * DGX_H100.intra.bandwidth)
    merged = 0.75 * (c - 1) * S / c * 32 * 128 * ((2 + 16) + (6 + 16)) / (0.8 * DGX_H100.device.memory_bandwidth)
    assert llama(S, cp=c)["cp"] == pytest.approx(32 * (hop + merged), rel=1e-12)


def test_one_chunk_a_rank_waits_for_its_first_weights_and_for_the_last_pass_of_its_gradients_whole():
    """Gradients are twice as long as weights: 4 bytes."""
    weights, gradients = (ring(size * LLAMA_8B.num_parameters, 8) for size in (2, 4))
    found = [llama(4096, batch=16, dp=8, zero=stage)["dp"] for stage in (0, 1, 2, 3)]
    expected = [2 * gradients, gradients + weights, gradients + weights, gradients + 2 * weights]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("faster", [8, 100])
def test_a_ring_that_leaves_a_node_by_all_ports_keeps_the_pace_inside_at_most(faster):
    """Eight ports of an eighth of the pace inside are as fast as that; faster ones are not."""
    link = replace(DGX_H100.inter, bandwidth=faster * DGX_H100.intra.bandwidth)
    found = estimate(LLAMA_8B, replace(DGX_H100, inter=link), Layout(dp=16, zero=0), batch=16, sequence=4096).seconds
    turn = START + 15 * (link.latency + 4 * LLAMA_8B.num_parameters / 16 / (0.78 * DGX_H100.intra.bandwidth))
    assert found["dp"] == pytest.approx(2 * turn, rel=1e-12)


@pytest.mark.parametrize("knobs", [dict(pp=4, tp=4, dp=2), dict(tp=8, cp=2), dict(tp=8, dp=2)], ids=str)
def test_two_ranks_of_dp_times_cp_that_share_no_node_have_one_port(knobs):
    """The ranks of tp, cp and pp stand between them."""
    E, M, V, t, p = 4096, 14336, 128256, knobs["tp"], knobs.get("pp", 1)
    most = 9 if p == 4 else 32 // p  # four stages have 9, 9, 8 and 6 layers
    layers = most * ((2 * E * (32 + 8) * 128 + 3 * E * M) / t + 2 * E)
    params = layers + V * E / t * (2 if p == 1 else 1) + (E if p == 1 else 0)
    turn = START + DGX_H100.inter.latency + 4 * params / 2 / (0.6 * DGX_H100.inter.bandwidth)
    found = llama(4096, batch=4 * knobs.get("dp", 1), zero=0, **knobs)["dp"]
    assert found == pytest.approx(2 * turn, rel=1e-12)


@pytest.mark.parametrize("cut", [False, True])
def test_between_stages_2_ranks_send_a_half_each_and_gather_it_unless_they_share_the_tokens(cut):
    """2 microbatches on 2 stages: 2 transfers are waited for."""
    S, E, link = 4096, 4096, DGX_H100.intra
    hop = link.latency + 2 * S * E / 2 / (0.78 * link.bandwidth)
    found = llama(S, batch=2, pp=2, tp=2, sequence_parallel=cut)["pp"]
    assert found == pytest.approx(2 * (hop + (0 if cut else ring(2 * S * E, 2))), rel=1e-12)


@pytest.mark.parametrize(("stage", "parts"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_each_rank_updates_its_eighth_of_the_parameters_from_zero_1_on(stage, parts):
    update = 64 * LLAMA_8B.num_parameters / parts / (0.8 * DGX_H100.device.memory_bandwidth)
    assert llama(4096, batch=8, dp=8, zero=stage)["optimizer"] == pytest.approx(update, rel=1e-12)


@pytest.mark.parametrize(("stage", "gradients", "weights"), [(0, 2, 0), (1, 1, 1), (2, 1, 1), (3, 1, 2)])
def test_two_chunks_a_rank_hide_all_of_zeros_traffic_but_half_a_turn_each(stage, gradients, weights):
    """Behind long work: a chunk's gradients, after the last of its passes; and a chunk's weights before the first."""
    last = (LLAMA_8B.num_parameters + 4096) / 2
    found = llama(65536, batch=8, dp=2, pp=2, chunks=2, zero=stage)["dp"]
    assert found == pytest.approx((gradients * ring(4 * last, 2) + weights * ring(2 * last, 2)) / 2, rel=1e-12)


@pytest.mark.parametrize(("cut", "turns"), [(False, 8 * 3 + 4), (True, 10 * 3 + 5)])
def test_3_layers_take_8_turns_each_and_4_at_the_ends_or_10_and_5_with_sequence_parallelism(cut, turns):
    """Of the activations, as all-gathers or reduce-scatters; and the loss's 3 all-reduces of a float32 a token."""
    E, S, t, pace = 64, 64, 4, 1e9
    config, cluster = LlamaConfig(32, E, 192, 3, 4), Cluster.uniform(1e-6, pace)
    found = estimate(config, cluster, Layout(tp=t, sequence_parallel=cut), batch=1, sequence=S).seconds["tp"]
    turn, of_loss = ((t - 1) * (1e-6 + nbytes / t / pace) for nbytes in (2 * S * E, 4 * S))
    assert found == pytest.approx(turns * turn + 6 * of_loss, rel=1e-12)


@pytest.mark.parametrize(("layers", "knobs"), [(7, dict(pp=2)), (6, dict(pp=2, chunks=2)), (11, dict(pp=4))], ids=str)
def test_products_of_uneven_stages_are_those_of_an_average_rank(layers, knobs):
    E, M, V, S, m, cluster = 64, 192, 32, 64, 4, Cluster.uniform(0, 1e9)
    found = estimate(LlamaConfig(V, E, M, layers, 4), cluster, Layout(**knobs), batch=m, sequence=S).seconds
    flops = 6 * m * S * (layers * (4 * E * E + 3 * E * M) + E * V)
    assert found["products"] == pytest.approx(flops / 1e12 / knobs["pp"], rel=1e-12)


@pytest.mark.parametrize("m", [2, 4])
def test_zero_3_hides_all_pieces_but_the_first_behind_2m_minus_1_chunks_of_short_work(m):
    """By hand: 2 stages of 2 chunks of 1 layer, on 2 replicas; weights travel m times each way, gradients m times."""
    E, M, V, S, D = 64, 192, 32, 64, 16
    matrices, pairs, pace, flops = 4 * E * E + 3 * E * M, 4 * S * (S + 1) / 2, 4e9, 1e12
    forward = (2 * S * matrices + 2 * 2 * D * pairs) / flops
    backward = (4 * S * matrices + 5 * 2 * D * pairs) / flops
    turn = (2 * (matrices + 2 * E) + V * E + E) / pace  # half of 2 bytes a parameter of the last rank
    before, after = m * turn, 2 * m * turn
    expected = before / m / 2 + before * (1 - 1 / m / 2) - (2 * m - 1) * forward
    expected += after / m / 2 + after * (1 - 1 / m / 2) - (2 * m - 1) * backward
    layout, software = Layout(dp=2, pp=2, chunks=2, zero=3), Software(hides={"dp"})
    cluster = Cluster.uniform(0, pace, flops=flops)
    found = estimate(LlamaConfig(V, E, M, 4, 4), cluster, layout, batch=2 * m, sequence=S, software=software)
    assert found.seconds["dp"] == pytest.approx(expected, rel=1e-12)


def test_whole_gradients_travel_behind_the_last_p_microbatches_of_1f1b_and_behind_all_of_breadth_first():
    knobs = {"dp": 2, "pp": 2, "chunks": 2, "zero": 1}
    few, many = (llama(32, batch=2 * m, **knobs)["dp"] for m in (2, 8))
    assert few == many == llama(32, batch=4, **knobs, schedule="looped_bfs")["dp"]
    last = (LLAMA_8B.num_parameters + 4096) / 2
    hidden = ring(4 * last, 2) / 2 + ring(2 * last, 2) / 2  # half a turn of a rank's gradients, and of its weights
    assert many > 1.1 * llama(32, batch=16, **knobs, schedule="looped_bfs")["dp"]
    assert llama(32, batch=64, **knobs, schedule="looped_bfs")["dp"] == pytest.approx(hidden, rel=1e-12)
