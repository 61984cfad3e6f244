"""Groups of microbatches, and layers and arrays that are computed again: by hand, and beside Meta's two runs."""

from __future__ import annotations

import pytest

from parlab.nn import LlamaConfig
from parlab.nn.formulas import block_kept_bytes
from parlab.plan import LLAMA_3, LLAMA_8B, LLAMA_405B, Layout, estimate, search
from parlab.plan.case import Case
from parlab.plan.layer import all_kinds, layer_seconds
from parlab.plan.machine import Machine
from parlab.world import CLASSROOM, DGX_H100, Cluster

STEP = {"batch": 2048, "sequence": 8192}
META = Layout(dp=64, pp=16, tp=8, chunks=8, zero=2, sequence_parallel=True)
HALF = Layout(dp=256, pp=8, tp=8, chunks=16, zero=2, sequence_parallel=True)
GIB = 2**30


def of(layout, software=LLAMA_3):
    found = estimate(LLAMA_405B, DGX_H100, layout, software=software, **STEP)
    return round(found.total_bytes / GIB, 1), round(found.mfu * found.peak / 1e12)


@pytest.mark.parametrize(
    ("turned", "gib", "speed"),
    [
        ({"schedule": "looped_bfs"}, 134.9, 431),
        ({"schedule": "looped_bfs", "zero": 1}, 140.0, 431),
        ({"zero": 1}, 82.9, 423),
        ({}, 77.8, 423),
        ({"dp": 128, "schedule": "looped_bfs"}, 71.0, 391),
        ({"dp": 128}, 71.0, 393),
    ],
)
def test_metas_rows_of_430_and_400_tflops_by_the_order_and_by_whole_or_cut_gradients(turned, gib, speed):
    """On 80 GB: 8192 GPUs (dp 64) ran, so not all 32 microbatches passed a chunk in a row."""
    assert of(META.but(**turned)) == (gib, speed)


def test_gradients_sent_for_each_microbatch_leave_267_of_metas_430_tflops():
    assert of(META, LLAMA_3.but(sends_by_group=False)) == (77.8, 267)


@pytest.mark.parametrize(("schedule", "times"), [("1f1b", 4), ("looped_bfs", 1)])
def test_zero_2_sends_gradients_once_for_each_group_and_weights_once(schedule, times):
    """8 microbatches of 2 stages of 2 chunks: 4 groups of 2, or one of 8."""
    layout = Layout(dp=2, pp=2, chunks=2, zero=2, schedule=schedule)
    found = estimate(LLAMA_8B, CLASSROOM, layout, batch=16, sequence=64, software=LLAMA_3)
    assert found.sent["dp"] == LLAMA_8B.num_parameters * (4 * times + 2)
    each = estimate(LLAMA_8B, CLASSROOM, layout.but(schedule="1f1b"), batch=16, sequence=64)
    assert each.sent["dp"] == LLAMA_8B.num_parameters * (2 * 8 + 2)


def test_zero_3_gathers_weights_and_sends_gradients_for_each_microbatch_whatever_zero_2_does():
    layout = Layout(dp=2, pp=2, chunks=2, zero=3)
    found = estimate(LLAMA_8B, CLASSROOM, layout, batch=16, sequence=64, software=LLAMA_3)
    assert found.sent["dp"] == LLAMA_8B.num_parameters * 8 * (4 + 2 + 2)


SMALL = LlamaConfig(32, 64, 192, 8, 4)


def test_gradients_of_a_group_are_summed_in_a_chunk_and_those_of_one_microbatch_leave_layer_by_layer():
    """A chunk of the first rank, the fullest: 2 layers of 8, and half of its table."""
    layer, table = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64, 32 * 64
    layout, asked = Layout(dp=2, pp=2, chunks=2, zero=2), {"batch": 8, "sequence": 64}
    each, group = (
        estimate(SMALL, CLASSROOM, layout, software=LLAMA_3.but(sends_by_group=by_group), **asked).bytes["working"]
        for by_group in (False, True)
    )
    assert group - each == 2 * (2 * layer + table / 2 - layer)


@pytest.mark.parametrize(("schedule", "n", "times"), [("1f1b", 2, 2), ("looped_bfs", 4, 1)])
def test_gradients_of_all_groups_hide_behind_all_backwards_after_the_first_chunk(schedule, n, times):
    """4 microbatches, 2 chunks, a network so slow that work hides only a part; weights before the first group alone."""
    slow = Cluster.uniform(0, 1e5, flops=1e12)
    layout = Layout(dp=2, pp=2, chunks=2, zero=2, schedule=schedule)
    case, machine = Case(SMALL, layout, 8, 64, software=LLAMA_3), Machine(slow)
    forward, backward = (2 * seconds for seconds in all_kinds(layer_seconds(machine, case)))  # of a chunk of 2 layers
    params = max(rank.params.item() for rank in case.stages.ranks)
    gradients = times * machine.ring(4 * params, 2) - n * (2 * times - 1) * backward
    weights = machine.ring(2 * params, 2) - n * forward
    found = estimate(SMALL, slow, layout, batch=8, sequence=64, software=LLAMA_3).seconds["dp"]
    assert found == pytest.approx((gradients + weights).item(), rel=1e-12)
    assert gradients > times * machine.ring(4 * params, 2) / 4  # more than the piece that nothing hides


