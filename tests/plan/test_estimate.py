"""Terms against closed forms, columns against single layouts, and what must never happen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.nn import LlamaConfig
from parlab.nn.formulas import add_flops, flops_by_block
from parlab.plan import (
    A100,
    GPT_175B,
    H100,
    LLAMA_3,
    LLAMA_7B,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MODELS,
    OURS,
    PLAIN,
    Hardware,
    Layout,
    Software,
    estimate,
    hardware_of,
    search,
    software_of,
)
from parlab.plan.sizes import Sizes
from parlab.tensor import llama_kept_by_place
from parlab.world import CLASSROOM, DGX_A100, DGX_H100
from parlab.zero import StateBytes, model_state_bytes

STATE = ("weights", "gradients", "optimizer")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-7b", 6.7),
        ("llama-13b", 13.0),
        ("llama-30b", 32.5),
        ("llama-65b", 65.2),
        ("llama-8b", 8.0),
        ("llama-70b", 70.6),
        ("llama-405b", 405.9),
        ("gpt-22b", 22.1),
        ("gpt-175b", 174.7),
        ("gpt-530b", 529.7),
        ("gpt-1t", 1008),
    ],
)
def test_models_have_the_published_number_of_parameters(name, billions):
    assert MODELS[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("config", [LLAMA_8B, GPT_175B], ids=["llama", "gpt"])
def test_sizes_add_up_to_the_model(config):
    found = Sizes(config)
    tied = 0 if found.fused_attention else found.vocab_size * found.hidden_size
    whole = found.num_layers * (found.layer_cut + found.layer_whole) + found.first_params + found.last_params - tied
    assert whole == config.num_parameters


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("d", "c"), [(1, 1), (4, 1), (4, 2)])
def test_state_is_zeros_over_dp_times_cp(stage, d, c):
    found = estimate(LLAMA_7B, CLASSROOM, Layout(dp=d, cp=c, zero=stage), batch=4, sequence=2048).bytes
    expected = model_state_bytes(LLAMA_7B.num_parameters, d * c, stage)
    assert sum(found[part] for part in STATE) == pytest.approx(expected, rel=1e-12)


def test_state_may_have_float32_gradients_and_an_optimizer_on_the_host():
    layout = Layout(zero=0)
    found = estimate(LLAMA_7B, CLASSROOM, layout, batch=1, sequence=8, state=StateBytes(gradient=4)).bytes
    assert found["gradients"] == 4 * LLAMA_7B.num_parameters
    assert estimate(LLAMA_7B, CLASSROOM, layout.but(offload=True), batch=1, sequence=8).bytes["optimizer"] == 0
    times = [
        estimate(LLAMA_7B, DGX_A100, layout.but(offload=x), batch=1, sequence=8).seconds["optimizer"]
        for x in (False, True)
    ]
    assert times[1] > 5 * times[0]  # the host's memory is slower


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("cut", [False, True])
def test_kept_bytes_are_the_tensor_rooms_of_a_llama_and_korthikantis_table_2_of_a_gpt(t, cut):
    options = {"sequence_parallel": cut}
    llama = estimate(LLAMA_8B, CLASSROOM, Layout(tp=t, **options), batch=1, sequence=4096)
    per_layer = sum(llama_kept_by_place(LLAMA_8B, 1, 4096, t, 2, **options).values())
    assert llama.bytes["activations"] == 32 * per_layer
    sbh, scores = 2048 * 12288, 5 * 96 * 2048**2 / t
    layer = 34 * sbh / t if cut else sbh * (10 + 24 / t)
    for recompute, kept in (("none", layer + scores), ("selective", layer), ("full", 2 * sbh / (t if cut else 1))):
        gpt = estimate(GPT_175B, CLASSROOM, Layout(tp=t, recompute=recompute, **options), batch=1, sequence=2048)
        assert gpt.bytes["activations"] == pytest.approx(96 * kept, rel=1e-12)


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        (Layout(pp=4), 4 * 9),  # the head is worth 2.4 layers, so the stages have 9, 9, 8 and 6
        (Layout(pp=4, schedule="gpipe"), 8 * 9),
        (Layout(pp=4, chunks=2), 11 * 4),
        (Layout(pp=4, chunks=2, schedule="looped_bfs"), 8 * 8),
    ],
    ids=str,
)
def test_activations_in_flight_on_the_first_of_4_ranks_with_8_microbatches(layout, layers):
    """4 microbatches; all 8; vp + p − 1 = 11 chunks of 4 layers; all 8."""
    found = estimate(LLAMA_8B, CLASSROOM, layout, batch=8, sequence=4096).bytes["activations"]
    assert found == layers * sum(llama_kept_by_place(LLAMA_8B, 1, 4096, 1, 2).values())


@pytest.mark.parametrize("schedule", ["1f1b", "looped_bfs"])
@pytest.mark.parametrize(("p", "v"), [(1, 1), (2, 1), (4, 1), (6, 1), (2, 3), (2, 4), (4, 2)])
def test_the_fullest_rank_is_that_of_plain_loops_over_all_ranks_of_even_and_uneven_stages(p, v, schedule):
    config, S, m, L = LlamaConfig(32, 64, 192, 6, 4), 64, 2 * p, 6
    V, E, M = 32, 64, 192
    kept = sum(llama_kept_by_place(config, 1, S, 1, 2).values())
    missing = -L % (p * v)
    layers = [(L + missing) // p] * p
    layers[0] -= missing // 2
    layers[-1] -= min(missing, 1)
    if v == 1 and p > 1:  # the head is worth a twenty-sixth of a layer
        layers = {2: [3, 3], 3: [2, 2, 2], 4: [2, 2, 1, 1], 6: [1] * 6}[p]
    held = []
    for rank in range(p):
        params = layers[rank] * (4 * E * E + 3 * E * M + 2 * E) + V * E * (rank == 0) + (V * E + E) * (rank == p - 1)
        flight = p - rank if v == 1 else v * p + p - 1 - 2 * rank
        chunks = min(m * v, flight) if schedule == "1f1b" else m * v
        working = 2 * S * (E + 2 * M) + (6 * S * V + 4 * S * E) * (rank == p - 1)
        held.append(16 * params + chunks / v * layers[rank] * kept + working)
    layout = Layout(pp=p, chunks=v, zero=0, schedule=schedule)
    found = estimate(config, CLASSROOM, layout, batch=m, sequence=S)
    assert found.total_bytes == pytest.approx(max(held), rel=1e-12)


@pytest.mark.parametrize(("dtype", "nbytes"), [("float16", 6), ("float32", 8), ("float64", 16)])
def test_the_last_stage_holds_2_plus_4_or_4_plus_4_or_8_plus_8_bytes_a_logit(dtype, nbytes):
    """As `cross_entropy` does: the logits, and their softmax in float32 or wider: in float64 both are float64."""
    S, V = 64, 32
    logits = np.zeros((1, S, V), dtype)
    softmax = np.exp(logits.astype(np.result_type(dtype, np.float32)))
    few, many = (
        estimate(LlamaConfig(words, 64, 192, 6, 4), CLASSROOM, Layout(), batch=1, sequence=S, itemsize=logits.itemsize)
        for words in (V, 2 * V)
    )
    assert many.bytes["working"] - few.bytes["working"] == logits.nbytes + softmax.nbytes == nbytes * S * V


@pytest.mark.parametrize(
    ("layout", "layers", "rest"),
    [
        (Layout(dp=2, zero=2), 1, 0),  # a layer's gradients, scattered with each microbatch
        (Layout(dp=2, zero=2, schedule="gpipe"), 8, 2 * 32 * 64 + 64),  # all of them, table, norm and head too
        (Layout(dp=2, pp=2, chunks=2, zero=2, schedule="looped_bfs"), 2, (32 * 64 + 64) / 2),  # those of a chunk
        (Layout(dp=2, zero=3), 1 + 2, 0),  # and two layers' gathered weights
        (Layout(dp=2, pp=2, chunks=2, zero=3, schedule="looped_bfs"), 1 + 2, 0),
    ],
    ids=str,
)
def test_before_gradients_are_scattered_zero_2_and_3_hold_those_of_a_layer_or_of_a_chunk(layout, layers, rest):
    """2 bytes a gradient and a gathered weight; the last rank is the fullest, because it has the logits."""
    config, V, E, M = LlamaConfig(32, 64, 192, 8, 4), 32, 64, 192
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (V, E, M)
    one, more = (
        estimate(config, CLASSROOM, layout.but(zero=zero), batch=8, sequence=64).bytes["working"]
        for zero in (1, layout.zero)
    )
    assert more - one == 2 * (layers * (4 * E * E + 3 * E * M + 2 * E) + rest)


def test_work_on_the_clock_is_the_counted_flops_of_causal_attention():
    B, S = 2, 512
    found = estimate(LLAMA_8B, CLASSROOM, Layout(microbatch=B), batch=B, sequence=S)
    dense = sum(add_flops(*flops_by_block(LLAMA_8B, B, S).values()))
    of_attention = 14 * B * 32 * S * S * 128 * 32  # two products forward, five backward
    causal = of_attention * (S + 1) / (2 * S)
    assert found.total_seconds * 1e12 == pytest.approx(dense - of_attention + causal, rel=1e-12)


@cache
def random_cases(count):
    """Layouts of a small search, in columns."""
    plans = search(LLAMA_8B, DGX_H100, 32, batch=32, sequence=4096, offload=True)
    chosen = np.random.default_rng(0).choice(len(plans.layouts), count, replace=False)
    return plans, chosen


def test_columns_give_the_numbers_of_single_layouts_to_the_bit_and_kinds_sum_to_totals():
    plans, chosen = random_cases(60)
    columns = estimate(LLAMA_8B, DGX_H100, plans.layouts[chosen], batch=32, sequence=4096)
    for place, number in enumerate(chosen):
        one = estimate(LLAMA_8B, DGX_H100, plans.layouts[int(number)], batch=32, sequence=4096)
        assert one == columns[place] == plans.grid[number]
        assert (one.total_seconds, one.total_bytes) == (plans.seconds[number], plans.bytes[number])
        assert min(*one.seconds.values(), *one.bytes.values(), *one.sent.values()) >= 0
        assert one.total_seconds == pytest.approx(sum(one.seconds.values()), rel=1e-12)
        assert one.total_bytes == pytest.approx(sum(one.bytes.values()), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(faster=st.floats(1, 50), which=st.sampled_from(["intra", "inter"]), lower=st.floats(0, 1))
def test_a_faster_link_is_never_slower(faster, which, lower):
    plans, chosen = random_cases(300)
    link = getattr(DGX_H100, which)
    better = replace(link, latency=link.latency * lower, bandwidth=link.bandwidth * faster)
    found = estimate(LLAMA_8B, replace(DGX_H100, **{which: better}), plans.layouts[chosen], batch=32, sequence=4096)
    assert (found.total_seconds <= plans.seconds[chosen] * (1 + 1e-12)).all()


def test_five_fractions_a_device_and_none_for_any_other():
    for hardware in (A100, H100):
        fractions = [hardware.products, hardware.attention, hardware.memory, hardware.intra, hardware.inter]
        assert all(0.5 <= x <= 0.9 for x in fractions)
        assert hardware.source
    assert hardware_of(DGX_A100) is A100
    assert hardware_of(DGX_H100) is H100
    assert hardware_of(CLASSROOM) == Hardware(source=hardware_of(CLASSROOM).source)
    assert [software_of(cluster) for cluster in (DGX_A100, DGX_H100, CLASSROOM)] == [PLAIN, LLAMA_3, OURS]
    assert Software(source=OURS.source) == OURS


def test_context_parallelism_hides_its_hops_behind_long_attention_and_waits_for_them_behind_short():
    long, short = (
        estimate(LLAMA_70B, DGX_H100, Layout(cp=8, tp=8), batch=1, sequence=sequence).seconds
        for sequence in (131072, 2048)
    )
    assert long["cp"] < 0.2 * long["attention"]
    assert short["cp"] > short["attention"]


def test_ring_hops_are_as_long_as_the_bytes_that_the_clock_sends():
    """What the simulated clock charges for K and V of 2 ranks: 1 hop forward, 3 backward, one after the other."""
    found = estimate(LLAMA_8B, CLASSROOM, Layout(cp=2), batch=1, sequence=4096)
    link, half = CLASSROOM.intra, 2 * 2048 * 8 * 128
    hops = 2 * (link.latency + 2 * half / link.bandwidth) + 2 * (link.latency + 4 * half / link.bandwidth)
    assert found.seconds["cp"] == pytest.approx(32 * hops, rel=1e-12)


def test_llama_3_spends_6_6_s_a_step_and_fits_in_80_gb():
    llama_3 = Layout(128, 16, 1, 8, 8, zero=2, schedule="looped_bfs", sequence_parallel=True)
    found = estimate(LLAMA_405B, DGX_H100, llama_3, batch=2048, sequence=8192)
    published = found.flops / (16384 * 400e12)  # 400 TFLOP/s a GPU: table 4
    assert published == pytest.approx(6.46, rel=1e-3)
    assert found.total_seconds == pytest.approx(published, rel=0.03)
    assert 70e9 < found.total_bytes < 80e9
