"""The habits of software: each changes the traffic as its public code does."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.nn import LlamaConfig
from parlab.pipeline import Costs, one_f_one_b, simulate
from parlab.plan import (
    LLAMA_3,
    LLAMA_8B,
    MEGATRON,
    OURS,
    PLAIN,
    TORCHTITAN,
    GPTConfig,
    Layout,
    Software,
    estimate,
)
from parlab.plan.case import Case
from parlab.plan.layer import layer_seconds
from parlab.plan.machine import Machine
from parlab.world import CLASSROOM, DGX_A100, Cluster
from parlab.zero import elements_sent

V, E, S, LAYERS = 128256, 4096, 2048, 32
LINK = DGX_A100.intra
MEMORY = 0.8 * DGX_A100.device.memory_bandwidth


def seconds(software, batch=1, config=LLAMA_8B, **knobs):
    return estimate(config, DGX_A100, Layout(**knobs), batch=batch, sequence=S, software=software).seconds


def turn(nbytes, ranks):
    return 8.4e-6 + (ranks - 1) * (LINK.latency + nbytes / ranks / (0.78 * LINK.bandwidth))


@pytest.mark.parametrize(
    ("software", "cut", "back"),
    [(MEGATRON, False, 4), (MEGATRON, True, 6), (PLAIN, False, 6), (PLAIN, True, 4), (OURS, False, 4), (OURS, True, 6)],
)
def test_a_layers_backward_has_4_turns_6_with_sequence_parallelism_and_6_or_4_in_plain_software(software, cut, back):
    """Gate and up sum their gradients of x apart: three all-reduces; with sequence parallelism x is kept gathered."""
    case = Case(LLAMA_8B, Layout(tp=8, sequence_parallel=cut), 1, S, software=software.but(hides=()))
    found = layer_seconds(Machine(DGX_A100), case)["tp"]
    assert found.forward == pytest.approx(4 * turn(2 * S * E, 8), rel=1e-12)
    assert found.backward == pytest.approx(back * turn(2 * S * E, 8), rel=1e-12)


def test_a_gpt_has_one_product_before_its_gelu_and_so_4_turns_in_plain_software_too():
    case = Case(GPTConfig(1000, 512, 1, 8), Layout(tp=8), 1, S, software=PLAIN)
    assert layer_seconds(Machine(DGX_A100), case)["tp"].backward == pytest.approx(4 * turn(2 * S * 512, 8))


@pytest.mark.parametrize("schedule", ["looped_bfs", "1f1b"])
def test_where_zero_3_gathers_once_a_chunk_breadth_first_sends_for_8_microbatches_as_for_one(schedule):
    """Weights twice, gradients once. 1F1B comes back to a chunk after another one, and gathers again."""
    layout = Layout(dp=2, pp=2, chunks=2, zero=3, schedule=schedule)
    each, once = (
        estimate(LLAMA_8B, DGX_A100, layout, batch=16, sequence=S, software=software).sent["dp"]
        for software in (OURS, OURS.but(gathers_weights_once=True))
    )
    assert each == 2 * elements_sent(LLAMA_8B.num_parameters, 2, 3, microbatches=8)
    assert once == 2 * elements_sent(LLAMA_8B.num_parameters, 2, 3, microbatches=1 if schedule == "looped_bfs" else 8)


@pytest.mark.parametrize(("chunks", "gathered", "gradients"), [(1, 4, 4), (2, 4, 2), (4, 2, 1)])
def test_what_is_gathered_once_is_held_for_a_chunk_and_the_next_and_so_are_a_chunks_gradients(
    chunks, gathered, gradients
):
    """On the last of two ranks, which has 4 of 8 layers, and the final norm and the head."""
    config, words, width = LlamaConfig(32, 64, 192, 8, 4), 32, 64
    layout = Layout(dp=2, pp=2, chunks=chunks, zero=3, schedule="looped_bfs")
    one, more = (
        estimate(config, CLASSROOM, layout.but(zero=zero), batch=8, sequence=64, software=TORCHTITAN).bytes["working"]
        for zero in (1, 3)
    )
    layer = 4 * width * width + 3 * width * 192 + 2 * width
    assert more - one == 2 * ((gathered + gradients) * layer + (words * width + width) / chunks)


def test_plain_software_keeps_two_gathered_inputs_a_layer_with_sequence_parallelism():
    kept = [
        estimate(LLAMA_8B, DGX_A100, Layout(tp=8, sequence_parallel=True), batch=1, sequence=S, software=software)
        for software in (MEGATRON, PLAIN)
    ]
    more = kept[1].bytes["activations"] - kept[0].bytes["activations"]
    assert more == pytest.approx(LAYERS * 2 * (2 * S * E) * 7 / 8, rel=1e-12)


def test_megatron_hides_dx_behind_dw_and_plain_software_waits_for_it():
    """At t 2 a dW of 2048 tokens is longer than its turns."""
    assert seconds(MEGATRON, tp=2)["tp"] < seconds(MEGATRON.but(hides=()), tp=2)["tp"] < seconds(PLAIN, tp=2)["tp"]


def test_behind_long_products_nothing_hides_the_two_all_gathers_of_dy():
    case = Case(LLAMA_8B, Layout(tp=2, sequence_parallel=True), 1, S, software=MEGATRON)
    found = layer_seconds(Machine(DGX_A100), case)["tp"].backward
    assert found == pytest.approx(2 * turn(2 * S * E, 2), rel=1e-12)


@pytest.mark.parametrize(("software", "turns"), [(PLAIN, 2), (MEGATRON, 1)])
def test_zero_1_all_reduces_4_bytes_a_gradient_in_plain_software_and_then_gathers_2_a_weight(software, turns):
    params = LLAMA_8B.num_parameters
    found = seconds(software, batch=8, dp=8)["dp"]
    assert found == pytest.approx(turns * turn(4 * params, 8) + turn(2 * params, 8), rel=1e-12)


def test_plain_software_gathers_logits_joins_them_with_8_and_4_bytes_each_and_takes_the_loss_of_all_v_columns():
    """The head's other time is that of its products and of the sum of dX; the embedding's all-reduce has two turns."""
    plain, cut = (seconds(PLAIN.but(cuts_logits=cut), tp=8) for cut in (False, True))
    sums, gathered = 6 * turn(4 * S, 8), turn(2 * S * V, 8)
    assert plain["tp"] - cut["tp"] == pytest.approx(gathered - sums, rel=1e-9)
    whole, part = (52 + 8 + 4) * S * V / MEMORY, 52 * S * V / 8 / MEMORY
    assert plain["elementwise"] - cut["elementwise"] == pytest.approx(whole - part, rel=1e-9)
    alone = [seconds(PLAIN.but(cuts_logits=cut))["elementwise"] for cut in (False, True)]
    assert alone[0] == alone[1]  # one rank has nothing to join


def test_a_loss_of_8_bytes_a_logit_more_is_held_on_the_last_stage():
    few, many = (
        estimate(LLAMA_8B, DGX_A100, Layout(), batch=1, sequence=S, software=MEGATRON.but(logit=more)).bytes["working"]
        for more in (0, 8)
    )
    assert many - few == 8 * S * V


# ---- the order of the axes


@pytest.mark.parametrize(
    ("order", "pp", "dp", "in_a_node"),
    [(MEGATRON.order, 4 * 3, 4, 2), (LLAMA_3.order, 4, 4 * 5, 1)],
    ids=["pipeline outermost", "data outermost"],
)
def test_ranks_of_dp_lie_t_c_apart_where_the_pipeline_is_outermost_and_t_c_p_where_data_is(order, pp, dp, in_a_node):
    case = Case(LLAMA_8B, Layout(dp=3, pp=5, tp=4), 15, 64, software=Software(order=order))
    assert [case.stride(axis) for axis in ("tp", "cp", "pp", "dp")] == [1, 4, pp, dp]
    assert Machine(DGX_A100).in_a_node((case.layout.dp, case.stride("dp"))) == in_a_node


@pytest.mark.parametrize(("dp", "inside"), [(1, True), (2, True), (4, False)])
def test_a_message_between_stages_leaves_the_node_unless_t_c_d_p_is_at_most_8(dp, inside):
    """2 stages of 2 ranks: the next stage is 2·dp ranks away; where data is outermost it is 2."""
    link, share = (DGX_A100.intra, 0.78) if inside else (DGX_A100.inter, 0.6)
    hop = link.latency + 2 * S * E / 2 / (share * link.bandwidth)
    knobs = {"dp": dp, "pp": 2, "tp": 2, "sequence_parallel": True, "batch": 2 * dp}
    assert seconds(MEGATRON, **knobs)["pp"] == pytest.approx(2 * hop, rel=1e-12)
    near = DGX_A100.intra
    outer = near.latency + 2 * S * E / 2 / (0.78 * near.bandwidth)
    assert seconds(MEGATRON.but(order=LLAMA_3.order), **knobs)["pp"] == pytest.approx(2 * outer, rel=1e-12)


# ---- computing and sending in one stream


def actions(p, m, stage):
    """DeepSpeed's 1F1B, `runtime/pipe/schedule.py`: sends and receives before each forward or backward."""
    found, before = [], -1
    for step in range(2 * (m + p - 1)):
        forward, half = step % 2 == stage % 2, step // 2
        number = half - stage // 2 if forward else half - p + (stage + 1) // 2 + (step % 2) * (1 - stage % 2)
        here, last = 0 <= number < m, 0 <= before < m
        if forward and stage > 0:
            found += [("send", stage - 1, "B", before)] * last + [("receive", stage - 1, "F", number)] * here
        if not forward and stage < p - 1:
            found += [("receive", stage + 1, "B", number)] * here + [("send", stage + 1, "F", before)] * last
        found += [("work", 1 if forward else 2)] * here
        before = number
    return found