def test_weights_of_zero_2_travel_once_beside_a_group_of_2_where_gradients_leave_after_each_of_4_microbatches():
    """2 chunks, a network so slow that work hides only a part."""
    slow, software = Cluster.uniform(0, 1e5, flops=1e12), LLAMA_3.but(sends_by_group=False)
    layout = Layout(dp=2, pp=2, chunks=2, zero=2)
    case, machine = Case(SMALL, layout, 8, 64, software=software), Machine(slow)
    forward, backward = (2 * seconds for seconds in all_kinds(layer_seconds(machine, case)))  # of a chunk of 2 layers
    params = max(rank.params.item() for rank in case.stages.ranks)
    gradients = 4 * machine.ring(4 * params, 2) - (4 * 2 - 1) * backward
    weights = machine.ring(2 * params, 2) - 2 * forward
    found = estimate(SMALL, slow, layout, batch=8, sequence=64, software=software).seconds["dp"]
    assert found == pytest.approx((gradients + weights).item(), rel=1e-12)


def test_a_last_rank_of_fewer_layers_computes_no_more_of_them_again_than_it_has():
    """7 layers in 4 chunks: 4 on the first rank, 3 on the last, which has the logits, and keeps 3 chunks."""
    config, S = LlamaConfig(2**15, 512, 1536, 7, 8), 4096
    found = estimate(config, CLASSROOM, Layout(pp=2, chunks=2, recompute_layers=4), batch=4, sequence=S)
    assert found.bytes["activations"] == 3 / 2 * 3 * 2 * S * 512


def test_layers_that_are_not_computed_again_in_full_compute_the_product_again():
    hidden, both, full = (
        estimate(SMALL, DGX_H100, Layout(**how), batch=1, sequence=64).seconds["recomputation"]
        for how in (
            {"recompute": "mlp.hidden"},
            {"recompute": "mlp.hidden", "recompute_layers": 2},
            {"recompute": "full"},
        )
    )
    assert both == pytest.approx(2 / 8 * full + 6 / 8 * hidden, rel=1e-12)


def test_16_in_a_row_keep_7_16_and_31_chunks_of_a_layer():
    layer = sum(block_kept_bytes(LLAMA_405B, 1, 8192, 2).values()) / 8
    found = estimate(LLAMA_405B, DGX_H100, META, **STEP).bytes["activations"]
    missing = 1 - 1 / 8  # the first rank has 7 layers of 8
    assert found in (pytest.approx(143 * missing * layer), pytest.approx((143 - 2) * layer))


def test_one_of_16_layers_computed_again_makes_half_the_pipeline_73_7_gib_and_6_36_s():
    """A line between none (77.0) and all (17.9), and the activations of the layer that is made again, once."""
    none, one, full = (
        estimate(LLAMA_405B, DGX_H100, layout, **STEP)
        for layout in (HALF, HALF.but(recompute_layers=1), HALF.but(recompute="full"))
    )
    assert [round(e.total_bytes / GIB, 1) for e in (none, one, full)] == [77.0, 73.7, 17.9]
    assert [round(e.total_seconds, 2) for e in (none, one, full)] == [6.23, 6.36, 8.36]
    kept, alone = sum(block_kept_bytes(LLAMA_405B, 1, 8192, 2).values()) / 8, 8192 * 16384 * 2 / 8
    assert none.bytes["activations"] == pytest.approx(8 * 16 * kept, rel=1e-12)
    assert one.bytes["activations"] == pytest.approx(8 * (15 * kept + alone), rel=1e-12)
    assert one.bytes["working"] - none.bytes["working"] == pytest.approx(kept - alone, rel=1e-12)
    assert one.seconds["recomputation"] == pytest.approx(full.seconds["recomputation"] * 8 / 126, rel=1e-12)
    assert one.sent["tp"] - none.sent["tp"] == pytest.approx((full.sent["tp"] - none.sent["tp"]) * 8 / 126)


def test_all_layers_of_each_rank_computed_again_are_full_recomputation():
    config, asked = LlamaConfig(32, 64, 192, 8, 4), {"batch": 4, "sequence": 64}
    some, full = (
        estimate(config, CLASSROOM, Layout(pp=2, tp=2, **how), **asked)
        for how in ({"recompute_layers": 4}, {"recompute": "full"})
    )
    assert some.bytes == pytest.approx(full.bytes)
    assert some.seconds == pytest.approx(full.seconds)
    assert some.sent == full.sent


def test_the_product_of_gate_and_up_computed_again_saves_13_gib_of_half_the_pipeline_for_15_ms():
    """2 bytes of each of M/t columns a token, in 8 microbatches of 16 layers; 6 bytes a column go through memory."""
    none, hidden = (
        estimate(LLAMA_405B, DGX_H100, layout, **STEP) for layout in (HALF, HALF.but(recompute="mlp.hidden"))
    )
    array = 2 * 8192 * LLAMA_405B.intermediate_size / 8
    assert none.bytes["activations"] - hidden.bytes["activations"] == pytest.approx(8 * 16 * array, rel=0.01)
    assert hidden.bytes["working"] - none.bytes["working"] == array
    assert [round(e.total_bytes / GIB, 1) for e in (none, hidden)] == [77.0, 64.1]
    seconds = 8 * 126 / 8 * 3 * array / (0.8 * DGX_H100.device.memory_bandwidth)
    assert hidden.seconds["recomputation"] == pytest.approx(seconds, rel=1e-12)
    assert seconds == pytest.approx(0.0154, abs=1e-4)


def test_a_search_tries_the_layers_that_it_is_given():
    asked = {"batch": 16, "sequence": 4096, "recompute_layers": [0, 1], "schedule": "1f1b"}
    plans = search(LLAMA_8B, DGX_H100, 8, pp=2, **asked)
    rows = vars(plans.layouts)
    assert set(rows["recompute_layers"]) == {0, 1}
    assert str(Layout(recompute_layers=1)).endswith("recompute 1 layer a rank")
