"""The paper's numbers, and every byte that a step sends beside the closed form."""

from __future__ import annotations

import pytest

from parlab.zero import (
    MIXED,
    LossScale,
    StateBytes,
    elements_sent,
    model_state_bytes,
    shard_range,
    tokens_to_hide_a_gather,
)
from tests.zero.models import NUM_PARAMS, STAGES, model, timed

PSI = NUM_PARAMS[False]
ITEMSIZE = 8


def sent(timeline):
    return sum(timeline.bytes_sent(rank) for rank in range(timeline.size))


def test_fact_bytes_a_parameter_are_2_2_and_12_in_mixed_precision_and_16_in_all():
    assert tuple(MIXED) == (2, 2, 12)
    assert sum(MIXED) == sum(StateBytes(4, 4, 8)) == 16
    assert sum(StateBytes(gradient=4)) == 18


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [(1, (120, 120, 120)), (4, (52.5, 41.3, 30)), (64, (31.4, 16.6, 1.88)), (1024, (30.1, 15.1, 0.12))],
)
def test_fact_table_1_of_the_paper_7_5b_parameters(ranks, gigabytes):
    found = [model_state_bytes(7.5e9, ranks, stage) / 1e9 for stage in (1, 2, 3)]
    for x, stated, unit in zip(found, gigabytes, (0.1, 0.1, 0.01), strict=True):
        assert abs(x - stated) <= unit / 2 + 1e-9


def test_fact_optimizer_bytes_of_a_million_float32_parameters_over_4_are_8_000_000_whole_2_000_000_a_rank():
    state = StateBytes(0, 0, 8)
    assert [model_state_bytes(10**6, 4, stage, state=state) for stage in (0, 1)] == [8_000_000, 2_000_000]
    assert [8 * len(shard_range(10**6, rank, 4)) for rank in range(4)] == [2_000_000] * 4


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_fact_all_ranks_together_send_2_2_2_3_psi_times_n_minus_1_elements(stage, passes, size):
    assert sent(timed(stage, size)) == passes * PSI * (size - 1) * ITEMSIZE
    assert elements_sent(PSI, size, stage) == passes * PSI * (size - 1)


@pytest.mark.parametrize(
    ("stage", "options", "passes"),
    [
        (0, {}, 2),
        (1, {}, 2),
        (2, {}, 3 + 1),
        (3, {}, 3 * 3),
        (3, {"keep_after_forward": True}, 2 * 3),
    ],
)
def test_3_microbatches_cost_2_2_4_9_psi_and_6_where_weights_are_kept_after_the_forward(stage, options, passes):
    assert sent(timed(stage, 3, microbatches=3, **options)) == passes * PSI * 2 * ITEMSIZE
    if "keep_after_forward" not in options:
        assert elements_sent(PSI, 3, stage, microbatches=3) == passes * PSI * 2


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_fact_stage_3_that_keeps_the_last_block_at_the_turn_sends_3_psi_less_that_block_a_microbatch(
    size, microbatches
):
    """Two gathers of everything less one of the last block, and a reduction: P − 1 messages a rank each."""
    start = model()
    blocks = list(start.weight_blocks.values())
    last = sum(start.weights[name].size for name in blocks[-1])
    timeline = timed(3, size, microbatches=microbatches, keep_last_block=True)
    assert sent(timeline) == microbatches * (3 * PSI - last) * (size - 1) * ITEMSIZE
    assert len(timeline.transfers) == microbatches * (3 * len(blocks) - 1) * size * (size - 1)


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("stage", [1, 2])
def test_weights_gathered_in_the_next_forward_cost_the_same_2_psi_in_as_many_messages(stage, size):
    blocks = len(model().weight_blocks)
    timeline = timed(stage, size, steps=2, overlap_gather=True, after_step=lambda comm, replica: replica.finish())
    assert sent(timeline) == 2 * elements_sent(PSI, size, stage) * ITEMSIZE
    assert len(timeline.transfers) == 2 * 2 * blocks * size * (size - 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_second_step_sends_as_much_as_the_first(stage):
    assert sent(timed(stage, 3, steps=2)) == 2 * sent(timed(stage, 3, steps=1))


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_clipping_adds_one_all_reduce_of_8_bytes_and_whole_gradients_need_none(stage, size):
    assert sent(timed(stage, size, max_norm=1.0)) - sent(timed(stage, size)) == 2 * 8 * (size - 1)
    assert sent(timed(0, size, max_norm=1.0)) == sent(timed(0, size))


@pytest.mark.parametrize("stage", STAGES)
def test_float16_halves_the_bytes_of_float32_and_its_loss_scale_adds_one_all_reduce_of_8(stage):
    start = model(dtype="float32")
    full, half = (
        sent(timed(stage, 3, start=start, **options))
        for options in ({}, {"dtype": "float16", "loss_scale": LossScale(256.0)})
    )
    assert full == elements_sent(PSI, 3, stage) * 4
    assert half == elements_sent(PSI, 3, stage) * 2 + (2 * 8 * 2 if stage else 0)


@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 1), (2, 1), (3, 3)])
def test_a_skipped_step_sends_gradients_but_no_new_weights(stage, passes):
    skipped = timed(stage, 3, start=model(dtype="float32"), dtype="float16", loss_scale=LossScale(1e30))
    assert sent(skipped) == passes * PSI * 2 * 2 + (2 * 8 * 2 if stage else 0)


def test_a_tied_table_is_gathered_for_the_head_too_unless_it_is_kept():
    """The head's forward and backward need the embedding's block once more each."""
    start, size = model(tie_word_embeddings=True), 3
    psi, table = NUM_PARAMS[True], start.weights["model.embed_tokens.weight"].size
    plain = sent(timed(3, size, start=start))
    assert plain == (elements_sent(psi, size, 3) + 2 * table * (size - 1)) * ITEMSIZE
    kept = sent(timed(3, size, start=start, keep_after_forward=True))
    assert kept == 2 * psi * (size - 1) * ITEMSIZE


@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_nodes_of_g_ranks_send_inside_what_g_ranks_would_and_between_2_psi_times_nodes_minus_1(stage, per_node):
    """Between nodes every shard's gradient is all-reduced among those that have the same one."""
    size = 6
    nodes = size // per_node
    timeline = timed(stage, size, ranks_per_node=per_node)
    inside = sum(t.nbytes for t in timeline.transfers if t.src // per_node == t.dst // per_node)
    between = sum(t.nbytes for t in timeline.transfers) - inside
    assert inside == nodes * elements_sent(PSI, per_node, stage) * ITEMSIZE
    assert between == 2 * PSI * (nodes - 1) * ITEMSIZE


def test_tokens_to_hide_a_gather_are_itemsize_times_n_minus_1_over_n_times_flops_over_2_bandwidth():
    assert tokens_to_hide_a_gather(1e12, 1e9, 4, itemsize=8) == 3000
    assert tokens_to_hide_a_gather(312e12, 300e9, 8) == pytest.approx(910)
    assert tokens_to_hide_a_gather(312e12, 12.5e9, 8) == pytest.approx(21_840)
    assert tokens_to_hide_a_gather(1e12, 1e9, 1) == 0