def makespan(p, m, transfer):
    """Each rank does one thing after the other; a message takes both ranks' time."""
    left, now = [actions(p, m, stage) for stage in range(p)], [0.0] * p
    while any(left):
        for stage, todo in enumerate(left):
            if todo and todo[0][0] == "work":
                now[stage] += todo.pop(0)[1]
            elif todo and left[todo[0][1]]:
                kind, peer, *what = todo[0]
                theirs = left[peer][0]
                if theirs[0] not in ("work", kind) and theirs[1] == stage and list(theirs[2:]) == what:
                    now[stage] = now[peer] = max(now[stage], now[peer]) + transfer
                    todo.pop(0)
                    left[peer].pop(0)
    return max(now)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 16])
def test_one_stream_waits_for_2m_messages_of_2_stages_and_4m_and_2_p_less_8_of_more_as_action_by_action(p):
    cluster = Cluster.uniform(1e-6, 1e12)
    config = GPTConfig(64, 64, 16, 4)
    for m in (p, 2 * p, 3 * p + 1):
        counted = (makespan(p, m, 2.0**-10) - makespan(p, m, 0)) * 2**10
        assert counted == (2 * m if p == 2 else 4 * m + 2 * p - 8)
        software = OURS.but(one_stream=True)
        found = estimate(config, cluster, Layout(pp=p), batch=m, sequence=8, software=software).seconds["pp"]
        assert found == pytest.approx(counted * (1e-6 + 2 * 8 * 64 / 1e12), rel=1e-12)


# ---- stages that differ


@pytest.mark.parametrize(
    ("config", "p", "first", "last"),
    [
        (LLAMA_8B, 4, 9, 6),  # the head is worth 2.4 of 32 layers: 9, 9, 8, 6
        (LLAMA_8B, 16, 3, 0),  # max(⌈(32 − l)/15⌉, l + 2.4): 3 with none
        (LLAMA_8B, 1, 32, 32),
        (GPTConfig(51200, 20480, 105, 128), 35, 3, 3),  # 0.2 of a layer: 105 in 35 stages of 3
        (GPTConfig(51200, 20480, 105, 128), 34, 4, 3),
    ],
)
def test_layers_are_dealt_so_that_the_last_stage_with_its_head_is_no_slower(config, p, first, last):
    case = Case(config, Layout(pp=np.array([p])), 2 * p, S)
    assert case.stages.chunk_layers.tolist() == [first]
    assert case.stages.last_layers.tolist() == [last]


@pytest.mark.parametrize(("layers", "stages"), [(7, [2, 2, 2, 1]), (6, [2, 2, 1, 1])])
def test_imbalance_is_the_slowest_stage_less_the_true_mean_of_layers_that_do_not_divide(layers, stages):
    """The head has one column. The bubble is that of a pipeline whose stages but the last have 2 layers."""
    config, m = GPTConfig(1, 512, layers, 8), 8
    found = estimate(config, CLASSROOM, Layout(pp=4), batch=m, sequence=64).seconds
    work = found["products"] + found["attention"]  # of an average rank
    assert found["imbalance"] == pytest.approx(work * (2 * 4 / layers - 1), rel=1e-2)
    layer = work * 4 / (m * layers * 3)  # forward
    took = (work + found["imbalance"] + found["bubble"]) / layer
    fewest, most = (
        simulate(one_f_one_b(4, m), Costs(costs, costs, costs)).makespan for costs in (stages, [2, 2, 2, 1])
    )
    assert fewest * 0.99 <= took == pytest.approx(most, rel=1e-2)


def test_what_all_ranks_send_is_what_the_software_sends():
    """ZeRO-1 of plain software: 2 turns of 4 bytes and one of 2, of each of 7 other ranks' parts."""
    found = estimate(LLAMA_8B, DGX_A100, Layout(dp=8), batch=8, sequence=64).sent
    assert found["dp"] == 7 * LLAMA_8B.num_parameters * (2 * 4 + 2)
    tp = [
        estimate(LLAMA_8B, DGX_A100, Layout(tp=8), batch=1, sequence=64, software=x).sent["tp"] for x in (PLAIN, OURS)
    ]
    more = 32 * 2 * 7 * (2 * 64 * E) + 7 * (2 * 64 * V) - 7 * 6 * 4 * 64
    assert tp[0] - tp[1] == more
